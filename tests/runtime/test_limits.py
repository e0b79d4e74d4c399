"""Durable limits on a block: what they end, and that a replay ends it at the same place."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import perdure
from perdure import Handle, NotInRun, RunFailed, TimedOut, UsageError
from tests.runtime.acting import begun, mark
from tests.runtime.world import crash, fresh_app, parked, passes, result_of, until, working


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
            await passes(0.05)
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


@pytest.mark.parametrize("in_thread", [False, True])
def test_c38_a_step_that_gets_on_extends_its_own_limit_and_another_is_ended_by_its(in_thread: bool) -> None:
    app = fresh_app()

    @perdure.step(timeout=0.1, retry=1)
    async def slow(extends: bool) -> str:
        for _ in range(4):
            if extends:
                perdure.extend_timeout(0.2)
            await asyncio.sleep(0.06)  # what a body's work takes
        return "done"

    @perdure.step(timeout=0.1, retry=1)
    def slow_thread(extends: bool) -> str:
        for _ in range(4):
            if extends:
                perdure.extend_timeout("200ms")
            time.sleep(0.06)  # what a body's work takes
        return "done"

    @app.agent
    async def agent(extends: bool) -> str:
        return await (slow_thread if in_thread else slow)(extends)

    async def main() -> None:
        async with working(app):
            assert await (await app.start(agent, True)).result(timeout=20) == "done"
            with pytest.raises(RunFailed, match="ran out"):
                await (await app.start(agent, False)).result(timeout=20)

    asyncio.run(main())
    with pytest.raises(NotInRun, match="outside of a step's body"):
        perdure.extend_timeout(5)
