"""Parking: what a run is before it and after it, and that nothing of it is left meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

import perdure
from perdure import Handle, TimedOut, Unwind
from perdure.core.records import InterruptState
from perdure.runtime.superstep import SuperStep
from tests.runtime import shapes
from tests.runtime.shapes import SHAPES, Shape, ask, mark
from tests.runtime.world import asked, crash, fresh_app, idle, keys_of, parked, until, working


async def answered_in_turn(app: Any, handle: Handle[Any], shape: Shape) -> Any:
    """The run's result, its questions answered one after the other, each when it is there."""
    for name in shape.answers:
        await app.resume((await asked_for(app, handle, name))[name], name)
    return await handle.result(timeout=20)


async def asked_for(app: Any, handle: Handle[Any], name: str) -> dict[str, str]:
    found: dict[str, str] = {}

    async def is_there() -> bool:
        found.update({each.name: each.id for each in await app.interrupts(run_id=handle.run_id)})
        return name in found

    await until(is_there, f"{handle.run_id} asks {name}")
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_run_that_parks_records_what_one_records_that_never_does(
    shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app()
    agent = app.agent(shape.agent)

    async def main() -> tuple[Any, list[str], int]:
        async with working(app):
            handle = await app.start(agent)
            result = await answered_in_turn(app, handle, shape)
            return result, sorted(await keys_of(handle)), (await handle.status()).attempt

    result, keys, claims = asyncio.run(main())
    assert claims > 1
    monkeypatch.setattr(SuperStep, "_at_rest", lambda self: None)
    assert asyncio.run(main()) == (result, keys, 1)


# -- nothing is left -------------------------------------------------------------------------------------------


class Thing:
    """Something that an agent has in its hands."""


def test_nothing_of_a_parked_run_is_left_in_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    app = fresh_app()
    things: list[weakref.ref[Thing]] = []

    async def holds(name: str) -> Any:
        thing = Thing()
        things.append(weakref.ref(thing))
        answer = await ask(name)
        return answer, thing is not None

    @app.agent
    async def agent() -> list[Any]:
        gathering = asyncio.gather(holds("a"), asyncio.shield(holds("b")))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(holds("c")), group.create_task(asyncio.wait_for(holds("d"), None))]
        left = asyncio.create_task(holds("e"))
        await asyncio.wait([*tasks, left])
        return list(await gathering)

    async def main() -> None:
        async with working(app) as worker:
            before = asyncio.all_tasks()
            handle = await app.start(agent)
            await parked(handle, worker)

            async def is_gone() -> bool:
                gc.collect()
                return not any(thing() for thing in things) and asyncio.all_tasks() <= before

            await until(is_gone, "its objects and its tasks are gone")
            assert len(things) == 4
            assert not worker._tenure._tasks

    with caplog.at_level(logging.DEBUG):
        asyncio.run(main())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_hundred_runs_parked_one_after_the_other_leave_nothing() -> None:
    app = fresh_app()
    things: list[weakref.ref[Thing]] = []

    @app.agent
    async def agent() -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        await asyncio.gather(perdure.interrupt(), perdure.receive(), perdure.sleep(3600))
        assert thing

    async def main() -> None:
        async with working(app, concurrency=3) as worker:
            for handle in [await app.start(agent) for _ in range(100)]:
                await parked(handle)
            await until(lambda: _is(worker.running == 0), "all are parked")
            gc.collect()
            assert len(things) == 100
            assert not any(thing() for thing in things)

    asyncio.run(main())


async def _is(value: bool) -> bool:
    return value


# -- unwinding ---------------------------------------------------------------------------------------------------


def test_no_verb_acts_while_a_parked_run_is_unwound() -> None:
    app = fresh_app()
    refused: dict[str, str] = {}

    @app.agent
    async def child() -> None: ...

    async def refuses() -> None:
        at = await perdure.start(child) if refused is None else None
        assert at is None
        verbs: dict[str, Any] = {
            "step": lambda: mark("no"),
            "interrupt": lambda: perdure.interrupt(name="no"),
            "sleep": lambda: perdure.sleep(0),
            "sleep_until": lambda: perdure.sleep_until("2020-01-01T00:00+00:00"),
            "receive": lambda: perdure.receive(),
            "send": lambda: perdure.send(perdure.current().thread_id, "no"),
            "start": lambda: perdure.start(child),
            "call": lambda: perdure.call(child),
            "timeout": lambda: perdure.timeout(1).__aenter__(),
            "now": perdure.now,
            "random": perdure.random,
            "uuid4": perdure.uuid4,
        }
        for name, verb in verbs.items():
            try:
                made = verb()
                if asyncio.iscoroutine(made):
                    await made
                refused[name] = "acted"
            except BaseException as error:
                refused[name] = type(error).__name__

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[None]:
        try:
            yield
        finally:
            if not refused:
                await refuses()

    @app.agent
    async def agent() -> str:
        async with around():
            return str(await perdure.interrupt(name="q"))

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert set(refused.values()) == {"Unwind"}
            assert len(refused) == 12
            assert await keys_of(handle) == []
            assert list(await asked(app, handle)) == ["q"]
            assert [run.agent for run in await app.runs()] == ["agent"]
            assert await app.thread(handle.thread_id).mailbox() == []
            store = (await app._client()).store
            assert [wait.key for wait in await store.waits([handle._id])] == ["q"]
            await app.resume(handle.thread_id, "yes")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "yes"


def test_an_agent_that_catches_everything_is_parked_all_the_same() -> None:
    app = fresh_app()
    caught: list[str] = []

    @app.agent
    async def agent() -> str:
        try:
            return str(await perdure.interrupt())
        except BaseException as error:
            caught.append(type(error).__name__)
            return "given up"

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "answer"
    assert caught == ["Unwind"]


def test_except_exception_and_except_cancelled_do_not_see_a_parking() -> None:
    app = fresh_app()
    seen: list[str] = []

    async def asks(name: str) -> str:
        try:
            return str(await perdure.interrupt(name=name))
        except Exception as error:
            seen.append(type(error).__name__)
            raise
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(asks("a"), asyncio.create_task(asks("b")), asyncio.shield(asks("c"))))

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            for name in "bca":
                await parked(handle, worker)
                await app.resume((await asked(app, handle))[name], name)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert seen == []


def test_cleaning_up_may_take_a_moment_while_a_parked_run_is_unwound() -> None:
    app = fresh_app()
    closed: list[str] = []

    @app.agent
    async def agent() -> str:
        try:
            return str(await perdure.interrupt())
        finally:
            await asyncio.get_running_loop().run_in_executor(None, closed.append, "closed")

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert closed == ["closed"]
            await app.resume(handle.thread_id, "answer")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "answer"
    assert closed == ["closed"] * 2


# -- the same again and again ------------------------------------------------------------------------------------


def test_a_question_in_a_loop_needs_one_answer_each_round_and_may_be_parked_200_times() -> None:
    app = fresh_app()
    shapes.begun.clear()

    @app.agent
    async def agent() -> list[int]:
        answers = []
        for number in range(200):
            answers.append(await perdure.interrupt(number))
            await mark(f"round {number}")
        return answers

    async def main() -> list[int]:
        async with working(app) as worker:
            handle = await app.start(agent)
            for number in range(200):
                await parked(handle, worker)
                (question,) = await app.interrupts(run_id=handle.run_id)
                assert question.payload == number
                await app.resume(question.id, number)
            assert (await handle.status()).attempt <= 201
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == list(range(200))
    assert shapes.begun == [f"round {number}" for number in range(200)]


def test_a_cancelled_branch_withdraws_its_question_and_asks_it_again_on_replay() -> None:
    app = fresh_app()

    async def first_of(*names: str) -> str:
        tasks = [asyncio.create_task(perdure.interrupt(name=name)) for name in names]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        return str(done.pop().result())

    @app.agent
    async def agent() -> list[str]:
        return [await first_of("a", "b"), await first_of("c", "d"), str(await perdure.interrupt(name="e"))]

    async def states(handle: Handle[Any]) -> dict[str, InterruptState]:
        return {each.name: each.state for each in await app.interrupts(run_id=handle.run_id, state=None)}

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            for name, others in [("b", ""), ("c", "a"), ("e", "ad")]:
                await parked(handle, worker)
                found = await states(handle)
                assert [found[other] for other in others] == [InterruptState.WITHDRAWN for _ in others]
                await app.resume((await asked(app, handle))[name], name)
            result: list[str] = await handle.result(timeout=20)
            assert sorted(await states(handle)) == list("abcde")
            return result

    assert asyncio.run(main()) == ["b", "c", "e"]


# -- crashes -------------------------------------------------------------------------------------------------------


class Stop:
    """A place at which the first that comes stands still, so that a test can crash it there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = False

    async def pass_by(self) -> None:
        if not self.open:
            self.reached.set()
            await asyncio.Event().wait()


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
    events: list[asyncio.Event] = []

    @app.agent
    async def only_waits() -> Any:
        return await perdure.interrupt()

    @app.agent
    async def works_as_well() -> Any:
        waiting = asyncio.create_task(perdure.interrupt())
        await (events.pop() if events else asyncio.Event()).wait() if len(events) == 1 else None
        return await waiting

    async def main() -> list[Any]:
        events.append(asyncio.Event())
        async with app:
            handles = [await app.start(only_waits), await app.start(works_as_well)]
            async with app.worker(poll_s=0.05):
                await parked(handles[0])
                await asked(app, handles[1])
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


# -- many ----------------------------------------------------------------------------------------------------------


def test_c25_many_runs_that_wait_for_children_and_messages_need_few_slots() -> None:
    app = fresh_app()
    most: list[int] = [0]

    @app.agent
    async def child(number: int) -> int:
        return number + int(await perdure.receive(int))

    @app.agent
    async def parent(number: int) -> int:
        return int(await perdure.call(child, number, thread_id=f"child-{number}")) * 2

    async def main() -> list[int]:
        async with working(app, concurrency=5) as worker:
            handles = [await app.start(parent, number) for number in range(250)]

            async def all_wait() -> bool:
                for _ in range(100):
                    most[0] = max(most[0], worker.running)
                    await idle(5)
                return len(await app.runs(state="waiting", limit=1000)) == 500

            await until(all_wait, "250 parents and their children wait")
            for number in range(250):
                await app.send(f"child-{number}", 1)
            return [await handle.result(timeout=20) for handle in handles]

    assert asyncio.run(main()) == [2 * (number + 1) for number in range(250)]
    assert most[0] <= 5


def test_unwind_is_no_exception_that_an_agent_could_catch_by_accident() -> None:
    assert not issubclass(Unwind, Exception)
