"""Lingering: a run for which one of several things has come stays for the next, as long as that is worth it."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import Any

import pytest

import perdure
from perdure.runtime.parking import Parking
from tests.runtime.shapes import ask
from tests.runtime.world import asked, fresh_app, keys_of, parked, until, working

LONG_S = 10.0


@pytest.fixture(autouse=True)
def _coming_back_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Parking.__init__

    def costly(self: Parking, at: Any) -> None:
        original(self, at)
        self.return_s = LONG_S

    monkeypatch.setattr(Parking, "__init__", costly)


def test_what_comes_close_behind_finds_the_run_in_memory() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        return list(await asyncio.gather(*(ask(name) for name in "abcd")))

    async def main() -> list[Any]:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)  # nothing has come yet: it does not linger
            questions = await asked(app, handle, 4)
            for name in "ab":
                await app.resume(questions[name], name)
                await until(functools.partial(_is_recorded, handle, name), f"{name} is taken")
            assert (await handle.status()).attempt == 2
            for name in "cd":
                await app.resume(questions[name], name)
            result: list[Any] = await handle.result(timeout=20)
            return result

    assert asyncio.run(main()) == ["a", "b", "c", "d"]


def test_a_run_that_waits_for_one_thing_does_not_linger() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        return [await ask(name) for name in "ab"]

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            began = time.monotonic()
            await app.resume((await asked(app, handle))["a"], "a")
            await until(lambda: _is_recorded(handle, "a"), "a is taken")
            await parked(handle, worker)
            assert time.monotonic() - began < LONG_S / 2
            await app.resume((await asked(app, handle))["b"], "b")
            assert await handle.result(timeout=20) == ["a", "b"]

    asyncio.run(main())


def test_a_limit_around_it_is_no_second_thing() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        async with perdure.timeout("1h"):
            return [await ask(name) for name in "ab"]

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            began = time.monotonic()
            await app.resume((await asked(app, handle))["a"], "a")
            await until(lambda: _is_recorded(handle, "a"), "a is taken")
            await parked(handle, worker)
            assert time.monotonic() - began < LONG_S / 2
            await handle.cancel()

    asyncio.run(main())


def test_a_worker_that_drains_does_not_wait_for_a_run_that_lingers() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        return list(await asyncio.gather(ask("a"), ask("b"), perdure.sleep(3600)))

    async def main() -> str:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                handle = await app.start(agent)
                await parked(handle, worker)
                await app.resume((await asked(app, handle, 2))["a"], "a")
                await until(lambda: _is_recorded(handle, "a"), "a is taken")
                began = time.monotonic()
            assert time.monotonic() - began < LONG_S / 2
            return (await handle.status()).state

    assert asyncio.run(main()) in ("queued", "waiting")


async def _is_recorded(handle: Any, name: str) -> bool:
    return name in {key.rpartition("/")[2] for key in await keys_of(handle)}
