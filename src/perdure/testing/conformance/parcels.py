"""Deliveries, budgets and what they are told, made short: what a scenario does not say has a usual value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.budgets import UNKNOWN, Amounts, BudgetRow, Limits, NewBudget, Spent
from perdure.core.changes import Deliver, Reserve
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, DeliveryState, NewDelivery, Settlement
from perdure.core.meters import UNIT, Meter
from perdure.core.records import Claimed
from perdure.store.protocol import Store
from perdure.testing.conformance.builders import at, step
from perdure.testing.conformance.harness import Bench

SINK: Final = "bus"
LANE: Final = (SINK, "p")

QUEUED, DELIVERING = DeliveryState.QUEUED, DeliveryState.DELIVERING
DELIVERED, DEAD = DeliveryState.DELIVERED, DeliveryState.DEAD


# -- deliveries ----------------------------------------------------------------------------------------------


async def parcel(bench: Bench, key: str | None = None, **fields: Any) -> NewDelivery:
    """Something to be handed over, under a fresh number."""
    id = await bench.new_id()
    default: dict[str, Any] = {"sink": SINK, "partition": "p", "payload": b"data"}
    return NewDelivery(id, key=key or f"key of {id}", **(default | fields))


def deliver(claimed: Claimed, key: str, new: NewDelivery, **record: Any) -> Deliver:
    """A delivery asked for by a step of this claim, with its record."""
    asked = step(claimed, key, b"asked", **record)
    return Deliver(key=key, record=asked, delivery=new, super_step=asked.super_step, **at(claimed))


async def handed(bench: Bench, worker: int, claimed: Claimed, count: int = 1, **fields: Any) -> list[int]:
    """Deliveries that steps of this claim's run have asked for, in one batch, in this order; their numbers."""
    parcels = [await parcel(bench, **fields) for _ in range(count)]
    await bench.commit(worker, *(deliver(claimed, f"d{each.id}", each) for each in parcels))
    return [each.id for each in parcels]


async def fetch(
    bench: Bench,
    worker: int,
    *sinks: tuple[str, int],
    keep: Sequence[int] = (),
    suspects: int = 1,
    store: Store | None = None,
) -> list[Delivery]:
    """Claim deliveries of these sinks, of the usual one if none is named."""
    request = ClaimDeliveries(worker, sinks or ((SINK, 100),), tuple(keep), suspects)
    return await (store or bench.store).claim_deliveries(request)


async def fetch_one(bench: Bench, worker: int, **fields: Any) -> Delivery:
    """Claim exactly one delivery."""
    (delivery,) = await fetch(bench, worker, **fields)
    return delivery


def said(delivery: Delivery, state: DeliveryState = DELIVERED, delay_s: float = 0, **fields: Any) -> Settlement:
    """What came of the try of this delivery as it was claimed."""
    return Settlement(delivery.id, delivery.attempts, state, int(delay_s * 1_000_000), **fields)


async def settled(bench: Bench, delivery: Delivery, state: DeliveryState = DELIVERED, **fields: Any) -> None:
    """Say what came of this try, as the worker that has claimed it."""
    assert delivery.worker is not None
    await bench.store.settle_deliveries(delivery.worker, [said(delivery, state, **fields)])


async def row_of(bench: Bench, delivery: int) -> Delivery:
    (found,) = await bench.store.get_deliveries([delivery])
    return found


async def lane(bench: Bench, sink: str = SINK, partition: str = "p") -> list[int]:
    """The open deliveries of a lane, in its order; their numbers. Only the first is ready."""
    rows = await bench.store.deliveries(DeliveryFilter(sink=sink, partition=partition, limit=1_000))
    there = sorted((row for row in rows if row.state in (QUEUED, DELIVERING)), key=lambda row: row.seq)
    assert [row.ready for row in there] == [number == 0 for number in range(len(there))]
    assert not any(row.ready for row in rows if row.state in (DELIVERED, DEAD))
    assert len({row.seq for row in rows}) == len(rows)
    return [row.id for row in there]


# -- meters and budgets --------------------------------------------------------------------------------------


def meter(name: str = "tokens", quantity: int = 1, attributes: bytes = b"") -> Meter:
    """So many of something."""
    return Meter(name, quantity * UNIT, attributes)


async def budget(bench: Bench, name: str = "agent:other", **fields: Any) -> BudgetRow:
    """Set a budget, of a thousand tokens if nothing is said; `by` says who does."""
    by = fields.pop("by", None)
    given = Limits(**(fields or {"tokens": 1_000}))
    return await bench.store.set_budget(NewBudget(await bench.new_id(), name, given), by)


def reserve(claimed: Claimed, key: str, *budgets: BudgetRow, tokens: int = 10, **fields: Any) -> Reserve:
    """What a try of a step of this claim may cost: so many tokens, a try, and nobody knows how much of the rest."""
    default: dict[str, Any] = {
        "super_step": claimed.super_step,
        "budgets": tuple(each.id for each in budgets),
        "amounts": Amounts(UNKNOWN, tokens or UNKNOWN, 1, UNKNOWN),
    }
    return Reserve(key=key, **(at(claimed) | default | fields))


def spent(*budgets: BudgetRow, tokens: int = 10) -> Spent:
    """What a try has come to, and the budgets that it counts against."""
    return Spent(tuple(each.id for each in budgets), Amounts(tokens=tokens, steps=1))


async def tokens(bench: Bench, *budgets: BudgetRow) -> list[tuple[int, int]]:
    """The tokens that are spent and reserved in these budgets, in the order given."""
    rows = {row.id: row for row in await bench.store.get_budgets([each.id for each in budgets])}
    return [(rows[each.id].spent.tokens, rows[each.id].reserved.tokens) for each in budgets]
