"""Usage from a client: exact sums, by whatever is asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from perdure.core.meters import Meter, billionths
from perdure.core.records import Claimed, run_id
from perdure.errors import UsageError
from perdure.testing.conformance.harness import attempt, step
from tests.runtime.desk import Desk, at_a_desk


async def used(desk: Desk, thread_id: str, *amounts: tuple[str, str], agent: str = "agent", **run: str) -> Claimed:
    """A run with a step that has used so much; it goes on."""
    worker, claimed = await desk.bench.begin(thread_id, agent=agent, **run)
    meters = tuple(Meter(name, billionths(Decimal(amount))) for name, amount in amounts)
    await desk.bench.commit(worker, step(claimed, "ask", meters=meters))
    return claimed


@at_a_desk
async def test_usage_is_summed_exactly_by_tenant_agent_run_and_day(desk: Desk) -> None:
    one = await used(desk, "one", ("usd", "0.1"), ("usd", "0.2"), ("tokens", "900"), tenant="acme")
    two = await used(desk, "two", ("usd", "0.000000001"), agent="stateless")
    rows = desk.app.usage

    assert [(row.group, row.name, row.quantity, row.entries) for row in await rows(by="tenant")] == [
        ("", "usd", Decimal("0.000000001"), 1), ("acme", "tokens", Decimal(900), 1), ("acme", "usd", Decimal("0.3"), 2),
    ]  # fmt: skip
    assert [(row.group, row.name) for row in await rows("agent", name="usd")] == [
        ("agent", "usd"),
        ("stateless", "usd"),
    ]
    assert [row.group for row in await rows("run", name="usd")] == [run_id(one.run), run_id(two.run)]
    today = {datetime.now(UTC).date() - timedelta(days=days) for days in (0, 1)}
    (day,) = await rows("day", name="usd")
    assert day.group in {each.isoformat() for each in today} and day.quantity == Decimal("0.300000001")


@at_a_desk
async def test_usage_can_be_narrowed_and_paged(desk: Desk) -> None:
    one = await used(desk, "one", ("usd", "1"), ("tokens", "2"), tenant="acme")
    await used(desk, "two", ("usd", "4"), agent="stateless")
    now = datetime.now(UTC)

    async def total(**where: object) -> Decimal:
        return sum((row.quantity for row in await desk.app.usage("run", **where)), Decimal(0))  # type: ignore[arg-type]

    assert await total() == 7
    assert await total(tenant="acme") == await total(agent="agent") == await total(run_id=run_id(one.run)) == 3
    assert await total(name="tokens") == 2
    assert await total(since=now - timedelta(hours=1), until=now + timedelta(hours=1)) == 7
    assert await total(until=(now - timedelta(days=1)).date()) == await total(since=now + timedelta(hours=1)) == 0
    assert await total(since=(now - timedelta(days=1)).isoformat(), until=(now + timedelta(days=2)).date()) == 7
    for by in ("tenant", "agent", "run", "day"):
        everything = await desk.app.usage(by)
        paged = await desk.app.usage(by, limit=1)
        while page := await desk.app.usage(by, limit=1, after=(paged[-1].group, paged[-1].name)):
            paged += page
        assert paged == everything


@at_a_desk
async def test_what_a_failed_try_has_used_counts(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    failed = attempt(claimed, "ask", error=b"error", ended_at=2_000, meters=(Meter("tokens", billionths(5)),))
    await desk.bench.commit(worker, failed)

    (row,) = await desk.app.usage("run")

    assert row.quantity == 5


@at_a_desk
async def test_what_nothing_can_be_summed_by_is_refused(desk: Desk) -> None:
    for wrong, said in (
        (desk.app.usage("month"), "one of: tenant"),
        (desk.app.usage("run", run_id="acme"), "r42"),
        (desk.app.usage("run", tenant=""), "tenant"),
        (desk.app.usage("run", name=""), "name"),
        (desk.app.usage("run", limit=2_000), "limit"),
        (desk.app.usage("run", since=datetime(2026, 11, 1)), "time zone"),
        (desk.app.usage("run", since="yesterday"), "days look like"),
        (desk.app.usage("run", since="2026-11-02", until="2026-11-02"), "not after"),
        (desk.app.usage("run", after=("acme", "usd")), "r42"),
        (desk.app.usage("day", after=("today", "usd")), "2026-11-30"),
        (desk.app.usage("day", after="usd"), "the group and the name"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=said):
            await wrong
