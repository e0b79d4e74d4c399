"""Edges of waiting: who else has a part in what a run waits on, and what its errors name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import App, NotFound, RunCancelled, RunFailed, UsageError, step
from tests.runtime.world import asked, fresh_app, parked, until, working


@pytest.mark.parametrize("how", ["closure", "method"])
def test_an_event_that_somebody_outside_can_set_keeps_the_run_in_memory(how: str) -> None:
    app = fresh_app()
    outside: list[Callable[[], None]] = []

    @app.agent
    async def listen() -> str:
        event = asyncio.Event()
        set_it = event.set
        outside.append(set_it if how == "method" else lambda: event.set())
        asking = asyncio.create_task(perdure.interrupt("or this"))
        await event.wait()
        asking.cancel()
        return "heard"

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(listen)
            await until(lambda: _asked(app), "it asks")
            assert worker.running == 1
            outside[0]()
            assert await handle.result(timeout=10) == "heard"

    asyncio.run(main())


async def _asked(app: App) -> bool:
    return bool(await app.interrupts())


def test_a_semaphore_that_nested_functions_share_lets_the_run_be_parked() -> None:
    app = fresh_app()

    @app.agent
    async def ask_one_by_one() -> list[int]:
        one = asyncio.Semaphore(1)

        async def ask(number: int) -> int:
            async with one:
                await perdure.sleep(0.01)
                return number

        return await asyncio.gather(*(ask(number) for number in range(3)))

    async def main() -> None:
        async with working(app):
            handle = await app.start(ask_one_by_one)
            assert await handle.result(timeout=10) == [0, 1, 2]
            assert (await handle.status()).attempt > 1, "it was parked"

    asyncio.run(main())


def test_errors_of_verbs_name_what_they_are_about_live_and_on_replay() -> None:
    app = fresh_app()
    seen: list[tuple[str, str, str]] = []

    @app.agent
    async def fail() -> None:
        raise ValueError("boom")

    @app.agent
    async def parent() -> None:
        child = await perdure.start(fail)
        try:
            await child
        except RunFailed as error:
            assert (error.run_id, error.error.type, error.error.message) == (child.run_id, "ValueError", "boom")
        try:
            await perdure.send("nobody", 1)
        except NotFound as error:
            seen.append((error.thread_id, error.key, "replayed" if seen else "live"))
        await perdure.interrupt(name="q")

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(parent)
            question = (await asked(app, handle))["q"]
            await parked(handle, worker)
            await app.resume(question, None)
            await handle.result(timeout=10)
        assert seen == [("nobody", "send", "live"), ("nobody", "send", "replayed")]

    asyncio.run(main())


def test_a_child_on_its_parents_own_thread_is_refused() -> None:
    app = fresh_app()

    @app.agent
    async def again() -> str:
        try:
            await perdure.start(again, thread_id="t")
        except UsageError as error:
            return str(error)
        return "started"

    async def main() -> None:
        async with working(app):
            handle = await app.start(again, thread_id="t")
            assert "behind the run itself" in await handle.result(timeout=10)

    asyncio.run(main())


def test_a_branch_that_finds_a_message_in_anothers_hand_waits_for_it_in_memory() -> None:
    app = fresh_app()

    @app.agent
    async def two() -> list[str]:
        found = await asyncio.gather(perdure.receive(str), perdure.receive(str))
        return sorted(text[:3] for text in found)

    async def main() -> None:
        async with working(app):
            handle = await app.start(two, thread_id="t")
            await app.send("t", "one" * 20_000)
            await app.send("t", "two")
            assert await handle.result(timeout=10) == ["one", "two"]

    asyncio.run(main())


def test_a_limit_that_ran_out_before_leaves_the_cleaning_up_to_a_cancellation_after_it() -> None:
    app = fresh_app()
    done: list[str] = []

    @step
    async def act(what: str) -> None:
        done.append(what)

    @app.agent
    async def trip() -> str:
        try:
            async with perdure.timeout(0.01):
                await perdure.interrupt("never answered")
        except TimeoutError:
            await act("limit")
        await act("book")
        try:
            await perdure.interrupt("pay?", name="pay")
        except asyncio.CancelledError:
            await act("give back")
            raise
        return "paid"

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(trip)
            await until(lambda: _asks(app, "pay"), "it asks to be paid")
            await until(lambda: _nothing_runs(worker), "it is parked")
            assert await handle.cancel("changed my mind") == "cancelled"
            with pytest.raises(RunCancelled):
                await handle.result(timeout=10)
        assert done == ["limit", "book", "give back"]

    asyncio.run(main())


async def _asks(app: App, name: str) -> bool:
    return any(question.name == name for question in await app.interrupts())


async def _nothing_runs(worker: Any) -> bool:
    return bool(worker.running == 0)


def test_nested_limits_that_ran_out_are_replayed_in_their_order() -> None:
    app = fresh_app()

    @app.agent
    async def nested() -> list[str]:
        seen = []
        try:
            async with perdure.timeout(0.15):
                try:
                    async with perdure.timeout(0.01):
                        await perdure.sleep("1h")
                except TimeoutError:
                    seen.append("inner")
                await perdure.sleep("1h")
        except TimeoutError:
            seen.append("outer")
        await perdure.sleep(0.01)
        return seen

    async def main() -> None:
        async with working(app):
            assert await (await app.start(nested)).result(timeout=10) == ["inner", "outer"]

    asyncio.run(main())
