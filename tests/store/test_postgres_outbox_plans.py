"""C26 for the outbox, meters and budgets: plans made on empty tables stay right when they are full."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.budgets import Amounts, BudgetFilter, Limits, NewBudget, Spent
from perdure.core.changes import AppendCheckpoint, CommitOutcome, Deliver, NewInterrupt, RecordAttempt, Reserve
from perdure.core.deliveries import (
    Billing,
    ClaimDeliveries,
    DeliveryFilter,
    DeliveryState,
    NewDelivery,
    Settlement,
)
from perdure.core.meters import Meter, UsageBy, UsageFilter
from perdure.core.records import Claimed, WaitKind
from perdure.core.requests import ClaimRequest, NewMessage, NewWorker, Parent, Sent
from perdure.store.postgres import PostgresStore
from tests.store import test_postgres_plans as plans
from tests.store.test_postgres_plans import at, place, start, step, wait
from tests.support import postgres

pytestmark = pytest.mark.postgres

ROWS = 50_000
TABLES = (*plans.TABLES, "lanes", "deliveries", "meters", "budgets", "reservations")

INDEXES = {
    "deliveries_backlog",
    "deliveries_claimable",
    "deliveries_key",
    "deliveries_undelivered",
    "deliveries_run",
    "deliveries_worker",
    "interrupts_budget",
    "messages_key",
    "meters_at",
    "reservations_budget",
}
"""Those that are there for one question each."""

FILL = """
insert into {schema}.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
select -n, 1, 0, 0, null, 'old' || n, 'agent' from generate_series(1, {rows}) n;
insert into {schema}.runs (
  id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready, state,
  agent, queue, digest
)
select -n, -n, 1, 0, 1, 0, 0, 1, 0, 0, 1, false, 'completed', 'agent', 'lane', '' from generate_series(1, {rows}) n;
insert into {schema}.lanes (last_seq, depth, sink, partition)
select 1, 1, 'bus', 'old' || n from generate_series(1, {rows}) n;
insert into {schema}.deliveries (
  id, run, fence, seq, due_at, created_at, worker, bill, ready, state, sink, partition, key, payload
)
select
  -n, -n, 1, 1, case n % 4 when 1 then 4000000000000000 else 0 end, 0, case n % 4 when 2 then -n end, n % 5 = 0,
  n % 4 in (1, 2), case n % 4 when 1 then 'queued' when 2 then 'delivering' when 3 then 'delivered' else 'queued' end,
  'bus', 'old' || n, 'old' || n, ''
from generate_series(1, {rows}) n;
insert into {schema}.meters (run, fence, quantity, at, super_step, attempt, number, key, name, attributes)
select -n, 1, 1, n, 1, 1, 0, 's', 'usd', '' from generate_series(1, {rows}) n;
insert into {schema}.budgets (id, rev, created_at, updated_at, name, limits)
select -n, 1, 0, 0, 'run:r-' || n, '{{null, 1, null, null}}' from generate_series(1, {rows}) n;
insert into {schema}.reservations (run, budget, fence, super_step, key, amounts)
select -n, -n, 1, 1, 's', '{{0, 1, 1, 0}}' from generate_series(1, {rows}) n;
insert into {schema}.interrupts (id, run, created_at, super_step, state, key, name, digest, on_timeout, payload, budget)
select -n, -n, 0, 1, 'open', 'w', 'raise', '', 'raise', '', -n from generate_series(1, {rows}) n;
insert into {schema}.messages (id, thread, seq, sent_at, taken_at, sender, label, key, payload)
select -n, -n, 1, 0, 1, '', 'note', 'k' || n, '' from generate_series(1, {rows}) n;
"""


def test_c26_the_plans_of_the_outbox_stay_right_when_its_tables_are_full() -> None:
    found: list[dict[str, Any]] = []

    async def main() -> None:
        url = postgres.shared().fresh_url()
        schema = url.rpartition("=")[2]
        store = PostgresStore(url)
        await store.open()
        for table in TABLES:
            await plans.execute(url, f"alter table {schema}.{table} set (autovacuum_enabled = off)")
        for _ in range(6):
            await use(store)
        await plans.execute(url, FILL.format(schema=schema, rows=ROWS))
        for line in [store._commits, store._claims, *store._clients._lines]:
            if line.connection is not None:
                line.connection.add_log_listener(lambda _, message: found.extend(plans.parse(message.message)))
                await line.connection.execute(plans.EXPLAIN)
        await use(store)
        await store.close()

    asyncio.run(main())

    assert len(found) > 60
    wasteful = [
        f"{node['Node Type']} on {node.get('Relation Name')} {node.get('Index Name', '')} in {plan['Query Text']}"
        for plan in found
        for node in plans.nodes(plan["Plan"])
        if node.get("Relation Name", "workers") != "workers" and node["Node Type"] != "ModifyTable"
        if plans.rows_read(node) > plans.ROWS_READ_MAX or plans.pages_read(node) > plans.PAGES_READ_MAX
    ]
    assert wasteful == []
    assert {node.get("Index Name") for plan in found for node in plans.nodes(plan["Plan"])} >= INDEXES


async def use(store: PostgresStore) -> None:
    """Every verb of the outbox, of meters and of budgets, on a few runs."""
    first = await store.reserve_ids(60)
    worker = first + 40
    await store.register(NewWorker(worker, "w", "h", 1, "v1", 3_600_000_000))
    budget = NewBudget(first + 41, "run:", Limits(tokens=1_000))
    terms = {"budget": budget, "billing": Billing(f"bills{first}", f"b{first}"), "tenant": f"tenant{first}"}
    await store.start([replace(start(first, f"o{first}"), **terms), start(first + 1, f"o{first + 1}")])
    request = ClaimRequest(worker, ("agent", "none"), ("lane", "none"), "v1", 10)
    one, two = sorted(await store.claim(request), key=lambda claimed: claimed.run)
    parent = Parent(one.run, one.fence, worker)
    await store.start([replace(start(first + 2, f"o{first + 2}"), parent=parent)])
    (three,) = await store.claim(request)
    assert one.budgets == three.budgets == (budget.id,)
    await hand_over_and_settle(store, worker, one, two, first)
    await reserve_and_spend(store, worker, one, first)
    await ask_and_raise(store, worker, two, first)
    await send_once(store, two, first)
    await store.commit(worker, [plans.over(each) for each in (one, two, three)])
    await store.start([replace(start(first + 3, f"o{first + 3}"), billing=terms["billing"])])
    await store.cancel(first + 3, "enough", b"")
    assert len(await store.deliveries(DeliveryFilter(run=one.run, bill=True))) == 1
    await store.claim_deliveries(ClaimDeliveries(worker, ((f"bills{first}", 10),)))
    await store.retire(worker)


async def hand_over_and_settle(store: PostgresStore, worker: int, one: Claimed, two: Claimed, first: int) -> None:
    ids = range(first + 10, first + 14)
    lanes = (f"p{first}", f"p{first}", f"q{first}", f"p{first}")
    batch = [
        Deliver(
            **place(one),
            key=f"d{id}",
            record=replace(step(one), key=f"d{id}"),
            delivery=NewDelivery(id, f"bus{first}", lane, f"k{id}", b""),
        )
        for id, lane in zip(ids, lanes, strict=True)
    ]
    assert await store.commit(worker, batch) == CommitOutcome()
    assert await store.commit(worker, [*batch, replace(step(one), key="e")]) == CommitOutcome()
    sink = f"bus{first}"
    for _ in range(2):
        fetched = await store.claim_deliveries(ClaimDeliveries(worker, ((sink, 10), ("none", 1))))
        assert {each.id for each in fetched} == {ids[0], ids[2]}
    said = [Settlement(ids[0], 2, DeliveryState.DEAD), Settlement(ids[2], 2, DeliveryState.QUEUED, 1_000_000, "no")]
    await store.settle_deliveries(worker, said)
    assert await store.next_delivery([sink, "none"]) == 0
    assert [each.seq for each in await store.redeliver([ids[0]])] == [4]
    assert len(await store.get_deliveries(ids)) == 4
    wheres: list[tuple[dict[str, Any], int]] = [
        ({"run": one.run}, 4),
        ({"thread_id": one.thread_id, "state": DeliveryState.QUEUED}, 4),
        ({"key": f"k{ids[1]}", "sink": sink}, 1),
        ({"after": first, "limit": 2, "sink": sink}, 2),
    ]
    for where, count in wheres:
        assert len(await store.deliveries(DeliveryFilter(**where))) == count
    await store.deliveries(DeliveryFilter(state=DeliveryState.DEAD, after=first))
    around = DeliveryFilter(sink=sink, after=ids[0] - 1, before=ids[0] + 4)
    assert len(await store.deliveries(around)) == 4
    assert {each.id for each in await store.overdue_deliveries(3_000_000_000_000_000)} >= {ids[1]}


async def reserve_and_spend(store: PostgresStore, worker: int, one: Claimed, first: int) -> None:
    for id, name in ((first + 21, f"agent:{first}"), (first + 22, f"tenant:tenant{first}")):
        await store.set_budget(NewBudget(id, name, Limits(tokens=1_000)), None)
    budgets = (*one.budgets, first + 22)
    amounts = Amounts(tokens=1, steps=1)
    reserve = Reserve(**place(one), key="s", budgets=budgets, amounts=amounts)
    assert await store.commit(worker, [reserve]) == CommitOutcome()
    used: dict[str, Any] = {"meters": (Meter("usd", 7),), "spent": Spent(budgets, amounts)}
    await store.commit(
        worker, [RecordAttempt(**place(one), key="s", attempt=1, error=b"", started_at=1, ended_at=2, **used)]
    )
    record = AppendCheckpoint(one.run, one.fence, one.thread, 1, "s", 1, 2, 7, False, b"", 1, 2, (), **used)
    await store.commit(worker, [reserve])
    await store.commit(worker, [record])
    assert len(await store.meters(one.run)) == 2
    for by in UsageBy:
        assert [row.entries for row in await store.usage(UsageFilter(by, run=one.run))] == [2]
        assert await store.usage(UsageFilter(by, since=await store.now_us() - 10_000_000, until=2**62, name="usd"))
    assert [row.spent.tokens for row in await store.get_budgets(budgets)] == [2, 2]
    found = await store.budgets(BudgetFilter(prefix=f"tenant:tenant{first}"))
    assert [(row.spent.tokens, row.reserved.tokens) for row in found] == [(2, 0)]


async def ask_and_raise(store: PostgresStore, worker: int, two: Claimed, first: int) -> None:
    name = f"agent:{first}"
    (row,) = await store.budgets(BudgetFilter(prefix=name, limit=1))
    question = NewInterrupt(first + 30, "raise", b"?", None, "", "raise", None, (row.id, row.rev))
    await store.commit(worker, [wait(two, WaitKind.ANSWER, interrupt=question)])
    await store.set_budget(NewBudget(first + 31, name, Limits(tokens=2_000)), "ann")
    assert [each.ready for each in await store.waits([two.run])] == [True]


async def send_once(store: PostgresStore, two: Claimed, first: int) -> None:
    for number in range(2):
        message = NewMessage(first + 32 + number, two.thread_id, "", "note", b"", (), f"k{first}")
        (sent,) = await store.send([message])
        assert isinstance(sent, Sent) and sent.seq == 1
    assert at(two)["run"] == two.run
