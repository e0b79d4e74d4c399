"""C07: something between a listener and its database swallows packets and closes nothing. Only hints are lost that way:
rows are found all the same, by the fallback poll, and hints are heard again within two heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure import App, Handle
from perdure.core.records import RunState
from perdure.runtime.worker import Worker
from perdure.store.postgres import listener
from perdure.testing.proxy import proxy
from tests.support import postgres
from tests.support.deafness import listen_by_way_of
from tests.support.sidelog import SideLog
from tests.support.waiters import app_on
from tests.support.waiting import becomes

pytestmark = pytest.mark.postgres

LONG_S = 300.0
"""A poll, or a heartbeat, that never comes in the time of a test."""

POLL_S = 0.4
SOON_S = 3.0
"""A few polls, on a busy machine."""

Done = Callable[[], Awaitable[bool]]
Act = Callable[[], Awaitable[Done]]
"""What is to be noticed. It returns how to see that it was."""

Prepare = Callable[[App, Path], Awaitable[Act]]
"""What is done before nobody hears any more."""


# -- what is to be noticed -----------------------------------------------------------------------------------


async def a_new_run(app: App, gate: Path) -> Act:
    async def act() -> Done:
        return _has_ended(await app.start("one_step", "tea"))

    return act


async def an_answer(app: App, gate: Path) -> Act:
    handle = await _parked(await app.start("asks", 1))
    (question,) = await app.interrupts(run_id=handle.run_id)

    async def act() -> Done:
        await app.resume(question.id, "yes")
        return _has_ended(handle)

    return act


async def a_message(app: App, gate: Path) -> Act:
    handle = await _parked(await app.start("reads", 1))

    async def act() -> Done:
        await app.send(handle.thread_id, 7)
        return _has_ended(handle)

    return act


async def a_cancellation(app: App, gate: Path) -> Act:
    handle = await _parked(await app.start("sits"))

    async def act() -> Done:
        assert await handle.cancel() is RunState.CANCELLED
        return _has_ended(handle)

    return act


async def a_childs_end(app: App, gate: Path) -> Act:
    """Both are parked: the child hears of its cancellation, and then the parent of its end."""
    handle = await _parked(await app.start("guards", "sits"))
    (child,) = [app.handle(run.run_id) for run in await app.runs() if run.parent == handle.run_id]
    await _parked(child)

    async def act() -> Done:
        await child.cancel()
        return _has_ended(handle)

    return act


async def an_answer_to_a_run_that_is_at_work(app: App, gate: Path) -> Act:
    """One branch waits, another is busy: the run is in the worker's hands."""
    handle = await app.start("approves_beside", "tea", str(gate))
    question = await becomes(lambda: _question(app, handle), "it has asked")

    async def bought() -> bool:
        return any(row.key == "1/note" for row in await handle.history())

    async def act() -> Done:
        await app.resume(question, True)
        return bought

    return act


WAKES = [
    a_new_run, an_answer, a_message, a_cancellation, a_childs_end, an_answer_to_a_run_that_is_at_work,
]  # fmt: skip


@pytest.mark.parametrize("prepare", WAKES, ids=lambda prepare: prepare.__name__)
def test_c07_a_worker_that_hears_nothing_any_more_finds_what_has_come_within_its_fallback_poll(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: SideLog, prepare: Prepare
) -> None:
    monkeypatch.setattr(listener, "HEARTBEAT_S", LONG_S)

    async def main() -> None:
        async with _deaf_worker(prepare, tmp_path / "gate", poll_s=POLL_S) as act:
            began = time.monotonic()
            await becomes(await act(), "the poll has found it")
            assert time.monotonic() - began < SOON_S, "the poll bounds it, and nothing else was waited for"

    asyncio.run(main())


@pytest.mark.parametrize("prepare", WAKES, ids=lambda prepare: prepare.__name__)
def test_c07_a_listener_that_hears_nothing_any_more_listens_anew_and_looks_at_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: SideLog, prepare: Prepare
) -> None:
    """With no poll to help: what came while the listener was deaf is found, and so is what comes later."""
    monkeypatch.setattr(listener, "HEARTBEAT_S", 0.3)

    async def main() -> None:
        async with _deaf_worker(prepare, tmp_path / "gate", poll_s=LONG_S) as act:
            await becomes(await act(), "it was found")
            later = await act.app.start("one_step", "later")
            await becomes(_has_ended(later), "what came since then was found")

    asyncio.run(main())


# -- the worker ----------------------------------------------------------------------------------------------


class _Deafened:
    """What is to be noticed by a worker that is deaf, and another app on its store."""

    def __init__(self, app: App, act: Act) -> None:
        self.app = app
        self._act = act

    async def __call__(self) -> Done:
        return await self._act()


@asynccontextmanager
async def _deaf_worker(prepare: Prepare, gate: Path, *, poll_s: float) -> AsyncIterator[_Deafened]:
    """A worker that claims nothing at the moment, and whose listener has just gone deaf."""
    server = postgres.shared()
    url = server.fresh_url()
    async with app_on(url) as other, proxy(server.directory / f".s.PGSQL.{server.port}") as between:
        await other.runs()
        undo = listen_by_way_of(between.port)
        try:
            async with app_on(url) as app, app.worker(poll_s=poll_s) as worker:
                act = await prepare(other, gate)
                await becomes(lambda: _waits_for_a_hint(worker), "it waits for a hint")
                assert len(between) == 1, "one connection listens"
                between.swallow()
                yield _Deafened(other, act)
                gate.touch()
        finally:
            undo()


def _has_ended(handle: Handle[object]) -> Done:
    async def look() -> bool:
        return (await handle.status()).ended_at is not None

    return look


async def _parked(handle: Handle[object]) -> Handle[object]:
    async def look() -> bool:
        return (await handle.status()).state is RunState.WAITING

    await becomes(look, f"{handle.run_id} is parked")
    return handle


async def _question(app: App, handle: Handle[object]) -> str | None:
    found = await app.interrupts(run_id=handle.run_id)
    return found[0].id if found else None


async def _waits_for_a_hint(worker: Worker) -> bool:
    """It has said that it is idle, and has looked once more since."""
    tenure = worker._tenure
    return tenure is not None and tenure.claimer._idle and not tenure.claimer._settling
