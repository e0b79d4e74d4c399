"""Budgets: what counts, and how much of it, where code cleans up, clocks step and bodies raise what they should not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Budget, Cost, Retry, RunCancelled, StepFailed
from perdure.clock import SystemClock
from perdure.core.budgets import BudgetFilter, BudgetRow
from tests.runtime.paying import run
from tests.runtime.world import asked, fresh_app

DOLLAR = 1_000_000_000
TWICE_MORE = Retry(attempts=3, delay_s=0.01, retry_on=(ValueError,))


async def budget_of(app: Any, handle: Any) -> BudgetRow:
    client = await app._client()
    [row] = await client.store.budgets(BudgetFilter(f"run:{handle.run_id}"))
    return row


@pytest.mark.parametrize("kind", [perdure.step, perdure.effect])
@pytest.mark.parametrize("limit", [100, 0.5], ids=["enough", "too little"])
def test_every_try_of_code_that_cleans_up_counts_and_none_is_held_up(kind: Any, limit: float) -> None:
    app = fresh_app()
    reached, failures = asyncio.Event(), iter([ValueError("no"), ValueError("still no"), None])

    @kind(retry=TWICE_MORE, estimate=Cost(usd=1))
    async def clean() -> None:
        perdure.meter("usd", 1)
        if (error := next(failures)) is not None:
            raise error

    @app.agent
    async def agent() -> None:
        try:
            reached.set()
            await perdure.sleep("1h")
        finally:
            await clean()

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=limit))
        await reached.wait()
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=20)
        row = await budget_of(app, handle)
        assert (row.spent.usd, row.spent.steps, row.reserved.usd) == (3 * DOLLAR, 3, 0)

    run(app, main)


@pytest.mark.parametrize("step_s", [3600, -3600], ids=["forwards", "back"])
@pytest.mark.parametrize("kind", [perdure.step, perdure.effect])
def test_the_seconds_of_a_body_are_counted_by_a_clock_that_nobody_sets(
    kind: Any, step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app()
    wall_us, stepped = SystemClock.wall_us, [0]
    monkeypatch.setattr(SystemClock, "wall_us", lambda self: wall_us(self) + stepped[0] * 1_000_000)

    @kind
    async def slow() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        stepped[0] = step_s
        while loop.time() - began < 0.02:
            await asyncio.sleep(0)

    @app.agent
    async def agent() -> None:
        await slow()

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(seconds=60))
        await handle.result(timeout=20)
        row = await budget_of(app, handle)
        assert 20_000 <= row.spent.us < 60_000_000

    run(app, main)


class OddError(BaseException):
    """What no code should raise."""


@pytest.mark.parametrize("kind", [perdure.step, perdure.effect])
def test_a_body_that_raises_what_is_no_exception_has_failed_and_what_it_used_counts(kind: Any) -> None:
    app = fresh_app()

    @kind(retry=1, estimate=Cost(usd=5))
    async def odd() -> None:
        perdure.meter("usd", 0.25)
        raise OddError("out of here")

    @app.agent
    async def agent() -> str:
        try:
            await odd()
        except StepFailed as error:
            return str(error)
        return "it has not failed"

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        assert "OddError: out of here (it is no Exception" in await handle.result(timeout=20)
        row = await budget_of(app, handle)
        assert (row.spent.usd, row.reserved.usd) == (DOLLAR // 4, 0)

    run(app, main)


def test_a_branch_that_has_read_a_budget_before_another_set_it_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's question is answered while it reads: it looks again, and the budget is set once."""
    app = fresh_app()

    @perdure.step(estimate=Cost(usd=1))
    async def think(n: int) -> int:
        perdure.meter("usd", 1)
        return n

    @app.agent
    async def agent() -> list[int]:
        await think(0)
        return await asyncio.gather(think(1), think(2))

    async def main() -> None:
        store = (await app._client()).store
        get, set_budget = type(store).get_budgets, type(store).set_budget
        held: list[asyncio.Event] = []
        done: list[int] = []

        async def read_late(self: Any, asked: Any) -> Any:
            rows = await get(self, asked)
            if answered.is_set() and rows[0].rev == 1 and not held:
                held.append(asyncio.Event())
                await held[0].wait()
            return rows

        async def counted(self: Any, budget: Any, *args: Any, **named: Any) -> Any:
            row = await set_budget(self, budget, *args, **named)
            done.append(row.rev)
            return row

        answered = asyncio.Event()
        monkeypatch.setattr(type(store), "get_budgets", read_late)
        handle = await app.start(agent, budget=Budget(usd=1))
        question = (await asked(app, handle))["budget"]
        monkeypatch.setattr(type(store), "set_budget", counted)
        answered.set()
        await app.resume(question, {"raise_to": {"usd": 100}})
        while not done or not held:
            await asyncio.sleep(0)
        held[0].set()
        assert await handle.result(timeout=20) == [1, 2]
        assert done == [2]

    run(app, main)
