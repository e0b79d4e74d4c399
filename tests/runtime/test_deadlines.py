"""Time limits that share a timer, and otherwise are `asyncio.timeout`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import perdure
from perdure import RunFailed
from perdure.clock import SYSTEM_CLOCK
from perdure.runtime.deadlines import QUEUES_MAX, Deadlines
from tests.runtime.world import fresh_app, working

SOON_S = 0.01
FAR_S = 3600.0


def within(body: Callable[[Deadlines], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(20):
            return await body(Deadlines(SYSTEM_CLOCK))

    return asyncio.run(main())


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_block_that_outlasts_its_limit_raises_a_timeout() -> None:
    async def body(deadlines: Deadlines) -> None:
        with pytest.raises(TimeoutError), deadlines.within(SOON_S):
            await for_ever()
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0

    within(body)


def test_a_block_that_ends_in_time_is_left_alone() -> None:
    async def body(deadlines: Deadlines) -> None:
        with deadlines.within(FAR_S), deadlines.within(None):
            await asyncio.sleep(0)
        with deadlines.within(SOON_S):
            pass
        with pytest.raises(TimeoutError), deadlines.within(SOON_S):
            await for_ever()

    within(body)


def test_limits_of_one_length_expire_each_at_its_own_time() -> None:
    async def body(deadlines: Deadlines) -> list[int]:
        expired: list[int] = []
        started = [asyncio.Event() for _ in range(3)]

        async def wait(number: int) -> None:
            try:
                with deadlines.within(SOON_S):
                    started[number].set()
                    await for_ever()
            except TimeoutError:
                expired.append(number)

        tasks = []
        for number in range(3):
            tasks.append(asyncio.create_task(wait(number)))
            await started[number].wait()
        await asyncio.gather(*tasks)
        return expired

    assert within(body) == [0, 1, 2]


def test_the_inner_limit_is_the_inner_blocks_error() -> None:
    async def body(deadlines: Deadlines) -> str:
        try:
            with deadlines.within(FAR_S):
                try:
                    with deadlines.within(SOON_S):
                        await for_ever()
                except TimeoutError:
                    return "inner"
        except TimeoutError:
            return "outer"
        return "none"

    assert within(body) == "inner"


def test_a_cancellation_from_outside_is_not_turned_into_a_timeout() -> None:
    async def body(deadlines: Deadlines) -> None:
        entered = asyncio.Event()

        async def wait() -> None:
            with deadlines.within(FAR_S):
                entered.set()
                await for_ever()

        task = asyncio.create_task(wait())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    within(body)


def test_a_cancellation_that_comes_with_the_limit_wins() -> None:
    async def body(deadlines: Deadlines) -> None:
        async def wait() -> None:
            with deadlines.within(SOON_S):
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                    raise

        task = asyncio.create_task(wait())
        with pytest.raises(asyncio.CancelledError):
            await task

    within(body)


def test_another_error_of_the_block_stays_what_it_is() -> None:
    async def body(deadlines: Deadlines) -> None:
        with pytest.raises(ValueError, match="mine"), deadlines.within(SOON_S):
            try:
                await for_ever()
            finally:
                raise ValueError("mine")

    within(body)


def test_lengths_without_number_are_forgotten_again() -> None:
    async def body(deadlines: Deadlines) -> int:
        for number in range(10 * QUEUES_MAX):
            with deadlines.within(FAR_S + number):
                pass
        return len(deadlines._queues)

    assert within(body) <= QUEUES_MAX


def test_a_limit_that_ran_out_is_named_with_what_it_is_for() -> None:
    app = fresh_app()

    @perdure.step(timeout=SOON_S, retry=1)
    async def ask() -> None:
        await for_ever()

    @app.agent
    async def of_step() -> None:
        await ask()

    @app.agent(timeout=SOON_S, retry=1)
    async def of_agent() -> None:
        await for_ever()

    async def main() -> None:
        async with working(app):
            for agent, message in ((of_step, "for step 'ask' ran out"), (of_agent, "for the agent ran out")):
                with pytest.raises(RunFailed, match=f"the limit of 0.01 s {message}"):
                    await (await app.start(agent)).result(timeout=20)

    asyncio.run(main())

    async def body(deadlines: Deadlines) -> None:
        with pytest.raises(TimeoutError, match=r"^the limit of 0.01 s ran out$"), deadlines.within(SOON_S):
            await for_ever()

    within(body)
