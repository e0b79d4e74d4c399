"""C07: something between a listener and its database swallows packets and closes nothing. Only hints are lost that way:
rows are found all the same, by the fallback poll, and hints are heard again within two heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure import App
from perdure.runtime.worker import Worker
from perdure.store.postgres import listener
from perdure.store.postgres.address import Address, parse
from perdure.testing.proxy import Proxy, proxy
from tests.support import postgres
from tests.support.agents import app_on
from tests.support.waiting import becomes

pytestmark = pytest.mark.postgres

LONG_S = 300.0
"""A poll, or a heartbeat, that never comes in the time of a test."""


def test_c07_a_worker_that_hears_nothing_any_more_finds_new_work_within_its_fallback_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "HEARTBEAT_S", LONG_S)

    async def main() -> None:
        async with _deafened_worker(monkeypatch, poll_s=0.4) as starter:
            began = time.monotonic()
            handle = await starter.start("single", "tea")
            await becomes(lambda: _has_ended(starter, handle.run_id), "the poll has found it")
            assert time.monotonic() - began < 3, "the poll bounds it, and nothing else was waited for"

    asyncio.run(main())


def test_c07_a_listener_that_hears_nothing_any_more_listens_anew_and_looks_at_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no poll to help: what was enqueued while the listener was deaf is found, and so is what comes later."""
    monkeypatch.setattr(listener, "HEARTBEAT_S", 0.3)

    async def main() -> None:
        async with _deafened_worker(monkeypatch, poll_s=LONG_S) as starter:
            for text in ("while it was deaf", "since then"):
                handle = await starter.start("single", text)
                await becomes(lambda run=handle.run_id: _has_ended(starter, run), "it was found")

    asyncio.run(main())


@asynccontextmanager
async def _deafened_worker(monkeypatch: pytest.MonkeyPatch, *, poll_s: float) -> AsyncIterator[App]:
    """A worker that is idle, and whose listener has just gone deaf; another app on the same store."""
    server = postgres.shared()
    url = server.fresh_url()
    async with app_on(url) as starter, proxy(server.directory / f".s.PGSQL.{server.port}") as between:
        await starter.runs()
        _listen_through(monkeypatch, between, parse(url).schema)
        async with app_on(url) as app, app.worker(poll_s=poll_s) as worker:
            first = await starter.start("single", "first")
            await becomes(lambda: _has_ended(starter, first.run_id), "the worker works")
            await becomes(lambda: _waits_for_a_hint(worker), "it waits for a hint")
            assert len(between) == 1, "one connection listens"
            between.swallow()
            yield starter


def _listen_through(monkeypatch: pytest.MonkeyPatch, between: Proxy, schema: str) -> None:
    """From now on every listener's connection, and no other, goes by way of the proxy."""
    address = parse(f"postgresql://postgres@127.0.0.1:{between.port}/postgres?sslmode=disable&schema={schema}")
    original = listener.Listener.__init__

    def by_way_of_the_proxy(self: listener.Listener, _: Address) -> None:
        original(self, address)

    monkeypatch.setattr(listener.Listener, "__init__", by_way_of_the_proxy)


async def _has_ended(app: App, run_id: str) -> bool:
    return (await app.run_info(run_id)).ended_at is not None


async def _waits_for_a_hint(worker: Worker) -> bool:
    """It has said that it is idle, and has looked once more since."""
    tenure = worker._tenure
    return tenure is not None and tenure.claimer._idle and not tenure.claimer._settling
