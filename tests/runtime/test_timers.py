"""Durable time: sleeping, limits on a block, and the deadline of a run. Nothing comes early, and nothing twice."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import perdure
from perdure import Handle, RunFailed, TimedOut, UsageError
from tests.runtime.world import asked, crash, fresh_app, keys_of, parked, result_of, until, working

begun: list[str] = []


@perdure.step
async def mark(what: str) -> str:
    begun.append(what)
    return what


@perdure.step
async def hang(what: str) -> str:
    begun.append(what)
    await asyncio.Event().wait()
    return what


class Beside:
    """Something of the event loop that a branch waits for, so that its run is not parked."""

    def __init__(self) -> None:
        self.done = asyncio.Event()


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


# -- sleeping ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", [0, 0.05, timedelta(milliseconds=50), "0.05s"])
def test_a_sleep_is_never_short_and_parks(duration: Any) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> float:
        began = perdure.now()
        await perdure.sleep(duration)
        return (perdure.now() - began).total_seconds()

    slept_s = result_of(app, agent)
    assert (0.0 if duration == 0 else 0.05) <= slept_s < 1.5


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns"])
def test_sleep_until_knows_time_zones(zone: str) -> None:
    app = fresh_app()
    then = datetime.now(UTC) + timedelta(milliseconds=80)

    @app.agent
    async def agent(local: str) -> datetime:
        await perdure.sleep_until(local, tz=zone)
        return perdure.now()

    woke = result_of(app, agent, then.astimezone(ZoneInfo(zone)).replace(tzinfo=None).isoformat())
    assert then <= woke < then + timedelta(seconds=1.5)


def test_a_time_that_has_passed_does_not_wait() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        await perdure.sleep_until(datetime(2001, 1, 1, tzinfo=UTC))
        return "at once"

    assert result_of(app, agent) == "at once"


def test_a_sleep_that_ended_is_not_slept_again() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        await perdure.sleep(0.01)
        await perdure.interrupt(name="q")
        await perdure.sleep(0.01)
        return "done"

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await app.resume((await asked(app, handle))["q"], 1)
            assert await handle.result(timeout=20) == "done"
            return await keys_of(handle)

    assert asyncio.run(main()) == ["sleep", "q", "sleep#2"]


def test_a_sleep_that_came_due_while_nobody_worked_ends_when_somebody_does() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        await perdure.sleep(0.03)
        return "awake"

    async def main() -> str:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                handle = await app.start(agent)
                await parked(handle, worker)
            await _passes(0.05)
            assert (await handle.status()).state == "waiting"
            async with app.worker(poll_s=30.0):
                return await handle.result(timeout=20)

    assert asyncio.run(main()) == "awake"


async def _passes(seconds: float) -> None:
    """Let so much time pass."""
    end = time.monotonic() + seconds
    await until(lambda: _later(end), "time passes")


async def _later(moment: float) -> bool:
    return time.monotonic() >= moment


def test_many_timers_end_each_in_its_time() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await perdure.sleep(0.05 + 0.02 * number)
            order.append(number)

        await asyncio.gather(*(one(number) for number in reversed(range(5))))
        return order

    assert sorted(result_of(app, agent)) == [0, 1, 2, 3, 4]


# -- limits on a block ---------------------------------------------------------------------------------------------


def test_a_block_that_keeps_its_limit_leaves_no_timer() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        async with perdure.timeout(60):
            found = await mark("quick")
        await perdure.interrupt(name="q")
        return found

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            store = (await app._client()).store
            assert [wait.key for wait in await store.waits([handle._id])] == ["q"]
            await app.resume(handle.thread_id, 1)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "quick"


def test_a_limit_that_runs_out_while_the_run_is_parked_ends_the_wait_and_withdraws_the_question() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        try:
            async with perdure.timeout(0.05):
                await mark("inside")
                await perdure.interrupt(name="never")
        except TimedOut as error:
            assert isinstance(error, TimeoutError)
            said = await mark("after")
        await perdure.interrupt(name="q")
        return [said]

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await asked_only(app, handle, "q")
            await parked(handle, worker)
            states = {each.name: each.state for each in await app.interrupts(run_id=handle.run_id, state=None)}
            assert states == {"never": "withdrawn", "q": "open"}
            await app.resume(handle.thread_id, 1)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["after"]
    assert begun == ["inside", "after"]


async def asked_only(app: Any, handle: Handle[Any], name: str) -> None:
    """Look until this is the run's one open question."""

    async def is_so() -> bool:
        return [each.name for each in await app.interrupts(run_id=handle.run_id)] == [name]

    await until(is_so, f"{name} is asked, and nothing else")


def test_a_limit_that_runs_out_in_a_run_that_is_kept_in_memory_cancels_its_block_alone() -> None:
    app = fresh_app()
    beside: list[Beside] = []

    async def limited() -> str:
        try:
            async with perdure.timeout(0.05):
                await perdure.interrupt(name="never")
        except TimedOut:
            beside[0].done.set()
        return await mark("after")

    async def other() -> str:
        await beside[0].done.wait()
        return await mark("beside")

    @app.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(limited(), other()))

    async def main() -> list[str]:
        beside.append(Beside())
        async with working(app, poll_s=30.0):
            handle = await app.start(agent)
            found: list[str] = await handle.result(timeout=20)
            assert (await handle.status()).attempt == 1
            return found

    assert asyncio.run(main()) == ["after", "beside"]


def test_a_limit_ends_a_step_in_flight_and_what_was_started_in_the_block() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        ended: list[str] = []

        async def branch(name: str) -> None:
            try:
                await hang(name)
            finally:
                ended.append(name)

        try:
            async with perdure.timeout(0.05):
                async with asyncio.TaskGroup() as group:
                    group.create_task(branch("a"))
                    group.create_task(branch("b"))
        except TimedOut:
            ended.append("timed out")
        return ended

    *branches, last = result_of(app, agent)
    assert (sorted(branches), last) == (["a", "b"], "timed out")


def test_a_limit_that_ran_out_is_replayed_with_what_was_recorded_in_its_block_and_after_it() -> None:
    app = fresh_app()
    crashes: list[asyncio.Event] = []

    @perdure.step
    async def stand_still() -> str:
        if not crashes[0].is_set():
            crashes[0].set()
            await asyncio.Event().wait()
        return "stood"

    @app.agent
    async def agent() -> list[str]:
        said: list[str] = []
        try:
            async with perdure.timeout(0.05):
                try:
                    said.append(await mark("inside"))
                    await perdure.sleep(60)
                    said.append("not reached")
                finally:
                    said.append(await mark("cleaned up"))
        except TimedOut:
            said.append(await mark("timed out"))
        return [*said, await mark("after"), await stand_still()]

    async def main() -> list[str]:
        crashes.append(asyncio.Event())
        async with working(app) as worker:
            handle = await app.start(agent)
            await crashes[0].wait()
            await crash(app, worker)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["inside", "cleaned up", "timed out", "after", "stood"]
    assert begun == ["inside", "cleaned up", "timed out", "after"]


def test_a_crash_in_the_cleaning_up_of_a_block_goes_on_with_the_cleaning_up() -> None:
    app = fresh_app()
    crashes: list[asyncio.Event] = []

    @perdure.step
    async def stand_still(what: str) -> str:
        begun.append(what)
        if not crashes[0].is_set():
            crashes[0].set()
            await asyncio.Event().wait()
        return what

    @app.agent
    async def agent() -> list[str]:
        said: list[str] = []
        try:
            async with perdure.timeout(0.05):
                try:
                    await perdure.interrupt(name="never")
                finally:
                    said.append(await mark("undo 1"))
                    said.append(await stand_still("undo 2"))
        except TimedOut:
            said.append("timed out")
        return said

    async def main() -> list[str]:
        crashes.append(asyncio.Event())
        async with working(app) as worker:
            handle = await app.start(agent)
            await crashes[0].wait()
            await crash(app, worker)
            found: list[str] = await handle.result(timeout=20)
            assert [each.state for each in await app.interrupts(run_id=handle.run_id, state=None)] == ["withdrawn"]
            return found

    assert asyncio.run(main()) == ["undo 1", "undo 2", "timed out"]
    assert begun == ["undo 1", "undo 2", "undo 2"]


@pytest.mark.parametrize(("outer_s", "inner_s", "said"), [(60, 0.03, ["inner"]), (0.03, 60, ["outer"])])
def test_of_two_limits_the_one_that_runs_out_says_so(outer_s: float, inner_s: float, said: list[str]) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        found: list[str] = []
        try:
            async with perdure.timeout(outer_s):
                try:
                    async with perdure.timeout(inner_s):
                        await perdure.interrupt(name="never")
                except TimedOut:
                    found.append("inner")
        except TimedOut:
            found.append("outer")
        await mark("after")
        await perdure.sleep(0.01)
        return found

    assert result_of(app, agent) == said
    assert begun == ["after"]


def test_two_limits_that_run_out_while_nobody_works_end_both_blocks() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        found: list[str] = []
        try:
            async with perdure.timeout(0.03):
                try:
                    async with perdure.timeout(0.02):
                        await perdure.interrupt(name="never")
                except TimedOut:
                    found.append("inner")
                    await perdure.interrupt(name="never either")
        except TimedOut:
            found.append("outer")
        return found

    async def main() -> list[str]:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                handle = await app.start(agent)
                await parked(handle, worker)
            await _passes(0.05)
            async with app.worker(poll_s=0.05):
                return await handle.result(timeout=20)

    assert asyncio.run(main())[-1] == "outer"


def test_a_limit_in_a_loop_counts_each_round_anew() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        found: list[str] = []
        for number in range(4):
            try:
                async with perdure.timeout(0.02 if number % 2 else 60):
                    await (perdure.interrupt(name="never") if number % 2 else mark(f"round {number}"))
                    found.append("kept")
            except TimedOut:
                found.append("ran out")
        return found

    assert result_of(app, agent) == ["kept", "ran out", "kept", "ran out"]
    assert begun == ["round 0", "round 2"]


def test_limits_that_make_no_sense_are_refused() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        refused: list[str] = []
        for attempt in (lambda: perdure.timeout(0), lambda: perdure.timeout(-1), lambda: perdure.timeout("soon")):
            try:
                attempt()
            except UsageError as error:
                refused.append(str(error)[:7])
        limit = perdure.timeout(60)
        async with limit:
            pass
        try:
            async with limit:
                pass
        except UsageError as error:
            refused.append(str(error)[:8])
        return refused

    assert len(result_of(app, agent)) == 4


# -- the deadline of a run -----------------------------------------------------------------------------------------


async def exceeded(handle: Handle[Any]) -> None:
    """See the run fail with its deadline."""
    with pytest.raises(RunFailed) as failed:
        await handle.result(timeout=20)
    assert failed.value.error.type == "perdure.errors.DeadlineExceeded"


def test_a_parked_run_fails_at_its_deadline_and_cleans_up() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await mark("begun")
            await perdure.interrupt(name="never")
        finally:
            await mark("cleaned up")

    async def main() -> None:
        async with working(app) as worker:
            began = time.monotonic()
            handle = await app.start(agent, deadline=0.1)
            await parked(handle, worker)
            await exceeded(handle)
            assert time.monotonic() - began >= 0.1
            assert [each.state for each in await app.interrupts(run_id=handle.run_id, state=None)] == ["withdrawn"]

    asyncio.run(main())
    assert begun == ["begun", "cleaned up"]


@pytest.mark.parametrize("swallows", [False, True])
def test_a_running_run_fails_at_its_deadline_whatever_its_code_makes_of_it(swallows: bool) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        try:
            return await hang("hanging")
        except asyncio.CancelledError:
            await mark("noticed")
            if swallows:
                return "fine"
            raise

    async def main() -> None:
        async with working(app):
            await exceeded(await app.start(agent, deadline=timedelta(milliseconds=50)))

    asyncio.run(main())
    assert begun == ["hanging", "noticed"]


def test_code_of_a_run_whose_deadline_came_before_its_turn_is_never_called() -> None:
    app = fresh_app()
    first_may_end: list[asyncio.Event] = []

    @app.agent
    async def agent(what: str) -> str:
        begun.append(what)
        if what == "first":
            await first_may_end[0].wait()
        return what

    async def main() -> None:
        first_may_end.append(asyncio.Event())
        async with working(app):
            first = await app.start(agent, "first", thread_id="t")
            behind = await app.start(agent, "behind", thread_id="t", deadline=0.03)
            delayed = await app.start(agent, "delayed", delay=60, deadline=0.03)
            await exceeded(delayed)
            await _passes(0.03)
            first_may_end[0].set()
            assert await first.result(timeout=20) == "first"
            await exceeded(behind)

    asyncio.run(main())
    assert begun == ["first"]


def test_a_child_has_its_parents_deadline_unless_it_is_detached_or_has_an_earlier_one() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None:
        await perdure.interrupt(name="never")

    @app.agent
    async def parent() -> None:
        await perdure.start(child, thread_id="plain")
        await perdure.start(child, thread_id="detached", detached=True)
        await perdure.start(child, thread_id="hurried", deadline=0.01)
        await perdure.start(child, thread_id="patient", deadline="1h")
        await perdure.interrupt(name="never")

    async def main() -> dict[str, str]:
        async with working(app):
            await exceeded(await app.start(parent, deadline=0.15))
            for thread_id in ("plain", "hurried", "patient"):
                (run,) = await app.runs(thread_id=thread_id)
                await exceeded(app.handle(run.run_id))
            return {run.thread_id: run.state for run in await app.runs(agent="child")}

    states = asyncio.run(main())
    assert states == {"plain": "failed", "detached": "waiting", "hurried": "failed", "patient": "failed"}


def test_a_crash_while_an_overdue_run_cleans_up_does_not_clean_up_twice() -> None:
    app = fresh_app()
    crashes: list[asyncio.Event] = []

    @perdure.step
    async def stand_still() -> None:
        if not crashes[0].is_set():
            crashes[0].set()
            await asyncio.Event().wait()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await mark("undo 1")
            await stand_still()
            await mark("undo 2")

    async def main() -> None:
        crashes.append(asyncio.Event())
        async with working(app) as worker:
            handle = await app.start(agent, deadline=0.05)
            await crashes[0].wait()
            await crash(app, worker)
            await exceeded(handle)

    asyncio.run(main())
    assert begun == ["undo 1", "undo 2"]


def test_a_run_that_ends_in_time_does_not_hear_of_its_deadline() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        await perdure.sleep(0.02)
        return "in time"

    assert result_of(app, agent, deadline="1h") == "in time"


def test_a_delayed_run_begins_after_its_delay() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> float:
        return time.monotonic()

    async def main() -> float:
        async with working(app, poll_s=30.0):
            began = time.monotonic()
            handle = await app.start(agent, delay=0.1)
            ran_at: float = await handle.result(timeout=20)
            return ran_at - began

    assert 0.1 <= asyncio.run(main()) < 1.5
