"""Cleaning up after a cancellation: with steps, waits and children, across crashes, and whatever comes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Again, App, Handle, RunCancelled
from tests.runtime.acting import Stop, begun, mark
from tests.runtime.world import asked, crash, fresh_app, idle, keys_of, parked, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def cancelled(handle: Handle[Any], reason: str = "enough") -> None:
    """See the run end as cancelled, for this reason."""
    with pytest.raises(RunCancelled) as error:
        await handle.result(timeout=20)
    assert error.value.reason == reason
    assert (await handle.status()).state == "cancelled"


@pytest.mark.parametrize("parks", [False, True])
def test_a_crash_in_the_middle_of_compensating_goes_on_with_the_same_steps(parks: bool) -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @perdure.step
    async def stand_still() -> None:
        await stop[0].pass_by()

    @app.agent
    async def agent() -> None:
        done: list[str] = []
        try:
            for what in ("flight", "hotel"):
                done.append(await mark(f"book {what}"))
            await perdure.interrupt(name="never")
        except asyncio.CancelledError:
            for what in reversed(done):
                await mark(f"undo {what}")
                await (perdure.sleep(0.02) if parks else stand_still())
            raise
        finally:
            await stand_still()
            await mark("finally")

    async def main() -> list[str]:
        stop.append(Stop())
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await handle.cancel("enough")
            await stop[0].reached.wait()
            await crash(app, worker)
            stop[0].open = True
            await cancelled(handle)
            return await keys_of(handle)

    keys = asyncio.run(main())
    assert begun == ["book flight", "book hotel", "undo book hotel", "undo book flight", "finally"]
    assert len(keys) == len(set(keys)) == 8


def test_a_cancellation_during_a_replay_is_delivered_where_the_records_end() -> None:
    app = fresh_app()
    reads: list[asyncio.Event] = []

    @perdure.step
    async def large(number: int) -> bytes:
        begun.append(f"large {number}")
        return bytes([number]) * 100_000  # its record is loaded from a blob on replay

    @app.agent
    async def agent() -> list[int]:
        done: list[int] = []
        try:
            for number in range(3):
                done.append((await large(number))[0])
            await perdure.interrupt(name="q")
        except asyncio.CancelledError:
            await mark(f"undo {done}")
            raise
        return done

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            store = worker._tenure.store
            blobs = store.blobs

            async def slowly(thread: int, digests: Any) -> Any:
                found = await blobs(thread, digests)
                if not reads:
                    reads.append(asyncio.Event())
                    await handle.cancel("enough")
                    worker._tenure.waker.look()
                    await idle()
                return found

            store.blobs = slowly
            await app.resume(handle.thread_id, "too late")
            await cancelled(handle)

    asyncio.run(main())
    assert begun == ["large 0", "large 1", "large 2", "undo [0, 1, 2]"]


@pytest.mark.parametrize("ends", ["return", "again", "raise"])
def test_code_that_swallows_its_cancellation_ends_as_cancelled_all_the_same(ends: str) -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @app.agent
    async def agent() -> Any:
        try:
            await stop[0].pass_by()
        except asyncio.CancelledError:
            await mark("swallowed")
        if ends == "raise":
            raise ValueError("what went wrong in the cleaning up is kept")
        return Again() if ends == "again" else "fine"

    async def main() -> str:
        stop.append(Stop())
        async with working(app):
            handle = await app.start(agent)
            await stop[0].reached.wait()
            await handle.cancel("enough")
            await cancelled(handle)
            error = (await handle.status()).error
            assert error is not None
            return f"{error.message} {error.traceback}"

    recorded = asyncio.run(main())
    assert begun == ["swallowed"]
    assert ("what went wrong" in recorded) is (ends == "raise")


def test_cleaning_up_may_ask_and_is_parked_for_the_answer() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="first")
        finally:
            await mark(f"told {await perdure.interrupt(name='what now?')}")

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await handle.cancel("enough")
            await until(lambda: _asks(app, handle, "what now?"), "it asks")
            await parked(handle, worker)
            await app.resume((await asked(app, handle))["what now?"], "pay back")
            await cancelled(handle)

    asyncio.run(main())
    assert begun == ["told pay back"]


async def _asks(app: App, handle: Handle[Any], name: str) -> bool:
    return [each.name for each in await app.interrupts(run_id=handle.run_id)] == [name]


def test_a_second_cancellation_changes_nothing() -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await mark("undo")
            await stop[0].pass_by()

    async def main() -> None:
        stop.append(Stop())
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            assert await handle.cancel("enough") == "cancelled"
            await stop[0].reached.wait()
            assert await handle.cancel("more than enough") == "cancelled"
            await idle()
            await crash(app, worker)
            stop[0].open = True
            await cancelled(handle, "enough")

    asyncio.run(main())
    assert begun == ["undo"]


def test_a_question_with_on_timeout_cancel_cancels_its_run_which_cleans_up() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="q", timeout=0.03, on_timeout="cancel")
        finally:
            await mark("cleaned up")

    async def main() -> None:
        async with working(app):
            await cancelled(await app.start(agent), "nobody answered 'q' in time")

    asyncio.run(main())
    assert begun == ["cleaned up"]


def test_such_a_question_while_cleaning_up_ends_the_cleaning_up() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await mark("undo")
            await perdure.interrupt(name="q", timeout=0.03, on_timeout="cancel")
            await mark("not reached")

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await handle.cancel("enough")
            await cancelled(handle)

    asyncio.run(main())
    assert begun == ["undo"]


def test_an_overdue_run_that_is_cancelled_while_it_cleans_up_is_cancelled_and_starts_what_it_must() -> None:
    app = fresh_app()
    stop: list[Stop] = []

    @app.agent
    async def child() -> None:
        await mark("child")

    @perdure.step
    async def stand_still() -> None:
        stop[0].reached.set()
        await stop[1].reached.wait()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="never")
        finally:
            await stand_still()
            await perdure.call(child)

    async def main() -> None:
        stop.extend((Stop(), Stop()))
        async with working(app, poll_s=30.0):
            handle = await app.start(agent, deadline=0.03)
            await stop[0].reached.wait()
            await handle.cancel("enough")
            stop[1].reached.set()
            await cancelled(handle)

    asyncio.run(main())
    assert begun == ["child"]
