"""Rest: which runs can be parked. Every way of waiting for what is durable, and none of waiting for anything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure.core.changes import EndRun, OpenWait
from perdure.core.codec import codec_for
from perdure.core.records import RunState, WaitKind
from perdure.core.requests import ClaimRequest, NewWorker
from perdure.runtime.settings import deployment_name
from tests.runtime import shapes
from tests.runtime.shapes import SHAPES, Shape, ask, mark
from tests.runtime.world import asked, fresh_app, idle, parked, working

Outside = Callable[[], Awaitable[Any]]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_run_that_waits_for_answers_is_parked_in_this_shape(shape: Shape) -> None:
    app = fresh_app()
    agent = app.agent(shape.agent)
    shapes.begun.clear()

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            for name in shape.answers:
                await parked(handle, worker)
                await app.resume((await asked(app, handle))[name], name)
            assert await handle.result(timeout=20) == shape.result
            assert (await handle.status()).attempt == 1 + len(shape.answers)

    asyncio.run(main())
    assert len(set(shapes.begun)) == len(shapes.begun), "a step that is on record was run again"


def test_two_questions_a_timer_and_a_child_park_together_and_wake_one_by_one() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        return str(await perdure.interrupt(name="child"))

    async def timed() -> str:
        await perdure.sleep(0.3)
        return "slept"

    @app.agent
    async def agent() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            waits = [ask("one"), ask("two"), timed(), perdure.call(child, thread_id="child")]
            tasks = [group.create_task(each) for each in waits]
        return [task.result() for task in tasks]

    async def main() -> list[Any]:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            open_ones = await asked(app, handle, 2)
            await app.resume(open_ones["two"], 2)
            await parked(handle, worker)
            await app.resume("child", "grown")
            await parked(handle, worker)
            await app.resume(open_ones["one"], 1)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == [1, 2, "slept", "grown"]


# -- what keeps a run in memory ------------------------------------------------------------------------------


class World:
    """What code outside of the runs holds in its hands."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(0)
        self.condition = asyncio.Condition()
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.callbacks: list[Callable[[], None]] = []


Raw = Callable[[World], Awaitable[Any]]


@perdure.step
async def body(world_event: str) -> str:
    await _worlds[-1].event.wait()
    return "body"


@perdure.step(cpu="thread")
def body_in_a_thread() -> str:
    asyncio.run_coroutine_threadsafe(_worlds[-1].event.wait(), _loops[-1]).result(20)
    return "thread"


_worlds: list[World] = []
_loops: list[asyncio.AbstractEventLoop] = []


async def sleeps(world: World) -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))  # work that is cancelled when the world moves on
    try:
        await asyncio.wait([task, asyncio.ensure_future(world.event.wait())], return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()


async def an_event(world: World) -> None:
    await world.event.wait()


async def a_lock(world: World) -> None:
    async with world.lock:
        pass


async def a_semaphore(world: World) -> None:
    async with world.semaphore:
        pass


async def a_condition(world: World) -> None:
    async with world.condition:
        await world.condition.wait()


async def a_queue(world: World) -> None:
    await world.queue.get()


async def an_event_that_is_handed_out(world: World) -> None:
    event = asyncio.Event()
    world.callbacks.append(event.set)
    await event.wait()


async def a_future(world: World) -> None:
    await world.future


async def a_shielded_future(world: World) -> None:
    await asyncio.shield(world.future)


async def a_gathered_future(world: World) -> None:
    await asyncio.gather(world.future, mark("beside"))


async def a_waited_for_future(world: World) -> None:
    await asyncio.wait([world.future, asyncio.ensure_future(mark("beside"))])


async def a_body(world: World) -> None:
    await body("x")


async def a_body_in_a_thread(world: World) -> None:
    await body_in_a_thread()


RAW: list[Raw] = [
    sleeps, an_event, a_lock, a_semaphore, a_condition, a_queue, an_event_that_is_handed_out, a_future,
    a_shielded_future, a_gathered_future, a_waited_for_future, a_body, a_body_in_a_thread,
]  # fmt: skip


@contextlib.asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    """A world that somebody else keeps busy until the block ends."""
    world = World()
    _worlds.append(world)
    _loops.append(asyncio.get_running_loop())
    await world.lock.acquire()
    yield world
    world.event.set()
    world.lock.release()
    world.semaphore.release()
    async with world.condition:
        world.condition.notify_all()
    world.queue.put_nowait("something")
    world.future.set_result("something")
    for callback in world.callbacks:
        callback()


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw.__name__)
@pytest.mark.parametrize("raw_first", [True, False], ids=["raw first", "raw last"])
def test_a_run_that_waits_for_something_else_as_well_stays_and_hears_its_answers(raw: Raw, raw_first: bool) -> None:
    app = fresh_app()
    answered: list[Any] = []

    async def asks() -> None:
        answered.append(await ask("a"))
        answered.append(await ask("b"))

    @app.agent
    async def agent() -> list[Any]:
        world = _worlds[-1]
        branches = [mark("the world has moved on") if world.event.is_set() else raw(world), asks()]
        await asyncio.gather(*(branches if raw_first else reversed(branches)))
        return [*answered, await ask("c")]

    async def main() -> list[Any]:
        async with working(app, poll_s=30.0) as worker:
            async with a_world():
                handle = await app.start(agent)
                for name in "ab":
                    question = (await asked(app, handle))[name]
                    await idle()
                    assert ((await handle.status()).state, worker.running) == ("running", 1)
                    await app.resume(question, name)
                await idle()
                assert (await handle.status()).attempt == 1
            await parked(handle, worker)
            await app.resume(handle.thread_id, "c")
            return await handle.result(timeout=20)

    assert asyncio.run(main())[-3:] == ["a", "b", "c"]


def test_a_run_is_parked_as_soon_as_the_last_of_the_world_has_come_to_it() -> None:
    app = fresh_app()
    future: list[asyncio.Future[str]] = []

    @app.agent
    async def agent() -> list[Any]:
        return list(await asyncio.gather(ask("a"), future[0]))

    async def main() -> list[Any]:
        future.append(asyncio.get_running_loop().create_future())
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await asked(app, handle)
            await idle()
            assert worker.running == 1
            future[0].set_result("world")
            await parked(handle, worker)
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["answer", "world"]


def test_a_body_that_waits_for_a_task_of_its_own_run_keeps_it_in_memory() -> None:
    app = fresh_app()
    bodies: list[str] = []

    @app.agent
    async def agent() -> str:
        task = asyncio.create_task(ask("a"))

        @perdure.step
        async def uses() -> str:
            bodies.append("begun")
            return f"used {await task}"

        return await uses()

    async def main() -> str:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            question = (await asked(app, handle))["a"]
            await idle()
            assert worker.running == 1
            await app.resume(question, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "used answer"
    assert bodies == ["begun"]


def test_what_comes_before_its_wait_is_on_disk_is_noticed_without_a_poll() -> None:
    app = fresh_app()
    leave: list[asyncio.Event] = []

    @app.agent
    async def child() -> str:
        return "grown"

    @app.agent
    async def agent() -> str:
        beside = asyncio.create_task(leave[0].wait())
        grown = str(await perdure.call(child, queue="other"))
        leave[0].set()
        await beside
        return grown

    async def main() -> str:
        leave.append(asyncio.Event())
        async with working(app, poll_s=30.0) as worker:
            store = worker._tenure.store
            commit = store.commit

            async def late(number: int, changes: Any) -> Any:
                waits = [each for each in changes if isinstance(each, OpenWait) and each.kind is WaitKind.RUN]
                if waits:  # the child ends by another worker's hand, while this one's commit is under way
                    held_back = [each for each in changes if each.run == waits[0].run]
                    await commit(number, [each for each in changes if each not in held_back])
                    await _end(store, waits[0].target)
                    changes = held_back
                return await commit(number, changes)

            store.commit = late
            handle = await app.start(agent)
            result: str = await handle.result(timeout=20)
            assert (await handle.status()).attempt == 1
            return result

    assert asyncio.run(main()) == "grown"


async def _end(store: Any, run: int | None) -> None:
    """Complete a run in another worker's name."""
    here = deployment_name()
    other = await store.reserve_ids(1)
    await store.register(NewWorker(other, "other", "host", 1, here, 10_000_000))
    (claimed,) = await store.claim(ClaimRequest(other, ("child",), ("other",), here, 1))
    assert claimed.run == run
    payload = codec_for(str).encode("grown")
    end = EndRun(claimed.run, claimed.fence, claimed.thread, 2, RunState.COMPLETED, payload, None, 0)
    await store.commit(other, [end])


# -- timers of the event loop ----------------------------------------------------------------------------------


async def a_timeout() -> Any:
    async with asyncio.timeout(3600):
        return await ask("a")


async def a_timeout_over_tasks() -> Any:
    async with asyncio.timeout(3600):
        return (await asyncio.gather(ask("a")))[0]


async def a_timeout_on_a_stack() -> Any:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(3600))
        return await ask("a")


@contextlib.asynccontextmanager
async def _limited() -> AsyncIterator[None]:
    async with asyncio.timeout(3600):
        yield


async def a_timeout_in_a_context_manager() -> Any:
    async with _limited():
        return await ask("a")


async def a_timeout_in_a_context_manager_on_a_stack() -> Any:
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_limited())
        return await ask("a")


async def a_timeout_in_a_generator() -> Any:
    async def stream() -> AsyncIterator[Any]:
        async with asyncio.timeout(3600):
            yield 1
            yield 2

    async with contextlib.aclosing(stream()) as numbers:
        await anext(numbers)
        return await ask("a")


async def waits_for() -> Any:
    return await asyncio.wait_for(ask("a"), 3600)


async def waits_with_a_limit() -> Any:
    done, _ = await asyncio.wait([asyncio.ensure_future(ask("a"))], timeout=3600)
    return done.pop().result()


async def completes_with_a_limit() -> Any:
    (answer,) = [await each for each in asyncio.as_completed([ask("a")], timeout=3600)]
    return answer


async def a_timer_in_a_variable() -> Any:
    timer = asyncio.get_running_loop().call_later(3600, print)
    try:
        return await ask("a")
    finally:
        timer.cancel()


TIMED = [
    a_timeout, a_timeout_over_tasks, a_timeout_on_a_stack, a_timeout_in_a_context_manager,
    a_timeout_in_a_context_manager_on_a_stack, a_timeout_in_a_generator, waits_for, waits_with_a_limit,
    completes_with_a_limit, a_timer_in_a_variable,
]  # fmt: skip


@pytest.mark.parametrize("timed", TIMED, ids=lambda timed: timed.__name__)
def test_a_run_under_a_timer_of_the_event_loop_stays_and_hears_its_answer(timed: Callable[[], Awaitable[Any]]) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        return await timed()

    async def main() -> Any:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            question = (await asked(app, handle))["a"]
            await idle()
            assert ((await handle.status()).state, worker.running) == ("running", 1)
            await app.resume(question, "answer")
            result = await handle.result(timeout=20)
            assert (await handle.status()).attempt == 1
            return result

    assert asyncio.run(main()) == "answer"


def test_a_timer_of_the_event_loop_that_has_been_left_is_in_nobodys_way() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        async with asyncio.timeout(3600) as limit:
            await mark("quick")
        assert not limit.expired()
        return await ask("a")

    async def main() -> Any:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "answer"
