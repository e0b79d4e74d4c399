"""Durable sleep: never short, never slept twice, and caught up with where nobody was there to wake from it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import perdure
from tests.runtime.acting import begun
from tests.runtime.world import asked, fresh_app, keys_of, parked, passes, result_of, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


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
        await perdure.sleep(0.5)  # it must not be over before the test has seen it
        return "awake"

    async def main() -> str:
        async with app:
            async with app.worker(poll_s=0.05) as worker:
                handle = await app.start(agent)
                await parked(handle, worker)
            await passes(0.5)
            assert (await handle.status()).state == "waiting"
            async with app.worker(poll_s=30.0):
                return await handle.result(timeout=20)

    assert asyncio.run(main()) == "awake"


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
