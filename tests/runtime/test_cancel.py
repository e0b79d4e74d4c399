"""Cancelling: a request that stays, code that may clean up, and one end, of which whoever asked is told the truth."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Again, App, Handle, Retry, RunCancelled, RunFailed
from perdure.core.changes import ParkRun, RequeueRun
from perdure.core.records import RunState
from tests.runtime.acting import Stop, begun, mark
from tests.runtime.world import fresh_app, idle, keys_of, parked, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def cancelled(handle: Handle[Any], reason: str = "enough") -> None:
    """See the run end as cancelled, for this reason."""
    with pytest.raises(RunCancelled) as error:
        await handle.result(timeout=20)
    assert error.value.reason == reason
    assert (await handle.status()).state == "cancelled"


# -- where a run may be when it is cancelled -----------------------------------------------------------------------


def test_a_run_that_nobody_has_begun_is_cancelled_at_once_and_its_code_is_never_called() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        begun.append("code")

    async def main() -> None:
        async with app:
            first = await app.start(agent, thread_id="t")
            second = await app.start(agent, thread_id="t")
            assert await first.cancel("enough") == "cancelled"
            await cancelled(first)
            async with app.worker(poll_s=0.05):
                await second.result(timeout=20)

    asyncio.run(main())
    assert begun == ["code"]


def test_a_parked_run_is_woken_and_cleans_up() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await mark("begun")
            await perdure.interrupt(name="never")
        finally:
            await mark("cleaned up")

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert await handle.cancel("enough") == "cancelled"
            await cancelled(handle)
            assert [each.state for each in await app.interrupts(run_id=handle.run_id, state=None)] == ["withdrawn"]
            assert await keys_of(handle) == ["mark", "mark#2"]

    asyncio.run(main())
    assert begun == ["begun", "cleaned up"]


@pytest.mark.parametrize("place", ["loop", "thread"])
def test_a_step_in_flight_is_cancelled_and_not_recorded(place: str) -> None:
    app = fresh_app()
    entered: list[asyncio.Event] = []
    loops: list[asyncio.AbstractEventLoop] = []

    @perdure.step(retry=Retry(attempts=5))
    async def on_the_loop() -> None:
        begun.append("body")
        entered[0].set()
        await asyncio.Event().wait()

    @perdure.step(cpu="thread", retry=Retry(attempts=5))
    def in_a_thread() -> None:
        begun.append("body")
        loops[0].call_soon_threadsafe(entered[0].set)

    @app.agent
    async def agent() -> None:
        try:
            await (on_the_loop() if place == "loop" else _after(in_a_thread()))
        except asyncio.CancelledError:
            await mark("noticed")
            raise

    async def main() -> None:
        entered.append(asyncio.Event())
        loops.append(asyncio.get_running_loop())
        async with working(app, poll_s=30.0):
            handle = await app.start(agent)
            await entered[0].wait()
            await handle.cancel("enough")
            await cancelled(handle)
            assert "mark" in await keys_of(handle)

    asyncio.run(main())
    assert begun == ["body", "noticed"]


async def _after(step: Any) -> None:
    await step
    await asyncio.Event().wait()


def test_a_run_between_two_super_steps_is_cancelled_and_saves_no_more_state() -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @app.agent
    async def agent(number: int, *, state: dict[str, int]) -> Again:
        state["number"] = number
        if number == 3:
            await stop[0].pass_by()
        return Again(number + 1)

    async def main() -> Any:
        stop.append(Stop())
        async with working(app):
            handle = await app.start(agent, 1, thread_id="t")
            await stop[0].reached.wait()
            await handle.cancel("enough")
            await cancelled(handle)
            return await app.thread("t").state()

    assert asyncio.run(main()) == {"number": 2}


def test_an_agent_that_always_goes_on_is_cancelled_all_the_same() -> None:
    app = fresh_app()
    rounds: list[int] = []

    @app.agent
    async def agent(number: int) -> Again:
        rounds.append(number)
        await mark("round")
        return Again(number + 1)

    async def main() -> None:
        async with working(app):
            handle = await app.start(agent, 1)
            await until(lambda: _is(len(rounds) > 3), "it goes round")
            assert await handle.cancel("enough") == "cancelled"
            await cancelled(handle)

    asyncio.run(main())


async def _is(value: bool) -> bool:
    return value


def test_a_held_run_is_cancelled_at_once() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        await perdure.interrupt(len(begun), name="q")  # another payload each time: it diverges
        return "never"

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            begun.append("changed")
            await app.resume(handle.thread_id, 1)
            await until(lambda: _has(handle, "held"), "it is held")
            assert await handle.cancel("enough") == "cancelled"
            await cancelled(handle)

    asyncio.run(main())


async def _has(handle: Handle[Any], state: str) -> bool:
    return (await handle.status()).state == state


def test_a_run_that_waits_for_its_next_try_is_cancelled_without_waiting_for_it() -> None:
    app = fresh_app()

    @app.agent(retry=Retry(attempts=3, delay_s=3600, jitter=0))
    async def agent() -> None:
        begun.append("code")
        raise ConnectionError("later")

    async def main() -> None:
        async with working(app, poll_s=0.05):
            handle = await app.start(agent)
            await until(lambda: _has(handle, "queued"), "it waits for its next try")
            assert await handle.cancel("enough") == "cancelled"
            await cancelled(handle)

    asyncio.run(main())


def test_a_cancellation_goes_down_the_tree_and_not_to_what_is_detached() -> None:
    app = fresh_app()

    @app.agent
    async def leaf(name: str) -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await mark(f"leaf {name}")

    @app.agent
    async def middle() -> None:
        try:
            await perdure.start(leaf, "detached", thread_id="detached", detached=True)
            await perdure.call(leaf, "below", thread_id="below")
        finally:
            await mark("middle")

    @app.agent
    async def top() -> None:
        await perdure.call(middle, thread_id="middle")

    async def main() -> dict[str, str]:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(top, thread_id="top")
            await until(lambda: _all_wait(app, 4), "the tree waits")
            await until(lambda: _is(worker.running == 0), "nothing is left in the worker")
            await handle.cancel("enough")
            await cancelled(handle)
            await until(lambda: _all_wait(app, 1), "the others have ended")
            return {run.thread_id: run.state for run in await app.runs()}

    states = asyncio.run(main())
    assert states == {"top": "cancelled", "middle": "cancelled", "below": "cancelled", "detached": "waiting"}
    assert sorted(begun) == ["leaf below", "middle"]


async def _all_wait(app: App, count: int) -> bool:
    runs = await app.runs()
    return len([run for run in runs if run.state == "waiting"]) == count and not [
        run for run in runs if run.state in ("queued", "running")
    ]


def test_an_agent_that_was_cancelled_starts_no_child_by_accident_but_may_do_so_to_clean_up() -> None:
    app = fresh_app()

    @app.agent
    async def child(what: str) -> str:
        return await mark(what)

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
            await perdure.call(child, "not reached")
        finally:
            await perdure.call(child, "undo", thread_id="undo")

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await handle.cancel("enough")
            await cancelled(handle)
            assert await keys_of(handle) == ["start:child", "result:child"]

    asyncio.run(main())
    assert begun == ["undo"]


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 20])
def test_an_interruption_in_the_middle_of_a_parking_is_delivered_once(how: str, turns: int) -> None:
    app = fresh_app()
    parkings: list[int] = []

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await mark("undo")
            await mark("undo more")

    async def main() -> None:
        async with working(app, poll_s=0.05) as worker:
            store = worker._tenure.store
            commit = store.commit

            async def slowly(number: int, changes: Any) -> Any:
                if any(isinstance(change, ParkRun) for change in changes):
                    parkings.append(1)
                    if how == "cancel" and len(parkings) == 1:
                        asking.append(asyncio.create_task(handle.cancel("enough")))
                    while how == "deadline" and await store.now_us() < claimed_until[0]:
                        await idle(1)
                    await idle(turns)
                return await commit(number, changes)

            asking: list[Any] = []
            # Long enough to come to rest before it, also on a busy machine.
            handle = await app.start(agent, deadline=None if how == "cancel" else 0.4, delay=0.02)
            claimed_until = [(await store.get_runs([handle._id]))[0].deadline_at or 0]
            store.commit = slowly
            with pytest.raises(RunCancelled if how == "cancel" else RunFailed):
                await handle.result(timeout=20)
            await asyncio.gather(*asking)

    asyncio.run(main())
    assert begun == ["undo", "undo more"]
    assert parkings


# -- cancel against complete -----------------------------------------------------------------------------------------


def test_c05_cancel_and_complete_have_one_winner_and_the_truth_is_told() -> None:
    app = fresh_app()
    gates: dict[int, asyncio.Event] = {}

    @app.agent
    async def agent(number: int) -> int:
        await gates[number].wait()
        return number

    async def race(handle: Handle[Any], number: int) -> str:
        """Let it complete, and cancel it, the one or the other a little before."""
        turns = number % 20 - 10
        if turns <= 0:
            gates[number].set()
            await idle(-turns)
        told = await handle.cancel("enough")
        await idle(max(0, turns))
        gates[number].set()
        try:
            assert await handle.result(timeout=20) == number
        except RunCancelled:
            ended = "cancelled"
        else:
            ended = "completed"
        assert (told, (await handle.status()).state) == (ended, ended)
        return ended

    async def main() -> list[str]:
        gates.update({number: asyncio.Event() for number in range(1000)})
        async with working(app, poll_s=30.0):
            ended: list[str] = []
            for first in range(0, 1000, 100):
                numbers = range(first, first + 100)
                handles = [await app.start(agent, number) for number in numbers]
                await until(lambda: _all_run(app, 100), "all run")
                ended += await asyncio.gather(*map(race, handles, numbers))
            return ended

    ended = asyncio.run(main())
    assert len(ended) == 1000
    assert set(ended) == {"cancelled", "completed"}


async def _all_run(app: App, count: int) -> bool:
    return len(await app.runs(state="running", limit=1000)) == count


def test_a_cancellation_that_comes_just_before_a_failure_is_to_be_tried_again_does_not_wait_for_that() -> None:
    app = fresh_app()

    @app.agent(retry=Retry(attempts=3, delay_s=3600, jitter=0))
    async def agent() -> None:
        raise ConnectionError("would be tried again in an hour")

    async def main() -> None:
        async with app:
            handle = await app.start(agent)
            async with app.worker(poll_s=0.05) as worker:
                store = worker._tenure.store
                commit = store.commit

                async def late(number: int, changes: Any) -> Any:
                    if any(isinstance(change, RequeueRun) for change in changes):
                        await store.cancel(handle._id, "enough", b"")
                    return await commit(number, changes)

                store.commit = late
                await cancelled(handle)

    asyncio.run(main())


def test_the_cancelled_run_of_a_worker_that_died_ends_with_the_next_one() -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @app.agent
    async def agent() -> None:
        try:
            await mark("begun")
            await stop[0].pass_by()
        finally:
            await mark("cleaned up")

    async def main() -> None:
        stop.append(Stop())
        async with working(app) as worker:
            handle = await app.start(agent)
            await stop[0].reached.wait()
            store = (await app._client()).store
            number = worker.id
            worker._tenure.lose("killed by the test")
            await store.cancel(handle._id, "enough", b"")
            await store.take_over([number], recoveries_max=5)
            await cancelled(handle)

    asyncio.run(main())
    assert begun == ["begun", "cleaned up"]


def test_a_failed_run_cannot_be_cancelled_and_says_so() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        raise ValueError("no")

    async def main() -> RunState:
        async with working(app):
            handle = await app.start(agent)
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            return await handle.cancel("enough")

    assert asyncio.run(main()) == "failed"
