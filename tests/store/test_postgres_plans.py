"""C26: a fresh database that fills fast, with no statistics yet, keeps the plans of its hot queries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import asyncpg
import pytest
from msgspec.structs import replace

from perdure.core import limits
from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    CloseWait,
    CommitOutcome,
    EndRun,
    HoldRun,
    IntendEffect,
    NewInterrupt,
    OpenWait,
    ParkRun,
    RecordAttempt,
    RequeueRun,
    SendMessage,
    SettleEffect,
)
from perdure.core.effects import EffectFilter, EffectState, Resolution
from perdure.core.limits import NEVER_US, SUSPECT_STRIKES
from perdure.core.records import Blob, Claimed, HeldReason, IfBusy, RunState, WaitKind
from perdure.core.requests import (
    Answered,
    ClaimRequest,
    ForkRun,
    InterruptFilter,
    NewAnswer,
    NewMessage,
    NewWorker,
    Parent,
    QuestionOpen,
    RunFilter,
    Sent,
    Started,
    StartRun,
)
from perdure.store.postgres import PostgresStore
from tests.support import postgres

pytestmark = pytest.mark.postgres

ROWS = 100_000
PARKED = 100_000
ROWS_READ_MAX = 40
"""A scan that returns or filters more rows than this does not find its few by an index."""
PAGES_READ_MAX = 60
"""A scan that reads more pages than this reads its index from end to end."""

TABLES = (
    "threads",
    "runs",
    "checkpoints",
    "starts",
    "attempts",
    "blobs",
    "waits",
    "interrupts",
    "messages",
    "effects",
    "effect_events",
)

EXPLAIN = """
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_analyze = on;
set auto_explain.log_timing = off;
set auto_explain.log_buffers = on;
set auto_explain.log_format = json;
set auto_explain.log_nested_statements = on;
set client_min_messages = log;
"""

FILL = """
insert into {schema}.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
select -n, 2, 1, 0, -n, 'old' || n, 'agent' from generate_series(1, {rows}) n;
insert into {schema}.runs (
  id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready, state,
  agent, queue, digest, worker
)
select
  -n, -n, 1, 0, 1, 0, 0, 1, 0, 0, 1, true, case n % 4 when 0 then 'running' when 1 then 'held' else 'queued' end,
  case n % 2 when 0 then 'agent' else 'elsewhere' end, case n % 3 when 0 then 'default' else 'other' end, '',
  case n % 4 when 0 then -n end
from generate_series(1, {rows}) n;
insert into {schema}.checkpoints (
  run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload
)
select -n, 1, 1, 0, 0, 0, 1, 0, 0, 1, false, '', '' from generate_series(1, {rows}) n;
insert into {schema}.starts (run, key, digest) select -n, 'old' || n, '' from generate_series(1, {rows}) n;
insert into {schema}.attempts (run, fence, started_at, super_step, attempt, key)
select -n, 1, 0, 1, 1, 'step' from generate_series(1, {rows}) n;
insert into {schema}.blobs (thread, digest, data) select -n, '', '' from generate_series(1, {rows}) n;

insert into {schema}.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
select -{rows} - n, 1, 1, 0, -{rows} - n, 'parked' || n, 'agent' from generate_series(1, {parked}) n;
insert into {schema}.runs (
  id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready, state,
  agent, queue, digest, parent, awaited
)
select
  -{rows} - n, -{rows} - n, 1, case n % 2 when 0 then 4611686018427387904 else 4000000000000000 + n end, 1, 0, 0, 1, 0,
  0, 1, true, 'waiting', 'agent', 'lane', '', case n % 5 when 0 then -n end, true
from generate_series(1, {parked}) n;
insert into {schema}.waits (run, opened_at, due_at, target, super_step, kind, key)
select
  -{rows} - n, 0, case n % 2 when 1 then 4000000000000000 + n end,
  case n % 5 when 1 then n when 3 then -{rows} - n - 1 when 4 then -n end, 1, n % 5, 'w'
from generate_series(1, {parked}) n;
insert into {schema}.interrupts (id, run, created_at, super_step, state, key, name, digest, on_timeout, payload)
select -n, -{rows} - n, 0, 1, case n % 5 when 1 then 'open' else 'answered' end, 'w', 'approve', '', 'raise', ''
from generate_series(1, {parked}) n;
insert into {schema}.messages (id, thread, seq, sent_at, taken_at, sender, label, dead, payload)
select
  -n, -{rows} - n % 1000 - 1, n, 0, case n % 3 when 1 then 4000000000000000 end, '', 'note',
  case n % 3 when 2 then 'odd' end, ''
from generate_series(1, {parked}) n;
insert into {schema}.effects (
  id, run, fence, worker, intended_at, digest, super_step, attempt, undoable, state, policy, key, name, code,
  idempotency_key, arguments
)
select
  -n, -n, 1, 1, 0, 7, 1, 1, true, case n % 100 when 0 then 'unknown' else 'done' end, 'retry', 'e', 'pay', 'shop:pay',
  '', ''
from generate_series(1, {parked}) n;
insert into {schema}.effect_events (effect, at, rev, attempt, state)
select -n, 0, 1, 1, 'intended' from generate_series(1, {parked}) n;
"""


def test_c26_plans_made_on_empty_tables_stay_right_when_they_are_full() -> None:
    plans: list[dict[str, Any]] = []

    async def main() -> None:
        url = postgres.shared().fresh_url()
        schema = url.rpartition("=")[2]
        store = PostgresStore(url)
        await store.open()
        for table in TABLES:
            await execute(url, f"alter table {schema}.{table} set (autovacuum_enabled = off)")
        for _ in range(6):
            await use(store, 3)
            await wait_and_wake(store)
            await act_and_undo(store)
        await execute(url, FILL.format(schema=schema, rows=ROWS, parked=PARKED))
        for line in [store._commits, store._claims, *store._clients._lines]:
            if line.connection is not None:
                line.connection.add_log_listener(lambda _, message: plans.extend(parse(message.message)))
                await line.connection.execute(EXPLAIN)
        await use(store, 3)
        await wait_and_wake(store)
        await act_and_undo(store)
        await store.close()

    asyncio.run(main())

    assert len(plans) > 60
    wasteful = [
        f"{node['Node Type']} on {node.get('Relation Name')} {node.get('Index Name', '')} in {plan['Query Text']}"
        for plan in plans
        for node in nodes(plan["Plan"])
        if node.get("Relation Name", "workers") != "workers" and node["Node Type"] != "ModifyTable"
        if rows_read(node) > ROWS_READ_MAX or pages_read(node) > PAGES_READ_MAX
    ]
    assert wasteful == []
    assert "effects_open" in {node.get("Index Name") for plan in plans for node in nodes(plan["Plan"])}


def test_the_indexes_know_what_a_suspect_is_and_when_never_is() -> None:
    assert SUSPECT_STRIKES == 3
    assert NEVER_US == 4611686018427387904


async def use(store: PostgresStore, count: int) -> None:
    """Every hot verb, on a few runs."""
    first = await store.reserve_ids(3 * count + 1)
    worker = first + 3 * count
    await store.register(NewWorker(worker, "w", "h", 1, "v1", 3_600_000_000))
    starts = [start(first + 3 * n, f"t{first}-{n}") for n in range(count)]
    await store.start(starts)
    await store.start([start(first + 3 * n + 1, each.thread_id) for n, each in enumerate(starts)])
    await store.start(starts)
    await store.watch([each.id for each in starts])
    request = ClaimRequest(worker, ("agent", "none"), ("lane", "none"), "v1", count)
    ended, requeued, held = await store.claim(request)
    steps = [AppendCheckpoint(c.run, c.fence, c.thread, 1, "a", 1, 1, 7, False, b"", 1, 2) for c in (ended, requeued)]
    await store.commit(worker, steps)
    await store.commit(
        worker,
        [
            RecordAttempt(ended.run, ended.fence, ended.thread, 1, "b", 1, None, 1, None),
            BeginSuperStep(ended.run, ended.fence, ended.thread, 2, b"", b"s", 2, (Blob(b"d", b"data"),)),
            EndRun(ended.run, ended.fence, ended.thread, 3, RunState.COMPLETED, b"", b"s", 2),
            AppendCheckpoint(requeued.run, requeued.fence, requeued.thread, 1, "f", 2, 1, 7, True, b"", 1, 2),
            RequeueRun(requeued.run, requeued.fence, requeued.thread, 0, ("f",)),
            HoldRun(held.run, held.fence, held.thread, HeldReason.DIVERGED, "look"),
        ],
    )
    assert steps[0].run == ended.run and (await store.commit(worker, steps)).lost == frozenset()
    await store.release(held.run)
    again = await store.claim(request)
    one = again[0]
    await store.commit(worker, [EndRun(one.run, one.fence, one.thread, 2, RunState.FAILED, b"", None, 2)])
    await store.retry(one.run, ["f"])
    await store.outcomes([ended.run])
    await store.get_runs([ended.run])
    await store.get_thread(ended.thread_id)
    await store.blobs(ended.thread, [b"d"])
    await store.checkpoints(ended.run)
    await store.thread_checkpoints(ended.thread)
    await store.renew(worker, 3_600_000_000)
    await store.set_idle(worker, True)
    await store.workers()
    await store.give_back(worker, keep=[])
    await store.claim(request)
    await store.take_over([worker], recoveries_max=5)
    worker = await store.reserve_ids(1)
    await store.register(NewWorker(worker, "w", "h", 1, "v1", 3_600_000_000))
    while claimed := await store.claim(ClaimRequest(worker, ("agent",), ("lane",), "v1", 10, suspects=10)):
        ends = [EndRun(c.run, c.fence, c.thread, 9, RunState.COMPLETED, b"", None, 2) for c in claimed]
        await store.commit(worker, ends)
    await store.retire(worker)


async def wait_and_wake(store: PostgresStore) -> None:
    """Every verb of waiting, on a few runs."""
    first = await store.reserve_ids(100)
    ids = iter(range(first + 20, first + 100))
    worker = next(ids)
    await store.register(NewWorker(worker, "w", "h", 1, "v1", 3_600_000_000))
    await store.start([start(first + n, f"p{first + n}") for n in range(7)])
    claims = await store.claim(ClaimRequest(worker, ("agent", "none"), ("lane", "none"), "v1", 10))
    await ask_and_answer(store, worker, claims, ids)
    await send_and_receive(store, worker, claims, ids)
    await have_children_and_forks(store, worker, claims, ids)
    await cancel_and_end(store, worker, claims, ids)
    while claimed := await store.claim(ClaimRequest(worker, ("agent",), ("lane",), "v1", 10, suspects=10)):
        await store.commit(worker, [over(each) for each in claimed])
    await store.retire(worker)


async def ask_and_answer(store: PostgresStore, worker: int, claims: list[Claimed], ids: Iterator[int]) -> None:
    asks, receives, waits, sends, sleeps, naps, child = claims
    question = NewInterrupt(next(ids), "approve", b"?", None, "", "raise", "ann")
    opened = [
        wait(asks, WaitKind.ANSWER, interrupt=question),
        wait(receives, WaitKind.MESSAGE, labels=("note",)),
        wait(waits, WaitKind.RUN, target=child.run),
        wait(sends, WaitKind.ROOM, target=receives.thread),
        wait(sleeps, WaitKind.TIMER, delay_us=3_600_000_000),
        wait(naps, WaitKind.TIMER, delay_us=3_600_000_000),
    ]
    parked = [ParkRun(c.run, c.fence, c.thread) for c in (asks, sends, naps)]
    with mock.patch.object(limits, "MAILBOX_MAX", 0):
        assert await store.commit(worker, [*opened, *parked]) == CommitOutcome()
    later = [replace(start(next(ids), c.thread_id), if_busy=IfBusy.UNLESS_ASKED) for c in (asks, sleeps)]
    assert [type(each) for each in await store.start(later)] == [QuestionOpen, Started]
    assert len(await store.waits([each.run for each in claims])) == 6
    after = question.id - 1
    for where in ({"limit": 1, "after": after}, {"run": asks.run}, {"assignee": "ann", "after": after}):
        assert [each.id for each in await store.interrupts(InterruptFilter(**where))] == [question.id]
    assert isinstance(await store.answer(NewAnswer(question.id, b"yes", None)), Answered)
    assert await store.next_due() is not None


async def send_and_receive(store: PostgresStore, worker: int, claims: list[Claimed], ids: Iterator[int]) -> None:
    _, receives, _, _, sleeps, _, _ = claims
    messages = [NewMessage(next(ids), receives.thread_id, "", "note", b"", ()) for _ in range(4)]
    assert await store.send(messages[:3]) == [Sent(receives.thread, n) for n in (1, 2, 3)]
    taken = CloseWait(**place(receives), key="w", record=step(receives), take=1)
    with mock.patch.object(limits, "MAILBOX_MAX", 3):
        await store.commit(worker, [taken, BuryMessage(receives.run, receives.fence, receives.thread, 2, "odd")])
    sent = SendMessage(**place(sleeps), key="w", record=step(sleeps), message=messages[3])
    await store.commit(worker, [sent])
    assert len(await store.mailbox(receives.thread)) == 2
    assert len(await store.dead_letters(receives.thread)) == 1
    assert len(await store.dead_letters(limit=1)) == 1
    assert await store.revive(messages[1].id) is not None


async def have_children_and_forks(store: PostgresStore, worker: int, claims: list[Claimed], ids: Iterator[int]) -> None:
    *_, sleeps, _, child = claims
    parent = Parent(sleeps.run, sleeps.fence, worker)
    await store.start([replace(start(next(ids), f"child of {sleeps.run}"), parent=parent)])
    await store.commit(worker, [over(child)])
    assert len(await store.list_runs(RunFilter(parent=sleeps.run))) == 1
    log = tuple(await store.checkpoints(sleeps.run))
    await store.fork(ForkRun(start(next(ids), f"fork of {sleeps.run}"), 2, b"s", log[1:]))


async def cancel_and_end(store: PostgresStore, worker: int, claims: list[Claimed], ids: Iterator[int]) -> None:
    _, receives, waits, sends, sleeps, naps, _ = claims
    begun = BeginSuperStep(waits.run, waits.fence, waits.thread, 2, b"", b"s", 2, (), True)
    await store.commit(worker, [CloseWait(**place(waits), key="w", record=step(waits)), begun])
    await store.start([replace(start(next(ids), waits.thread_id), if_busy=IfBusy.ROLLBACK)])
    assert list(await store.cancellations(worker)) == [waits.run]
    for each in (sleeps, sends, naps):
        await store.cancel(each.run, "enough", b"")
    await store.commit(worker, [over(waits), over(sleeps), over(receives)])


async def act_and_undo(store: PostgresStore) -> None:
    """Every verb of the ledger, on a few runs."""
    first = await store.reserve_ids(20)
    worker, effects = first + 10, range(first + 11, first + 15)
    await store.register(NewWorker(worker, "w", "h", 1, "v1", 3_600_000_000))
    await store.start([start(first + n, f"e{first + n}") for n in range(4)])
    request = ClaimRequest(worker, ("agent", "none"), ("lane", "none"), "v1", 10)
    claims = await store.claim(request)
    one, two, _, four = claims
    intents = [intend(each, effect) for each, effect in zip(claims, effects, strict=True)]
    assert await store.commit(worker, intents[:1]) == CommitOutcome()
    assert await store.commit(worker, intents) == CommitOutcome()
    states = [EffectState.DONE, EffectState.DONE, EffectState.UNKNOWN, EffectState.FAILED]
    outcomes = [
        SettleEffect(**at(each), effect=effect, attempt=1, state=state, outcome=b"", record=step(each))
        for each, effect, state in zip(claims, effects, states, strict=True)
    ]
    assert await store.commit(worker, outcomes) == CommitOutcome()
    assert await store.commit(worker, outcomes) == CommitOutcome()
    assert list(await refused(store, worker, intents[0], 2)) == [one.run]
    decided = BeginUndo(**at(one), outcome=RunState.FAILED, payload=b"")
    assert await store.commit(worker, [decided, replace(intents[0], undo=True)]) == CommitOutcome()
    failed = SettleEffect(**at(one), effect=effects[0], attempt=1, state=EffectState.UNDO_FAILED, outcome=None)
    ends = [
        EndRun(**at(each), super_step=2, outcome=RunState.FAILED, payload=b"", state=None, ended_at=2)
        for each in (one, four)
    ]
    holds = [HoldRun(**at(each), reason=HeldReason.DIVERGED, detail="") for each in claims[1:3]]
    assert await store.commit(worker, [failed, *ends, *holds]) == CommitOutcome()
    for where in ({"state": EffectState.UNKNOWN, "limit": 1, "after": first}, {"thread_id": claims[2].thread_id}):
        assert [each.id for each in await store.effects(EffectFilter(**where))] == [effects[2]]
    assert len(await store.effects(EffectFilter(run=four.run, undoable=True))) == 1
    assert len(await store.effects(EffectFilter(name="pay", limit=2, after=first))) == 2
    assert len(await store.get_effects(effects)) == 4
    assert len(await store.effect_events(effects[0])) == 4
    assert await store.resolve(Resolution(effects[2], EffectState.ABSENT, None, "ann", None)) is not None
    await store.cancel(two.run, "enough", b"")
    await store.retry(one.run, [], undo=True)
    await store.retry(four.run, ["w"])
    await store.release(claims[2].run)
    again = await store.claim(request)
    assert [len(each.effects) for each in again] == [1] * 4
    assert {each.run for each in again if each.undoing} == {one.run, two.run}
    await store.commit(worker, [over(each) for each in again])
    await store.retire(worker)


async def refused(store: PostgresStore, worker: int, intent: IntendEffect, attempt: int) -> dict[int, str]:
    return (await store.commit(worker, [replace(intent, attempt=attempt)])).refused


def intend(claimed: Claimed, effect: int) -> IntendEffect:
    row: dict[str, Any] = {
        "name": "pay",
        "code": "shop:pay",
        "idempotency_key": "",
        "policy": "ask",
        "undoable": True,
        "arguments": b"",
    }
    return IntendEffect(**place(claimed), key="w", effect=effect, attempt=1, digest=7, **row)


def over(claimed: Claimed) -> EndRun:
    return EndRun(claimed.run, claimed.fence, claimed.thread, 9, RunState.CANCELLED, b"", None, 2, (), True)


def at(claimed: Claimed) -> dict[str, Any]:
    return {"run": claimed.run, "fence": claimed.fence, "thread": claimed.thread}


def place(claimed: Claimed) -> dict[str, Any]:
    return {**at(claimed), "super_step": 1}


def wait(claimed: Claimed, kind: WaitKind, **fields: Any) -> OpenWait:
    return OpenWait(**place(claimed), key="w", kind=kind, **fields)


def step(claimed: Claimed) -> AppendCheckpoint:
    return AppendCheckpoint(claimed.run, claimed.fence, claimed.thread, 1, "w", 1, 1, 7, False, b"", 1, 2)


def start(id: int, thread_id: str) -> StartRun:
    return StartRun(id, id, thread_id, "agent", "lane", 0, 0, f"k{id}", b"d", b"", IfBusy.ENQUEUE)


async def execute(url: str, text: str) -> None:
    connection = await asyncpg.connect(url.rpartition("&")[0])
    try:
        await connection.execute(text)
    finally:
        await connection.close()


def parse(message: str | None) -> list[dict[str, Any]]:
    head, _, body = (message or "").partition("plan:\n")
    return [json.loads(body)] if head.startswith("duration") else []


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def rows_read(node: dict[str, Any]) -> float:
    """What a scan found, over all its loops, with what it found in vain."""
    found = node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)
    found += node.get("Rows Removed by Join Filter", 0)
    return float(found * node.get("Actual Loops", 1))


def pages_read(node: dict[str, Any]) -> int:
    """Pages of table and index, over all its loops."""
    pages: int = node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
    return pages
