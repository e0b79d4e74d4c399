"""A store on a SQLite file in which runs have handed things over and used something, and may use so much, made through
the store's own verbs; and the names of what is in it.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from perdure import App, Budget
from perdure.core.answers import schema_bytes
from perdure.core.budgets import RAISE_OR_STOP, Amounts, BudgetFilter, BudgetRow, Limits, NewBudget, Spent
from perdure.core.codec import encode
from perdure.core.deliveries import Billing, Delivery, DeliveryState, delivery_id
from perdure.core.errors import encode_error
from perdure.core.keys import budget_place
from perdure.core.meters import Meter, billionths
from perdure.core.records import Claimed, ErrorInfo, WaitKind, budget_name, run_id
from perdure.testing.conformance.harness import Bench, Harness, attempt, end, park, step, wait
from perdure.testing.conformance.parcels import deliver, fetch, parcel, reserve, settled
from tests.runtime.desk import Desk

ERROR = "HTTPStatusError: 503 Service Unavailable\nthe shop is closed"


class Traded(msgspec.Struct):
    """What is in the store."""

    url: str
    order: str = ""
    """A completed run of tenant acme, on thread `orders/7`. It was billed, and has a budget of its own."""
    sent: str = ""
    """Delivered, to sink `invoices`."""
    dead: str = ""
    """Given up, in the same lane."""
    bill: str = ""
    """The run's; queued to sink `bills`."""
    research: str = ""
    """A run without a tenant, which goes on."""
    tried: str = ""
    """It failed once, and is tried again in an hour; to sink `mail`."""
    held: str = ""
    """In a relay's hands; to sink `mail`, in partition `b`."""
    behind: str = ""
    """It waits for that one."""
    asking: str = ""
    """A parked run that has asked `question`: whether the budget of agent `research` is raised."""
    question: str = ""


def meters(*amounts: tuple[str, str]) -> tuple[Meter, ...]:
    """So much was used."""
    return tuple(Meter(name, billionths(Decimal(amount))) for name, amount in amounts)


async def make(url: str) -> Traded:
    """Let it all happen."""
    made = Traded(url)
    app = App("shop", store=url)
    async with app:
        desk = Desk(app, Bench(Harness(), (await app._client()).store))
        await desk.app.set_budget("tenant:acme", Budget(usd=20, tokens=2_000_000), by="ann")
        await desk.app.set_budget("agent:research", Budget(steps=3, seconds="2m"))
        await _order(desk, made)
        await _research(desk, made)
        await _asking(desk, made)
    return made


async def at_now(desk: Desk) -> dict[str, int]:
    """When steps are recorded to have been."""
    now = await desk.bench.store.now_us()
    return {"started_at": now - 1_000, "ended_at": now}


async def named(desk: Desk, name: str) -> BudgetRow:
    """A budget's row."""
    (row,) = await desk.bench.store.budgets(BudgetFilter(prefix=name))
    return row


async def given(desk: Desk, worker: int, claimed: Claimed, payload: Any, **fields: Any) -> Delivery:
    """Something handed over, and claimed by this worker's relay."""
    new = await parcel(desk.bench, payload=encode(payload), **fields)
    await desk.bench.commit(worker, deliver(claimed, f"deliver:{new.sink}:{new.id}", new, **await at_now(desk)))
    (claim,) = await fetch(desk.bench, worker, (fields["sink"], 1))
    assert claim.id == new.id
    return claim


async def _order(desk: Desk, made: Traded) -> None:
    bench = desk.bench
    own = NewBudget(await bench.new_id(), budget_name(0), Limits(tokens=100_000))
    worker, claimed = await bench.begin(
        "orders/7", agent="order", tenant="acme", payload=encode([[], {}]), billing=Billing("bills", "b1"), budget=own
    )
    budgets = [await named(desk, name) for name in ("tenant:acme", budget_name(claimed.run))]
    spent = Spent(tuple(row.id for row in budgets), Amounts(usd=17_500_000_001, tokens=12_000, steps=1))
    used = meters(("usd", "17.500000001"), ("tokens", "12000"))
    await bench.commit(worker, step(claimed, "ask", encode("ok"), meters=used, spent=spent, **await at_now(desk)))
    invoice = {"sink": "invoices", "partition": "orders/7"}
    sent = await given(desk, worker, claimed, {"order": 7, "cents": 1_900}, **invoice)
    await settled(bench, sent)
    dead = await given(desk, worker, claimed, {"order": 7, "text": "a text that no column holds"}, **invoice)
    await settled(bench, dead, DeliveryState.DEAD, error=ERROR)
    await bench.commit(worker, end(claimed, encode("done")))
    (bill,) = await desk.app.deliveries(bill=True)
    made.order, made.bill = run_id(claimed.run), bill.id
    made.sent, made.dead = delivery_id(sent.id), delivery_id(dead.id)


async def _research(desk: Desk, made: Traded) -> None:
    bench = desk.bench
    worker, claimed = await bench.begin("topics", agent="research", payload=encode([[], {}]))
    budget = await named(desk, "agent:research")
    spent = Spent((budget.id,), Amounts(tokens=5, steps=2, us=110_000_000))
    asked = step(claimed, "ask", encode("ok"), meters=meters(("tokens", "5")), spent=spent, **await at_now(desk))
    error = encode_error(ErrorInfo("httpx.ConnectError", "refused", "Traceback …"))
    failed = attempt(claimed, "more", error=error, meters=meters(("tokens", "0.5")), **await at_now(desk))
    await bench.commit(worker, asked)
    await bench.commit(worker, failed, reserve(claimed, "more", budget, tokens=40))
    tried = await given(desk, worker, claimed, "hello", sink="mail", partition="a")
    await settled(bench, tried, DeliveryState.QUEUED, delay_s=3_600, error="ConnectError: refused")
    held = await given(desk, worker, claimed, "hello", sink="mail", partition="b")
    behind = await parcel(bench, sink="mail", partition="b", payload=encode("bye"))
    await bench.commit(worker, deliver(claimed, "deliver:mail#2", behind, **await at_now(desk)))
    made.research, made.tried = run_id(claimed.run), delivery_id(tried.id)
    made.held, made.behind = delivery_id(held.id), delivery_id(behind.id)


async def _asking(desk: Desk, made: Traded) -> None:
    bench = desk.bench
    worker, claimed = await bench.begin("more", agent="research", payload=encode([[], {}]))
    budget = await named(desk, "agent:research")
    payload = {
        "question": "Raise the budget, or stop?", "budget": budget.name, "limit": {"steps": 3}, "spent": {"steps": 3},
        "wanted": {"steps": 1}, "step": "look",
    }  # fmt: skip
    question = await bench.question(
        "budget", payload=encode(payload), schema=schema_bytes(RAISE_OR_STOP), budget=(budget.id, budget.rev)
    )
    place = budget_place(budget.id, budget.rev)
    await bench.commit(worker, wait(claimed, place, WaitKind.ANSWER, interrupt=question), park(claimed))
    made.asking, made.question = run_id(claimed.run), f"i{question.id}"


def build(path: Path) -> Traded:
    """The file, and what is in it."""
    return asyncio.run(make(f"sqlite:///{path}"))
