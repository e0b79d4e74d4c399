"""Deliveries, meters and budgets in a SQLite file: what they cost, how they are found, and files from before them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.core import limits
from perdure.core.budgets import Amounts, Limits, NewBudget
from perdure.core.changes import Change
from perdure.core.deliveries import Billing, DeliveryFilter, NewDelivery
from perdure.core.meters import UsageBy, UsageFilter
from perdure.core.records import RunState, budget_name
from perdure.store.protocol import Hint
from perdure.store.sqlite import SQLiteStore, outbox, schema
from perdure.store.sqlite.transaction import STATEMENTS
from perdure.testing.conformance import Bench, Harness, scenario
from perdure.testing.conformance.harness import attempt, end, hints, hold, step
from perdure.testing.conformance.parcels import (
    DELIVERED,
    QUEUED,
    budget,
    deliver,
    fetch,
    handed,
    lane,
    meter,
    parcel,
    reserve,
    row_of,
    said,
    spent,
)
from tests.store.test_sqlite import OnFiles
from tests.store.test_sqlite_effects import plan
from tests.store.test_sqlite_waiting import first_words, rows, size, statements

TABLE = re.compile(r"\b(deliveries|lanes|meters|budgets|reservations|message_keys|outbox)\b(?: ([a-z])\b)?")
"""A table of what runs hand over and use, or a view, and the letter by which a statement calls it."""

BYTES_MAX = 900
"""Of file for each delivered row with a payload of 100 bytes, its step's record beside it."""


class TestOutboxInAFile(OnFiles, Harness):
    """What the suite, which knows no tables, cannot see."""

    @scenario
    async def test_a_delivery_costs_two_looks_and_two_inserts(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        new = await parcel(bench)

        with statements(bench.store) as told:
            await bench.commit(worker, deliver(claimed, "d", new))

        assert [first_words(text) for text in told] == [
            "select exists",
            "with mine",  # what is on record
            "with mine",  # its lane
            "with mine",  # its key
            "insert into checkpoints",
            "insert into deliveries",
            "insert into lanes",
        ]

    @scenario
    async def test_many_deliveries_cost_as_many_statements_as_one(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(41)
        first, *others = await bench.claim(worker)
        counts = []

        for runs in ([first], others):
            parcels = [await parcel(bench, partition=f"p{each.run}") for each in runs]
            with statements(bench.store) as told:
                new = [deliver(each, "d", parcel) for each, parcel in zip(runs, parcels, strict=True)]
                await bench.commit(worker, *new)
                taken = await fetch(bench, worker)
                await bench.store.settle_deliveries(worker, [said(each) for each in taken])
            assert len(taken) == len(runs)
            counts.append(len(told))

        assert counts[0] == counts[1]

    @scenario
    async def test_meters_cost_one_insert_and_a_batch_without_any_nothing(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        runs = await bench.claim(worker)

        with statements(bench.store) as measured:
            await bench.commit(worker, *(step(each, "a", meters=(meter(), meter("usd"))) for each in runs))
        with statements(bench.store) as plain:
            await bench.commit(worker, *(step(each, "b") for each in runs))

        assert [first_words(text) for text in plain] == ["select exists", "insert into checkpoints"]
        expected = ["select exists", "insert into checkpoints", "insert into meters"]
        assert [first_words(text) for text in measured] == expected

    @scenario
    async def test_a_run_without_billing_ends_at_the_cost_of_before(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        await bench.start("billed", billing=Billing("bills", "b"))
        first, second, billed = await bench.claim(worker)

        with statements(bench.store) as told:
            await bench.commit(worker, end(first))
        await bench.commit(worker, hold(second), end(billed))

        assert len(told) == 6 and not [text for text in told if "deliveries" in text]
        assert [each.run for each in await bench.store.deliveries(DeliveryFilter())] == [billed.run]

    @scenario
    async def test_a_look_into_an_empty_outbox_writes_nothing(self, bench: Bench) -> None:
        worker = await bench.worker()
        before = await rows(bench.store, "select at from clock")

        assert await fetch(bench, worker) == []

        assert await rows(bench.store, "select at from clock") == before

    @scenario
    async def test_a_claim_looks_for_budgets_by_name_only_where_there_are_such(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(1)
        await budget(bench, "run:r0")
        with statements(bench.store) as without:
            await bench.claim(worker)
        await budget(bench, "agent:agent")
        await bench.start("another")

        with statements(bench.store) as beside:
            await bench.claim(worker)

        assert len(beside) == len(without) + 1

    @scenario
    async def test_a_budget_that_was_set_before_its_run_is_that_runs_own(self, bench: Bench) -> None:
        asked = await bench.ask("t")
        early = await budget(bench, budget_name(asked.id), tokens=1)
        own = NewBudget(await bench.new_id(), "", Limits(tokens=7))

        await bench.store.start([msgspec.structs.replace(asked, budget=own)])

        claimed = await bench.claim_one(await bench.worker())
        assert claimed.budgets == (early.id,)
        (row,) = await bench.store.get_budgets([early.id])
        assert (row.limits, row.rev, row.name) == (own.limits, 2, f"run:r{claimed.run}")

    @scenario
    async def test_values_that_cannot_be_stored_take_only_their_own_run_with_them(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(8)
        runs = await bench.claim(worker)
        bad: dict[int, dict[str, Any]] = {1: {"key": "\ud800"}, 4: {"payload": None}, 6: {"partition": "\ud800"}}
        parcels = [await parcel(bench, **bad.get(n, {})) for n in range(8)]

        outcome = await bench.store.commit(
            worker, [deliver(each, "d", parcels[n]) for n, each in enumerate(runs)]
        )  # fmt: skip

        assert set(outcome.refused) == {runs[n].run for n in bad} and not outcome.bounced
        assert await lane(bench) == [parcels[n].id for n in range(8) if n not in bad]

    @scenario
    async def test_a_batch_may_be_all_deliveries(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        count = limits.COMMIT_ROWS_MAX
        first = await bench.store.reserve_ids(count)
        parcels = [NewDelivery(first + n, "bus", f"p{n % 7}", f"key {n}", b"data") for n in range(count)]

        await bench.commit(worker, *(deliver(claimed, f"d#{n}", each) for n, each in enumerate(parcels)))

        assert await rows(bench.store, "select count(*), sum(ready) from deliveries") == [(count, 7)]
        assert await rows(bench.store, "select sum(depth), sum(last_seq) from lanes") == [(count, count)]

    @scenario
    async def test_a_failed_try_and_the_next_reservation_that_are_sent_again_count_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        shared = await budget(bench, tokens=100)
        await bench.commit(worker, reserve(claimed, "a", shared))
        failed = attempt(claimed, "a", error=b"no", spent=spent(shared, tokens=3), meters=(meter(),))
        batch: list[Change] = [failed, reserve(claimed, "a", shared, tokens=20)]

        for _ in range(2):
            await bench.commit(worker, *batch)

        (row,) = await bench.store.get_budgets([shared.id])
        assert (row.spent.tokens, row.reserved.tokens) == (3, 20)
        assert len(await bench.store.meters(claimed.run)) == 1

    @scenario
    async def test_sums_stay_within_their_columns(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        shared = await budget(bench)
        huge = Amounts(usd=9 * 10**18)
        for key in ("a", "b", "c"):
            used = spent(shared)
            await bench.commit(worker, step(claimed, key, spent=type(used)(used.budgets, huge)))
            await bench.commit(worker, reserve(claimed, f"r{key}", shared, amounts=huge))

        (row,) = await bench.store.get_budgets([shared.id])
        assert row.spent.usd >= 2**62 - 1 and row.reserved.usd >= 3 * 2**58

    @scenario
    async def test_many_large_deliveries_are_read_in_parts_of_a_bounded_size(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        for n in range(5):
            await handed(bench, worker, claimed, partition=f"p{n}")

        with pytest.MonkeyPatch.context() as patch, statements(bench.store) as told:
            patch.setattr(outbox, "DELIVERIES_A_READ", 2)
            taken = await fetch(bench, worker)

        assert len(taken) == 5 == len({each.id for each in taken})
        assert len([text for text in told if "outbox" in text]) == 3

    @scenario
    async def test_hints_of_deliveries_reach_other_stores_on_the_file(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        other = await bench.clone()

        async with hints(other) as heard:
            await handed(bench, worker, claimed)
            await heard(Hint.DELIVER)

    @scenario
    async def test_what_is_delivered_is_small_and_leaves_the_indexes_of_what_is_open(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(500)
        runs = await bench.claim(worker, limit=500)
        parcels = [await parcel(bench, partition=each.thread_id, payload=b"x" * 100) for each in runs]
        before = await size(bench.store)

        await bench.commit(worker, *(deliver(each, "d", new) for each, new in zip(runs, parcels, strict=True)))
        taken = await fetch(bench, worker, ("bus", 500))
        await bench.store.settle_deliveries(worker, [said(each, DELIVERED) for each in taken])

        assert (await size(bench.store) - before) / 500 < BYTES_MAX
        for index in ("deliveries_undelivered", "deliveries_lane", "deliveries_claimable", "deliveries_worker"):
            where = CONDITIONS[index]
            query = f"select count(*) from deliveries indexed by {index} where {where}"
            assert await rows(bench.store, query) == [(0,)]


CONDITIONS = {
    "deliveries_undelivered": "state in ('queued', 'delivering', 'dead')",
    "deliveries_lane": "state in ('queued', 'delivering')",
    "deliveries_claimable": "state = 'queued' and ready",
    "deliveries_worker": "worker is not null",
}


# -- files from before ---------------------------------------------------------------------------------------


def schema_of(path: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("select type, name, sql from sqlite_master order by 1, 2").fetchall()


def test_a_file_from_before_there_was_an_outbox_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as old:
        old.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:5])
        old.setattr(schema, "VERSION", 5)
        asyncio.run(SQLiteStore(path).migrate())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("""
            insert into threads (id, thread_id, agent, head, depth, last_ordinal, created_at)
              values (2, 't', 'agent', 1, 1, 1, 0);
            insert into runs (id, thread, ordinal, agent, queue, state, ready, ready_at, priority, created_at, ended_at)
              values (1, 2, 1, 'agent', 'default', 'queued', 1, 0, 0, 0, null);
            insert into checkpoints values (1, 1, '', 1, 0, 0, 0, 0, 0, 0, x'31', null, 0, 0);
            update ids set next = 10;
        """)

    async def go_on() -> None:
        store = SQLiteStore(path)
        assert await store.migrate() == (5, schema.VERSION)
        await store.open()
        bench = Bench(Harness(), store)
        shared = await budget(bench, "agent:agent")
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)
        assert claimed.budgets == (shared.id,)
        (delivery,) = await handed(bench, worker, claimed)
        assert (await row_of(bench, delivery)).state is QUEUED
        await bench.commit(worker, step(claimed, "a", spent=spent(shared), meters=(meter(),)), end(claimed))
        assert [each.entries for each in await store.usage(UsageFilter(UsageBy.AGENT))] == [1]
        assert await bench.state(claimed.run) is RunState.COMPLETED
        await bench.close()

    asyncio.run(go_on())

    fresh = tmp_path / "fresh.db"
    asyncio.run(SQLiteStore(fresh).migrate())
    assert schema_of(path) == schema_of(fresh)


# -- plans ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables and nothing in them."""
    path = tmp_path_factory.mktemp("plans") / "empty.db"
    asyncio.run(SQLiteStore(path).migrate())
    return path


@pytest.mark.parametrize("name", sorted(name for name in STATEMENTS if TABLE.search(STATEMENTS[name].text)))
def test_no_statement_walks_a_whole_table(name: str, empty: Path) -> None:
    called = {"d" if table == "outbox" else letter or table for table, letter in TABLE.findall(STATEMENTS[name].text)}

    assert [told for told in plan(empty, name) if told.split()[0] == "SCAN" and told.split()[1] in called] == []


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("claimable_deliveries", "SEARCH deliveries USING INDEX deliveries_claimable (sink=? AND due_at<?)"),
        ("suspect_deliveries", "SEARCH deliveries USING INDEX deliveries_suspects (due_at<?)"),
        ("next_delivery", "SEARCH d USING INDEX deliveries_claimable (sink=?)"),
        ("promote_deliveries", "SEARCH d USING INDEX deliveries_lane (sink=? AND partition=?)"),
        ("return_deliveries", "SEARCH deliveries USING INDEX deliveries_worker (worker=?)"),
        ("known_deliveries", "SEARCH d USING COVERING INDEX deliveries_key (key=? AND sink=?)"),
        ("bills_due", "SEARCH d USING COVERING INDEX deliveries_run (run=? AND bill=?)"),
        ("list_deliveries", "SEARCH d USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("list_undelivered", "SEARCH d USING INDEX deliveries_undelivered (id>? AND id<?)"),
        ("overdue_deliveries", "SEARCH d USING INDEX deliveries_claimable (sink=? AND due_at<?)"),
        ("overdue_deliveries", "SEARCH d USING INDEX deliveries_claimable (sink>?)"),
        ("list_keyed_deliveries", "SEARCH d USING INDEX deliveries_key (key=?)"),
        ("list_run_deliveries", "SEARCH d USING INDEX deliveries_run (run=?)"),
        ("usage", "SEARCH m USING INDEX meters_at (at>? AND at<?)"),
        ("usage_of_run", "SEARCH m USING INDEX sqlite_autoindex_meters_1 (run=?)"),
        ("get_budgets", "SEARCH v USING INDEX reservations_budget (budget=?)"),
        ("asking_about_budget", "SEARCH i USING INDEX interrupts_budget (budget=?)"),
    ],
)
def test_what_is_handed_over_and_used_is_found_by_its_indexes(name: str, way: str, empty: Path) -> None:
    steps = plan(empty, name)

    assert way in steps
    sorted_by_index = ("claimable_deliveries", "next_delivery", "list_deliveries")
    if name in (*sorted_by_index, "list_undelivered", "budget_page"):
        assert "USE TEMP B-TREE FOR ORDER BY" not in steps
