"""Cleaning up has a bound, and code that does not end holds no slot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import perdure
from perdure import Handle, RunCancelled, RunFailed, UsageError, telemetry
from perdure.runtime import tasks, tenure
from perdure.runtime.interruption import CleaningUp
from tests.runtime.acting import begun, mark
from tests.runtime.world import asked, fresh_app, parked, passes, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def swallows() -> None:
    """Wait on, whatever comes."""
    while True:
        begun.append("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            begun.append("swallowed")
            continue


async def for_ever() -> None:
    """Clean up, and clean up again."""
    try:
        begun.append("waiting")
        await asyncio.Event().wait()
    finally:
        while True:
            await mark("clean")
            await asyncio.sleep(0)


async def for_a_dead_step() -> None:
    """Clean up by a step that hangs."""
    try:
        begun.append("waiting")
        await asyncio.Event().wait()
    finally:
        await hang()


@perdure.step
async def hang() -> None:
    await asyncio.Event().wait()


async def waits() -> bool:
    return "waiting" in begun


async def error_of(handle: Handle[Any]) -> str:
    """The message and the traceback of the error with which a run has ended."""
    error = (await handle.status()).error
    assert error is not None
    return f"{error.message} {error.traceback}"


ROUGH = pytest.mark.parametrize("code", [swallows, for_ever, for_a_dead_step])


@ROUGH
def test_cleaning_up_after_a_cancellation_has_a_bound(code: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    agent = app.agent(code)

    async def main() -> str:
        async with working(app, clean_up_s=0.05):
            handle = await app.start(agent)
            await until(waits, "it waits")
            assert await handle.cancel("enough") == "cancelled"
            with pytest.raises(RunCancelled) as cancelled:
                await handle.result(timeout=20)
            assert cancelled.value.reason == "enough"
            return await error_of(handle)

    assert "cleaning up did not end within 0.05 s" in asyncio.run(main())


@ROUGH
def test_cleaning_up_past_a_deadline_has_a_bound(code: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    agent = app.agent(code)

    async def main() -> str:
        async with working(app, clean_up_s=0.05):
            handle = await app.start(agent, deadline=0.03)
            with pytest.raises(RunFailed) as failed:
                await handle.result(timeout=20)
            assert failed.value.error.type == "perdure.errors.DeadlineExceeded"
            return await error_of(handle)

    assert "cleaning up did not end within 0.05 s" in asyncio.run(main())


def test_the_time_that_cleaning_up_is_parked_does_not_count() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        try:
            await perdure.interrupt(name="first")
        finally:
            await perdure.sleep(0.3)
            await mark(f"told {await perdure.interrupt(name='what now?')}")

    async def main() -> str:
        async with working(app, clean_up_s=0.25) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await handle.cancel("enough")
            question = {}
            while "what now?" not in question:
                question = await asked(app, handle)
            await parked(handle, worker)
            await app.resume(question["what now?"], "pay back")
            with pytest.raises(RunCancelled):
                await handle.result(timeout=20)
            return await error_of(handle)

    assert "did not end" not in asyncio.run(main())
    assert begun == ["told pay back"]


def test_time_in_which_nothing_can_be_recorded_does_not_count() -> None:
    trust = SimpleNamespace(holds=False)
    ended: list[float] = []

    async def main() -> float:
        over = asyncio.Event()
        host = SimpleNamespace(clean_up_s=0.3, trust=trust)

        def close(_: object) -> None:
            ended.append(time.monotonic())
            over.set()

        at: Any = SimpleNamespace(host=host, parking=SimpleNamespace(under_way=False), close=close)
        cleaning_up = CleaningUp(at)
        await passes(0.25)
        trust.holds = True
        believed = time.monotonic()
        await over.wait()
        cleaning_up.end()
        return ended[0] - believed

    assert asyncio.run(main()) >= 0.25


def test_a_worker_is_told_how_long_cleaning_up_may_take() -> None:
    with pytest.raises(UsageError, match="clean_up_s is 0"):
        fresh_app().worker(clean_up_s=0)


# -- the slot ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["cancelled", "parked", "returned"])
def test_code_that_swallows_even_its_end_keeps_no_slot(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOMENT_S", 0.01)
    monkeypatch.setattr(tasks, "UNWIND_S", 5.0)
    app = fresh_app()
    gate, stuck = asyncio.Event(), list[dict[str, Any]]()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except BaseException:
                begun.append("swallowed")

    @app.agent
    async def agent() -> None:
        background = asyncio.create_task(stubborn()) if ends == "returned" else None
        begun.append("waiting")
        if ends == "parked":
            try:
                await perdure.interrupt()
            except BaseException:
                await stubborn()
        elif background is None:
            await stubborn()
        else:
            await asyncio.sleep(0)

    @app.agent
    async def neighbour() -> str:
        return "done"

    async def main() -> None:
        async with working(app, concurrency=1, clean_up_s=0.01) as worker:
            handle = await app.start(agent)
            await until(waits, "it waits")
            if ends == "cancelled":
                await handle.cancel()
            assert await (await app.start(neighbour)).result(timeout=3) == "done"
            assert worker.running == 1
            assert (await handle.status()).state == {"parked": "waiting", "returned": "completed"}.get(ends, ends)
            gate.set()

    unsubscribe = telemetry.subscribe(lambda event, of: stuck.append(of) if event == "run.stuck" else None)
    try:
        asyncio.run(main())
    finally:
        unsubscribe()
    assert stuck == []


def test_what_does_not_end_is_named_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOMENT_S", 0.01)
    monkeypatch.setattr(tasks, "UNWIND_S", 0.05)
    app = fresh_app()
    agent = app.agent(swallows)
    stuck: list[dict[str, Any]] = []

    async def main() -> None:
        async with working(app, clean_up_s=0.01):
            handle = await app.start(agent)
            await until(waits, "it waits")
            await handle.cancel()
            await until(_has(stuck), "its stuck task is named")

    unsubscribe = telemetry.subscribe(lambda event, of: stuck.append(of) if event == "run.stuck" else None)
    try:
        asyncio.run(main())
    finally:
        unsubscribe()
    assert "swallows" in str(stuck[0]["tasks"])


def test_a_worker_that_drains_keeps_its_identity_beside_code_that_swallows_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "UNWIND_S", 0.4)
    monkeypatch.setattr(tenure, "HAND_BACK_S", 0.4)
    app = fresh_app()
    gone, events = list[bool](), list[str]()

    async def stubborn() -> None:
        while not gone:
            begun.append("waiting")
            try:
                await asyncio.Event().wait()
            except BaseException:
                continue

    agent = app.agent(stubborn)

    async def main() -> str:
        async with app:
            async with app.worker(poll_s=0.05, grace_s=0.01):
                handle = await app.start(agent)
                await until(waits, "it waits")
            gone.append(True)
            info = await handle.status()
            assert info.recoveries == 0
            return info.state

    unsubscribe = telemetry.subscribe(lambda event, of: events.append(event))
    try:
        assert asyncio.run(main()) == "queued"
    finally:
        unsubscribe()
    assert "run.stuck" in events
    assert "worker.lost" not in events


def _has(found: list[Any]) -> Callable[[], Any]:
    async def has() -> bool:
        return bool(found)

    return has
