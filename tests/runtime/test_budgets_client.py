"""Budgets from a client: setting them, and how far they are."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal

import pytest

from perdure import Budget
from perdure.client.budgets import set_limits
from perdure.core.budgets import BudgetFilter, Limits, NewBudget
from perdure.core.records import budget_name, run_id
from perdure.errors import NotFound, UsageError
from perdure.testing.conformance.harness import step
from perdure.testing.conformance.parcels import reserve, spent
from tests.runtime.desk import Desk, at_a_desk

NONE = {"usd": None, "tokens": None, "steps": None, "seconds": None}


@at_a_desk
async def test_a_budget_is_set_whole_and_what_is_spent_stays(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    first = await desk.app.set_budget("agent:agent", Budget(usd=2.5, tokens=1_000, seconds="1m"), by="ann")
    (row,) = await desk.bench.store.get_budgets([await number_of(desk, "agent:agent")])
    await desk.bench.commit(worker, reserve(claimed, "a", row, tokens=300), reserve(claimed, "b", row, tokens=200))
    await desk.bench.commit(worker, step(claimed, "a", spent=spent(row, tokens=250)))

    second = await desk.app.set_budget("agent:agent", Budget(tokens=9_000))

    assert (first.name, first.rev, first.by) == ("agent:agent", 1, "ann")
    assert first.limits == NONE | {"usd": 2.5, "tokens": 1_000, "seconds": 60.0}
    assert (second.rev, second.by, second.limits) == (2, None, NONE | {"tokens": 9_000})
    assert (second.spent["tokens"], second.reserved["tokens"]) == (250, 200)
    assert second.created_at == first.created_at <= second.updated_at and first.created_at.tzinfo is UTC
    assert await desk.app.budget_info("agent:agent") == second


async def number_of(desk: Desk, name: str) -> int:
    (row,) = await desk.bench.store.budgets(BudgetFilter(prefix=name))
    return row.id


@at_a_desk
async def test_budgets_are_listed_by_name(desk: Desk) -> None:
    for name in ("tenant:b", "tenant:a", "agent:agent"):
        await desk.app.set_budget(name, Budget(steps=3))

    async def names(*prefix: str, **page: object) -> list[str]:
        return [info.name for info in await desk.app.budgets(*prefix, **page)]  # type: ignore[arg-type]

    assert await names() == ["agent:agent", "tenant:a", "tenant:b"]
    assert await names("tenant:") == ["tenant:a", "tenant:b"]
    assert await names(limit=1) == ["agent:agent"]
    assert await names(limit=1, after="agent:agent") == ["tenant:a"]


@at_a_desk
async def test_a_run_has_a_budget_of_its_own_only_from_its_start_on(desk: Desk) -> None:
    limits = NewBudget(await desk.bench.new_id(), budget_name(0), Limits(tokens=5))
    with_one, without = await desk.bench.start("one", budget=limits), await desk.bench.start("two")

    raised = await desk.app.set_budget(budget_name(with_one), Budget(tokens=50))

    assert (raised.name, raised.limits["tokens"]) == (f"run:{run_id(with_one)}", 50)
    with pytest.raises(NotFound, match=r"agent or its tenant"):
        await desk.app.set_budget(budget_name(without), Budget(tokens=50))
    assert [info.name for info in await desk.app.budgets()] == [raised.name]


@at_a_desk
async def test_a_budget_is_found_by_its_whole_name(desk: Desk) -> None:
    await desk.app.set_budget("tenant:acme2", Budget(usd=1))

    with pytest.raises(NotFound, match="perdure budgets list"):
        await desk.app.budget_info("tenant:acme")


@at_a_desk
async def test_what_no_budget_can_be_is_refused(desk: Desk) -> None:
    for wrong, said in (
        (desk.app.set_budget("acme", Budget(usd=1)), "tenant:acme, agent:order or run:r42"),
        (desk.app.set_budget("run:42", Budget(usd=1)), "run:r42"),
        (desk.app.set_budget("queue:gpu", Budget(usd=1)), "tenant:acme"),
        (desk.app.set_budget("tenant:", Budget(usd=1)), "tenant"),
        (desk.app.set_budget("tenant:acme", 20), "perdure.Budget"),  # type: ignore[arg-type]
        (desk.app.set_budget("tenant:acme", Budget(usd=1), by=""), "by"),
        (desk.app.budget_info("acme"), "tenant:acme"),
        (desk.app.budgets(""), "prefix"),
        (desk.app.budgets(after=""), "budget's name"),
        (desk.app.budgets(limit=0), "limit"),
    ):
        with pytest.raises(UsageError, match=said):
            await wrong
    with pytest.raises(UsageError, match="limits something"):
        Budget()


@at_a_desk
async def test_limits_that_are_not_named_stay_as_they_are_to_the_billionth(desk: Desk) -> None:
    exact = Decimal("8123456789.123456789")
    client = await desk.app._client()

    await set_limits(client, "tenant:acme", {"usd": exact, "steps": 5}, by=None)
    await set_limits(client, "tenant:acme", {"seconds": "1m", "steps": None}, by="ann")

    [row] = await client.store.budgets(BudgetFilter())
    assert (row.limits, row.rev, row.by) == (Limits(usd=8_123_456_789_123_456_789, us=60_000_000), 2, "ann")
