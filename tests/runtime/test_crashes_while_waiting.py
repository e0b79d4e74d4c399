"""Crashes and shutdowns while a run waits: nothing is lost, nothing comes twice, and every answer reaches its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Handle, TimedOut
from tests.runtime.acting import Stop
from tests.runtime.shapes import ask
from tests.runtime.world import asked, crash, fresh_app, idle, parked, until, working


async def _is(value: bool) -> bool:
    return value


def test_c20_a_time_out_is_recorded_and_is_no_null_answer() -> None:
    app = fresh_app()
    stop = Stop()

    @perdure.step
    async def work() -> str:
        await stop.pass_by()
        return "worked"

    @app.agent
    async def agent() -> list[Any]:
        found: list[Any] = []
        for limit in (0.02, 60, 60):
            try:
                found.append(await perdure.interrupt(name="q", timeout=limit))
            except TimedOut as error:
                found.append(type(error).__name__)
            found.append(await work())
        return found

    async def main() -> list[Any]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await stop.reached.wait()
            await crash(app, worker)
            stop.open = True
            await parked(handle, worker)
            await app.resume(handle.thread_id, None)
            second = await asked_again(app, handle)
            await app.resume(second, "something")
            result: list[Any] = await handle.result(timeout=20)
            states = [each.state for each in await app.interrupts(run_id=handle.run_id, state=None)]
            assert states == ["expired", "answered", "answered"]
            return result

    assert asyncio.run(main()) == ["TimedOut", "worked", None, "worked", "something", "worked"]


async def asked_again(app: Any, handle: Handle[Any]) -> str:
    """The id of the run's next open question, once it is there."""
    found: list[str] = []

    async def is_there() -> bool:
        found[:] = [each.id for each in await app.interrupts(run_id=handle.run_id)]
        return bool(found)

    await until(is_there, "another question")
    return found[0]


def test_c21_two_answers_in_reverse_order_with_a_crash_between_reach_their_own_questions() -> None:
    app = fresh_app()
    stop = Stop()
    finished: list[str] = []

    @perdure.step
    async def use(what: str) -> str:
        await stop.pass_by()
        finished.append(what)
        return what

    async def branch(name: str) -> str:
        return await use(f"{name}={await perdure.interrupt(name=name)}")

    @app.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(branch("a"), branch("b")))

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            questions = await asked(app, handle, 2)
            await app.resume(questions["b"], "second")
            await stop.reached.wait()
            await crash(app, worker)
            stop.open = True
            await parked(handle, worker)
            assert finished == ["b=second"]
            assert await asked(app, handle) == {"a": questions["a"]}
            await app.resume(questions["a"], "first")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a=first", "b=second"]
    assert finished == ["b=second", "a=first"]


def test_c09_a_run_that_waits_for_a_person_survives_a_graceful_shutdown() -> None:
    app = fresh_app()
    beside: list[asyncio.Event] = []
    draining: list[bool] = []

    @app.agent
    async def only_waits() -> Any:
        return await perdure.interrupt()

    @app.agent
    async def works_as_well() -> Any:
        waiting = asyncio.create_task(perdure.interrupt())
        if not draining:
            await beside[0].wait()
        return await waiting

    async def main() -> list[Any]:
        beside.append(asyncio.Event())
        async with app:
            handles = [await app.start(only_waits), await app.start(works_as_well)]
            async with app.worker(poll_s=0.05):
                await parked(handles[0])
                await asked(app, handles[1])
                draining.append(True)
            assert [(await handle.status()).state for handle in handles] == ["waiting", "queued"]
            assert len(await app.interrupts()) == 2
            async with app.worker(poll_s=0.05):
                for handle in handles:
                    await app.resume(handle.thread_id, "yes")
                return [await handle.result(timeout=20) for handle in handles]

    assert asyncio.run(main()) == ["yes", "yes"]


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_shutdown_at_any_moment_of_a_parking_loses_nothing(turns: int) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        return list(await asyncio.gather(ask("a"), ask("b")))

    async def main() -> Any:
        async with app:
            async with app.worker(poll_s=0.05):
                handle = await app.start(agent)
                await idle(turns)
            assert (await handle.status()).state in ("queued", "waiting")
            async with app.worker(poll_s=0.05) as worker:
                await parked(handle, worker)
                for name, question in (await asked(app, handle, 2)).items():
                    await app.resume(question, name)
                return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a", "b"]


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_crash_at_any_moment_of_a_parking_loses_nothing(turns: int) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[Any]:
        return list(await asyncio.gather(ask("a"), ask("b")))

    async def main() -> Any:
        async with working(app) as worker:
            handle = await app.start(agent)
            await idle(turns)
            await crash(app, worker)
            await until(lambda: _is(worker.id is not None), "it has a new identity")
            await parked(handle, worker)
            for name, question in (await asked(app, handle, 2)).items():
                await app.resume(question, name)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a", "b"]
