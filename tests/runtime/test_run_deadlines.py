"""The deadline of a run, wherever the run is when it comes; and a delay before it begins."""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import Handle, RunFailed
from tests.runtime.acting import begun, mark
from tests.runtime.world import asked, crash, fresh_app, parked, passes, result_of, until, working


@perdure.step
async def hang(what: str) -> str:
    begun.append(what)
    await asyncio.Event().wait()
    return what


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


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
            await passes(0.03)
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


def test_a_run_that_asks_past_its_deadline_is_not_claimed_again_and_again() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="first")
        finally:
            await mark(f"told {await perdure.interrupt(name='what now?')}")

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent, deadline=0.1)
            questions: dict[str, str] = {}
            while "what now?" not in questions:
                questions = await asked(app, handle)
            await passes(0.2)
            info = await handle.status()
            assert (info.state, worker.running) == ("running", 1)
            assert info.attempt <= 2
            await app.resume(questions["what now?"], "pay back")
            await exceeded(handle)

    asyncio.run(main())
    assert begun == ["told pay back"]


def test_a_run_that_waits_past_its_deadline_is_told_what_came_before_its_wait_was_on_disk() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        return "done"

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="first")
        finally:
            made = await perdure.start(child)
            await until(functools.partial(_has_ended, made.run_id), "the child ends")
            await mark(await made)

    async def _has_ended(run_id: str) -> bool:
        return (await app.handle(run_id).status()).state == "completed"

    async def main() -> None:
        async with working(app, poll_s=30.0):
            handle = await app.start(agent, deadline=0.1)
            await exceeded(handle)

    asyncio.run(main())
    assert begun == ["done"]


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
        async with working(app):
            began = time.monotonic()
            handle = await app.start(agent, delay=0.1)
            ran_at: float = await handle.result(timeout=20)
            return ran_at - began

    assert 0.1 <= asyncio.run(main()) < 1.5
