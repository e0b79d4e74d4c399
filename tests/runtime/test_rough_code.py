"""User code that does what no manual foresees: on other threads, past its end, with exits and open generators."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import perdure
from perdure import NotFound, Retry, RunFailed, UsageError
from perdure.runtime import callables, group, tasks
from tests.runtime.world import fresh_app, result_of, until, working

QUICK = Retry(attempts=2, delay_s=0.001, jitter=0)


@perdure.step
async def look_up(topic: str) -> str:
    await asyncio.sleep(0)
    return topic


async def keys_of(handle: Any) -> list[str]:
    """The keys of its steps, in the order in which they were recorded."""
    return [row.key for row in await handle.history() if row.key]


def test_an_async_generator_left_open_moves_no_key_of_the_tasks_after_it() -> None:
    app = fresh_app()
    calls: list[int] = []

    async def stream() -> AsyncIterator[int]:
        for number in range(3):
            yield number
        await look_up("never")

    @app.agent(retry=QUICK)
    async def reads_a_little() -> list[str]:
        async for _ in stream():
            break
        await look_up("first")  # live it waits, and the loop closes the generator meanwhile; replayed it does not
        found = await asyncio.gather(look_up("a"), look_up("b"))
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("once more, from the log")
        return list(found)

    assert result_of(app, reads_a_little) == ["a", "b"]
    assert len(calls) == 2


def test_a_step_in_the_end_of_an_open_generator_has_a_key_of_its_own() -> None:
    app = fresh_app()

    async def stream() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await look_up("closing")
            closed.set()

    closed = asyncio.Event()

    @app.agent
    async def reads_a_little() -> None:
        async for _ in stream():
            break
        await asyncio.gather(look_up("a"))
        await closed.wait()

    async def main() -> None:
        async with working(app):
            handle = await app.start(reads_a_little)
            await handle.result(timeout=20)
            assert sorted(await keys_of(handle)) == ["#1/look_up", "1/look_up"]

    asyncio.run(main())


def _plain(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


def _around(inner: Callable[..., Any]) -> Callable[..., Any]:
    return lambda loop, coro, **options: inner(loop, coro, **options)


@pytest.mark.parametrize("composed", [False, True], ids=["instead", "around"])
def test_a_task_factory_that_somebody_sets_later_does_not_change_the_keys(composed: bool) -> None:
    app = fresh_app()

    @app.agent
    async def fans_out() -> list[str]:
        return list(await asyncio.gather(look_up("a"), look_up("b")))

    async def main() -> None:
        async with working(app):
            loop = asyncio.get_running_loop()
            theirs: Any = _around(loop.get_task_factory()) if composed else _plain  # type: ignore[arg-type]
            loop.set_task_factory(theirs)
            handle = await app.start(fans_out)
            assert await handle.result(timeout=20) == ["a", "b"]
            assert await keys_of(handle) == ["1/look_up", "2/look_up"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "act", [lambda: asyncio.run(look_up("x")), lambda: perdure.now()], ids=["a step", "another verb"]
)
def test_agent_code_on_another_thread_may_not_act(act: Callable[[], Any]) -> None:
    app = fresh_app()

    @app.agent
    async def goes_elsewhere() -> None:
        await asyncio.to_thread(act)

    @app.agent
    async def neighbour() -> str:
        return await look_up("fine")

    async def main() -> None:
        async with working(app):
            with pytest.raises(RunFailed, match=r"NotInRun.*another thread"):
                await (await app.start(goes_elsewhere)).result(timeout=20)
            assert await (await app.start(neighbour)).result(timeout=20) == "fine"

    asyncio.run(main())


@perdure.step
def parses_arguments() -> None:
    sys.exit(2)


@perdure.step
async def exits() -> None:
    sys.exit("enough")


def test_sys_exit_fails_its_own_run_and_nothing_else() -> None:
    app = fresh_app()

    @app.agent
    async def by_a_tool() -> None:
        await parses_arguments()

    @app.agent
    async def by_a_branch() -> None:
        await asyncio.gather(exits(), look_up("x"))

    @app.agent
    async def by_itself() -> None:
        sys.exit()

    @app.agent
    async def neighbour() -> str:
        return await look_up("fine")

    async def main() -> None:
        async with working(app):
            for agent in (by_a_tool, by_a_branch, by_itself):
                with pytest.raises(RunFailed, match=r"sys\.exit"):
                    await (await app.start(agent)).result(timeout=20)
            assert await (await app.start(neighbour)).result(timeout=20) == "fine"

    asyncio.run(main())


def test_bodies_that_hang_in_their_threads_take_nobody_elses_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callables, "THREADS_MAX", 2)
    app = fresh_app()
    released = threading.Event()

    @perdure.step(timeout=0.05, retry=1)
    def hangs(number: int) -> None:
        released.wait()

    @perdure.step
    def name_of_thread() -> str:
        return threading.current_thread().name

    @app.agent
    async def hangs_often() -> int:
        ends = await asyncio.gather(*(hangs(number) for number in range(4)), return_exceptions=True)
        return sum(isinstance(end, perdure.StepFailed) for end in ends)

    @app.agent
    async def neighbour() -> list[str]:
        return list(await asyncio.gather(*(name_of_thread() for _ in range(8))))

    async def main() -> None:
        async with working(app):
            assert await (await app.start(hangs_often)).result(timeout=20) == 4
            assert await (await app.start(neighbour)).result(timeout=20) == ["perdure-step"] * 8
            hung = [thread for thread in threading.enumerate() if thread.name == "perdure-step"]
        assert all(thread.daemon for thread in hung)  # the end of the process does not wait for them
        released.set()
        for thread in hung:
            await asyncio.to_thread(thread.join)

    asyncio.run(main())


@perdure.step(cpu="process", retry=QUICK)
def takes_its_process_along() -> None:
    os._exit(1)


@perdure.step(cpu="process")
def doubles(number: int) -> int:
    return 2 * number


def test_a_step_that_kills_its_process_fails_alone_and_the_next_gets_a_new_one() -> None:
    app = fresh_app()

    @app.agent
    async def kills() -> None:
        await takes_its_process_along()

    @app.agent
    async def computes() -> int:
        return await doubles(21)

    async def main() -> None:
        async with working(app):
            with pytest.raises(RunFailed, match=r"a process died.*tried 2 times"):
                await (await app.start(kills)).result(timeout=40)
            assert await (await app.start(computes)).result(timeout=40) == 42

    asyncio.run(main())


def test_an_agent_that_catches_everything_and_goes_on_cannot_keep_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    begun = asyncio.Event()
    released = asyncio.Event()

    @perdure.step
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.agent
    async def never_stops() -> None:
        while not released.is_set():
            try:
                await waits()
            except BaseException:
                continue

    async def main() -> None:
        async with app:
            handle = await app.start(never_stops)
            async with app.worker(poll_s=0.05, grace_s=0):
                await begun.wait()
            assert (await handle.status()).state == "queued"
        released.set()

    asyncio.run(main())


def test_results_that_wait_for_a_store_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "PENDING_BYTES_MAX", 100_000)
    app = fresh_app()
    bodies: list[int] = []
    gate = asyncio.Event()

    @perdure.step
    async def large(number: int) -> bytes:
        bodies.append(number)
        return bytes(10_000)

    @app.agent
    async def writes_much() -> int:
        for number in range(50):
            await large(number)
        return len(bodies)

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(writes_much)
            store = worker._store
            commit = store.commit

            async def when_it_may(*args: Any) -> Any:
                await gate.wait()
                return await commit(*args)

            store.commit = when_it_may
            await until(lambda: _true(len(bodies) >= 10), "it has filled what may wait")
            for _ in range(100):
                await asyncio.sleep(0)
            assert 10 <= len(bodies) <= 12
            gate.set()
            assert await handle.result(timeout=20) == 50

    asyncio.run(main())


async def _true(found: bool) -> bool:
    return found


def test_the_result_of_a_run_that_does_not_exist_is_not_waited_for() -> None:
    app = fresh_app()

    async def main() -> None:
        async with app:
            with pytest.raises(NotFound, match="no run r999 in memory://"):
                await app.handle("r999").result(timeout=20)

    asyncio.run(main())


def test_app_run_inside_a_running_loop_says_what_to_do_instead() -> None:
    app = fresh_app()

    @app.agent
    async def idle() -> None:
        return None

    async def main() -> None:
        with pytest.raises(UsageError, match="inside a running event loop"):
            app.run(idle)

    asyncio.run(main())


def test_an_agent_that_ignores_every_cancellation_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    begun = asyncio.Event()

    @app.agent
    async def waits_on() -> None:
        while True:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        async with app:
            handle = await app.start(waits_on)
            async with app.worker(poll_s=0.05, grace_s=0):
                await begun.wait()
            assert (await handle.status()).state == "queued"

    asyncio.run(main())  # it cancels what is left and waits for it
