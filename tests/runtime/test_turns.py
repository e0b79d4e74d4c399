"""A replay gives the code what is on record in the order in which it came, and nothing new begins before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import App, Handle, RunCancelled, TimedOut
from tests.runtime.acting import begun, mark
from tests.runtime.world import asked, fresh_app, keys_of, parked, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def is_asked_and_parked(app: App, handle: Handle[Any], worker: Any) -> str:
    """The id of its one question."""
    [question] = (await asked(app, handle)).values()
    await parked(handle, worker)
    return question


@perdure.step
async def number(of: int) -> int:
    return of


# -- interruptions ----------------------------------------------------------------------------------------------------


async def in_turn(got: list[int]) -> None:
    for each in range(300):
        got.append(await number(each))
        await asyncio.sleep(0)


async def gathered(got: list[int]) -> None:
    for each in range(60):
        got += await asyncio.gather(number(each), number(-each))


async def grouped(got: list[int]) -> None:
    async def one(of: int) -> None:
        got.append(await number(of))
        await asyncio.sleep(0)

    for each in range(60):
        async with asyncio.TaskGroup() as group:
            group.create_task(one(each))
            group.create_task(one(-each))


async def with_a_pause_of_its_own(got: list[int]) -> None:
    got.append(await number(1))
    await asyncio.sleep(0.02)  # nobody knows what for
    got.append(await number(2))


SHAPES = [in_turn, gathered, grouped, with_a_pause_of_its_own]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_cancellation_of_a_parked_run_meets_the_code_where_its_records_end(shape: Any) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        got: list[int] = []
        try:
            await shape(got)
            await perdure.interrupt({"got": len(got)})
        except asyncio.CancelledError:
            await mark(f"given back {len(got)}")
            raise

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await is_asked_and_parked(app, handle, worker)
            [question] = await app.interrupts(run_id=handle.run_id)
            await handle.cancel("enough")
            with pytest.raises(RunCancelled):
                await handle.result(timeout=20)
            assert begun == [f"given back {question.payload['got']}"]

    asyncio.run(main())


def test_a_cancellation_meets_code_inside_a_limit_that_has_not_run_out_where_its_records_end() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        async with perdure.timeout(3600):
            await mark("booked")
            try:
                await perdure.interrupt("well?")
            except asyncio.CancelledError:
                await mark("given back")
                raise

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await is_asked_and_parked(app, handle, worker)
            await handle.cancel("enough")
            with pytest.raises(RunCancelled):
                await handle.result(timeout=20)

    asyncio.run(main())
    assert begun == ["booked", "given back"]


def test_a_limit_that_ran_out_runs_out_at_the_same_place_in_a_replay() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        got: list[int] = []
        try:
            async with perdure.timeout(0.3):
                await gathered(got)
                await perdure.receive()
        except TimedOut:
            await mark(f"late after {len(got)}")
        await perdure.interrupt("well?")
        return got

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            question = await is_asked_and_parked(app, handle, worker)
            await app.resume(question, "yes")
            assert len(await handle.result(timeout=20)) == 120

    asyncio.run(main())
    assert begun == ["late after 120"]


# -- what came first --------------------------------------------------------------------------------------------------


def test_the_wait_that_came_first_comes_first_in_a_replay() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        answer = asyncio.ensure_future(perdure.interrupt("well?"))
        reminder = asyncio.ensure_future(perdure.sleep(0.05))
        done, _ = await asyncio.wait([answer, reminder], return_when=asyncio.FIRST_COMPLETED)
        said = await mark("the late fee" if reminder in done and answer not in done else "in time")
        got = await answer
        await perdure.sleep(0.05)
        return [said, got]

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)

            async def is_late() -> bool:
                return begun == ["the late fee"]

            await until(is_late, "the reminder has come")
            await parked(handle, worker)
            [question] = (await asked(app, handle)).values()
            await app.resume(question, "yes")
            assert await handle.result(timeout=20) == ["the late fee", "yes"]

    asyncio.run(main())
    assert begun == ["the late fee"]


@pytest.mark.parametrize("count", [3, 60], ids=["a few", "a crowd"])
def test_steps_come_back_in_the_order_in_which_they_ended(count: int) -> None:
    app = fresh_app()
    orders: list[list[int]] = []
    gates = [asyncio.Event() for _ in range(count)]

    @perdure.step
    async def slow(of: int) -> int:
        await gates[of].wait()
        return of

    @app.agent
    async def agent() -> list[int]:
        order: list[int] = []
        for next_one in asyncio.as_completed([asyncio.ensure_future(slow(of)) for of in range(count)]):
            order.append(await next_one)
        orders.append(order)
        await perdure.interrupt("well?")
        return order

    async def open_backwards() -> None:
        for gate in reversed(gates):
            gate.set()
            for _ in range(5):
                await asyncio.sleep(0)

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await until(lambda: _is(worker.running == 1), "it runs")
            await open_backwards()
            question = await is_asked_and_parked(app, handle, worker)
            await app.resume(question, "yes")
            await handle.result(timeout=20)

    asyncio.run(main())
    assert orders[0] == list(reversed(range(count)))
    assert orders[1:] == orders[:1]


async def _is(value: bool) -> bool:
    return value


# -- nothing new before -----------------------------------------------------------------------------------------------


def test_a_branch_that_was_cancelled_before_takes_no_message_when_the_run_is_replayed() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        early = asyncio.ensure_future(perdure.receive())
        await gathered([])
        early.cancel()
        await perdure.sleep(0.05)
        return await perdure.receive(timeout=20)

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.send(handle.thread_id, "hello")
            assert await handle.result(timeout=20) == "hello"

    asyncio.run(main())


# -- code that has changed --------------------------------------------------------------------------------------------


def test_a_record_that_the_code_does_not_come_to_any_more_holds_nobody_up() -> None:
    app = fresh_app()
    replays: list[int] = []

    @app.agent
    async def agent() -> str:
        async def heart() -> None:
            while True:
                await asyncio.sleep(0.5)  # of its own, for as long as the agent runs

        beating = asyncio.ensure_future(heart())
        replays.append(1)
        if len(replays) == 1:  # as if it had been taken out since
            await mark("taken out")
        await asyncio.gather(mark("a"), mark("b"))
        if len(replays) == 1:
            beating.cancel()
        answer = str(await perdure.interrupt("well?"))
        beating.cancel()
        return answer

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            question = await is_asked_and_parked(app, handle, worker)
            await app.resume(question, "yes")
            assert await handle.result(timeout=20) == "yes"
            assert sorted(await keys_of(handle)).count("mark") == 1

    asyncio.run(main())
    assert sorted(begun) == ["a", "b", "taken out"]
