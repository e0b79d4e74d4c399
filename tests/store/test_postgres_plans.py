"""C26: a fresh database that fills fast, with no statistics yet, keeps the plans of its hot queries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    ClaimRequest,
    EndRun,
    HoldRun,
    NewWorker,
    RecordAttempt,
    RequeueRun,
    StartRun,
)
from perdure.core.limits import SUSPECT_STRIKES
from perdure.core.records import Blob, HeldReason, IfBusy, RunState
from perdure.store.postgres import PostgresStore
from tests.support import postgres

pytestmark = pytest.mark.postgres

ROWS = 200_000
ROWS_READ_MAX = 40
"""A scan that returns or filters more rows than this does not find its few by an index."""
PAGES_READ_MAX = 60
"""A scan that reads more pages than this reads its index from end to end."""

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
"""


def test_c26_plans_made_on_empty_tables_stay_right_when_they_are_full() -> None:
    plans: list[dict[str, Any]] = []

    async def main() -> None:
        url = postgres.shared().fresh_url()
        schema = url.rpartition("=")[2]
        store = PostgresStore(url)
        await store.open()
        for table in ("threads", "runs", "checkpoints", "starts", "attempts", "blobs"):
            await execute(url, f"alter table {schema}.{table} set (autovacuum_enabled = off)")
        for _ in range(6):
            await use(store, 3)
        await execute(url, FILL.format(schema=schema, rows=ROWS))
        for line in [store._commits, store._claims, *store._clients._lines]:
            if line.connection is not None:
                line.connection.add_log_listener(lambda _, message: plans.extend(parse(message.message)))
                await line.connection.execute(EXPLAIN)
        await use(store, 3)
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


def test_the_index_of_suspects_knows_what_a_suspect_is() -> None:
    assert SUSPECT_STRIKES == 3


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
