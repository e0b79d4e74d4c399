"""Budgets with many spenders in many processes, some of them killed: never more than the cap and what was in flight."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App, Budget
from perdure.core.budgets import BudgetFilter, BudgetRow
from perdure.store.protocol import Store
from tests.support.capping import CENTS, app_on
from tests.support.processes import Fleet
from tests.support.waiting import becomes

CHILDREN = 50
CALLS = 4
CENT = 10_000_000
"""In billionths of a dollar."""


@pytest.fixture
def spenders(fleet: Fleet) -> Fleet:
    fleet.extra |= {"PERDURE_TEST_AGENTS": "tests.support.capping"}
    return fleet


@pytest.mark.parametrize("foreseen", [True, False], ids=["estimated", "without estimates"])
def test_fifty_children_at_once_never_exceed_the_cap_by_more_than_what_was_in_flight(
    spenders: Fleet, foreseen: bool
) -> None:
    """The cap is worth 80 of 200 calls. With estimates it holds to the cent; without, for what is in flight."""
    cap = 80 * CENTS
    most: list[int] = []

    async def main(app: App) -> None:
        async with app:
            store = (await app._client()).store
            for worker in [spenders.hire(concurrency=40) for _ in range(3)]:
                worker.started()
            handle = await app.start("spenders", CHILDREN, CALLS, foreseen, budget=Budget(usd=cap / 100))
            name = f"run:{handle.run_id}"
            await becomes(lambda: _spent(store, name, most, cap * CENT // 4), "a part is spent")
            spenders.alive[0].kill()
            spenders.hire(concurrency=40)
            await becomes(lambda: _all_wait(app, store, name, most), "all that are left wait", within_s=50)
            [row] = await rows(store, name)
            at_rest = row.spent.usd
            assert row.reserved.usd == 0
            assert (row.limits.usd or 0) - at_rest < CENTS * CENT, "nobody waits while there is room"
            await app.set_budget(name, Budget(usd=100))
            assert await handle.result(timeout=40) == CHILDREN * CALLS
            assert await app.interrupts() == []

    asyncio.run(main(app_on(spenders.store_url)))
    in_flight = 0 if foreseen else 50 * CENTS
    assert max(most) <= (cap + in_flight) * CENT


async def rows(store: Store, name: str) -> list[BudgetRow]:
    return [row for row in await store.budgets(BudgetFilter(prefix=name)) if row.name == name]


async def _spent(store: Store, name: str, most: list[int], wanted: int) -> bool:
    [row] = await rows(store, name)
    most.append(row.spent.usd)
    return row.spent.usd >= wanted


async def _all_wait(app: App, store: Store, name: str, most: list[int]) -> bool:
    """Whether each child has ended or asks, and nothing is in flight."""
    [row] = await rows(store, name)
    most.append(row.spent.usd)
    ended = await app.runs(state="completed", agent="spender", limit=CHILDREN)
    return len(ended) + len(await app.interrupts(limit=CHILDREN + 1)) == CHILDREN and row.reserved.usd == 0
