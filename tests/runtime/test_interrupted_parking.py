"""What comes in the very moment in which a run is being parked reaches its code, and what that does is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import perdure
from perdure import RunCancelled
from perdure.core.endings import HandedBack
from perdure.core.failures import cancellation
from perdure.core.records import Wait, WaitKind
from perdure.runtime.frames import outside
from perdure.runtime.interruption import Cancelled
from perdure.runtime.parking import Parking
from perdure.runtime.superstep import SuperStep
from perdure.runtime.waker import Waker
from tests.runtime.world import fresh_app, idle, parked, working

Moment = Callable[[SuperStep, Callable[[], None]], Coroutine[Any, Any, None]]


def at_the_first_rest(monkeypatch: pytest.MonkeyPatch, moment: Moment) -> None:
    """When a super-step first comes to rest, have `moment` do what it likes before and after the parking begins."""
    original = Parking.at_rest
    seen: list[asyncio.Task[None]] = []

    def at_rest(parking: Parking) -> None:
        if not seen:
            with outside():  # else it would be a branch of the agent
                seen.append(asyncio.get_running_loop().create_task(moment(parking._at, lambda: original(parking))))
        elif seen[0].done():
            seen[0].result()
            original(parking)

    monkeypatch.setattr(Parking, "at_rest", at_rest)


async def ready(at: SuperStep) -> Wait:
    """The run's first wait that is over, once there is one."""
    while True:
        for wait in await at.host.store.waits([at.claimed.run]):
            if wait.ready:
                return wait
        await asyncio.sleep(0)


def test_a_cancellation_in_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()
    cleaned_up: list[str] = []

    async def moment(at: SuperStep, park: Callable[[], None]) -> None:
        await at.host.store.cancel(at.claimed.run, "enough", cancellation("enough"))
        park()
        at.interrupt(Cancelled("enough"))

    @app.agent
    async def asks() -> None:
        try:
            await perdure.interrupt("well?")
        finally:
            cleaned_up.append("once")

    async def main() -> None:
        at_the_first_rest(monkeypatch, moment)
        async with working(app):
            with pytest.raises(RunCancelled, match="enough"):
                await (await app.start(asks)).result(timeout=10)
            assert cleaned_up == ["once"]

    asyncio.run(main())


def test_the_end_of_a_limit_in_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()

    async def moment(at: SuperStep, park: Callable[[], None]) -> None:
        due = await ready(at)
        assert due.kind is WaitKind.TIMER
        park()
        at.waiting.feed(due)

    @app.agent
    async def limited() -> str:
        try:
            async with perdure.timeout(0.05):
                await perdure.interrupt("never answered")
        except TimeoutError:
            return "timed out"
        return "never"

    async def main() -> None:
        at_the_first_rest(monkeypatch, moment)
        async with working(app, poll_s=60):
            assert await (await app.start(limited)).result(timeout=10) == "timed out"

    asyncio.run(main())


def test_the_end_of_a_sleep_in_that_moment_and_the_step_after_it_are_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fresh_app()

    @perdure.step
    async def buy(what: str) -> str:
        return f"bought {what}"

    @app.agent
    async def naps_and_asks() -> list[str]:
        async def nap() -> str:
            await perdure.sleep(0.05)
            return await buy("tea")

        return list(await asyncio.gather(nap(), perdure.interrupt("and?")))

    async def moment(at: SuperStep, park: Callable[[], None]) -> None:
        due = await ready(at)
        park()
        at.waiting.feed(due)

    async def main() -> None:
        at_the_first_rest(monkeypatch, moment)
        async with working(app) as worker:
            handle = await app.start(naps_and_asks)
            await parked(handle, worker)
            (question,) = await app.interrupts()
            await app.resume(question.id, "milk")
            assert await handle.result(timeout=10) == ["bought tea", "milk"]
            assert {row.key for row in await handle.history()} == {"", "1/sleep", "1/buy", "2/interrupt"}

    asyncio.run(main())


def test_a_run_that_is_handed_back_in_that_moment_and_is_not_parked_is_not_left_lying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store lets the parking go first, and that says no; nobody reads what comes behind it in the same batch."""
    app = fresh_app()

    async def moment(at: SuperStep, park: Callable[[], None]) -> None:
        store, flushed = at.host.store, asyncio.Event()
        commit = store.commit

        async def when_all_is_said(*args: Any) -> Any:
            await flushed.wait()
            return await commit(*args)

        async def look(waker: Waker) -> None:
            """What is ready is not delivered."""

        monkeypatch.setattr(Waker, "_look", look)
        monkeypatch.setattr(store, "commit", when_all_is_said)
        at.append("first", 0, 1, b"", failed=False, started_at=0)  # this batch is on its way, and the next one collects
        await idle()
        await ready(at)
        park()
        at.close(HandedBack())
        await idle()
        flushed.set()

    @app.agent
    async def naps() -> str:
        await perdure.sleep(0.01)
        return "slept"

    async def main() -> None:
        at_the_first_rest(monkeypatch, moment)
        async with working(app):
            assert await (await app.start(naps)).result(timeout=10) == "slept"

    asyncio.run(main())
