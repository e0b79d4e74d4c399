"""Parking: what a run is before it and after it, and that nothing of it is left meanwhile."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import Any

import pytest

import perdure
from perdure import Handle
from perdure.core.records import InterruptState
from perdure.runtime.parking import Parking
from tests.runtime import shapes
from tests.runtime.shapes import SHAPES, Shape, ask, mark
from tests.runtime.world import asked, fresh_app, idle, keys_of, parked, passes, until, working


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
    monkeypatch.setattr(Parking, "at_rest", lambda self: None)
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


def test_a_parked_run_leaves_no_cycles_behind_its_memory_is_free_at_once() -> None:
    app = fresh_app()

    @app.agent
    async def sleeper() -> None:
        await perdure.sleep(3600)

    @app.agent
    async def asker() -> None:
        await perdure.interrupt()

    @app.agent
    async def reader() -> None:
        await perdure.receive()

    @app.agent
    async def parent() -> None:
        await perdure.call(sleeper)

    async def main() -> list[object]:
        async with working(app) as worker:
            for agent in (sleeper, asker, reader, parent) * 2:  # what is made once is made in the first round
                await parked(await app.start(agent), worker)
            gc.collect()
            gc.disable()
            for agent in (sleeper, asker, reader, parent):
                await parked(await app.start(agent), worker)
            await until(lambda: _is(worker.running == 0), "all are parked")
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return [each for each in gc.garbage if type(each).__module__.startswith("perdure.runtime")]

    try:
        assert asyncio.run(main()) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def _is(value: bool) -> bool:
    return value


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


def test_what_a_run_did_before_it_first_rested_is_not_what_coming_back_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()
    costs: list[float] = []
    original = Parking._worth_s

    def worth_s(parking: Parking) -> float:
        found = original(parking)
        assert parking.return_s is not None
        costs.append(parking.return_s)
        return found

    @perdure.step
    async def works() -> None:
        await passes(0.2)

    @app.agent
    async def agent() -> None:
        await works()
        await perdure.interrupt()

    async def main() -> None:
        monkeypatch.setattr(Parking, "_worth_s", worth_s)
        async with working(app) as worker:
            await parked(await app.start(agent), worker)

    asyncio.run(main())
    assert costs[0] < 0.1


def test_a_parent_that_calls_a_few_children_at_a_time_holds_no_slot_meanwhile() -> None:
    app = fresh_app()

    @app.agent
    async def child(number: int) -> int:
        await mark("child")
        return number

    @app.agent
    async def parent() -> int:
        at_a_time = asyncio.Semaphore(3)

        async def one(number: int) -> int:
            async with at_a_time:
                return int(await perdure.call(child, number))

        return sum(await asyncio.gather(*map(one, range(10))))

    async def main() -> int:
        async with working(app, concurrency=1):
            return await (await app.start(parent)).result(timeout=20)

    assert asyncio.run(main()) == 45
