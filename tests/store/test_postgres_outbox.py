"""The outbox and budgets on Postgres: their verbs against others, two transactions at a time, and many at once; which
statements write what; and a schema from before there were any."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import asyncpg
import pytest

from perdure.core.budgets import Limits, NewBudget
from perdure.core.changes import Change, CommitOutcome, NewInterrupt
from perdure.core.deliveries import Billing, Delivery, DeliveryFilter
from perdure.core.records import Claimed, InterruptState, RunState, WaitKind
from perdure.core.requests import Bounce
from perdure.store.postgres import PostgresStore, schema
from perdure.store.postgres.address import parse
from perdure.testing.conformance.harness import Bench, attempt, end, intend, park, step, wait
from perdure.testing.conformance.parcels import (
    budget,
    deliver,
    fetch,
    fetch_one,
    handed,
    lane,
    meter,
    parcel,
    reserve,
    row_of,
    said,
    spent,
    tokens,
)
from tests.support import postgres
from tests.support.stage import Stage, played

pytestmark = pytest.mark.postgres

WORKERS = 3
ROUNDS = 12


# -- lanes, two at a time ------------------------------------------------------------------------------------


def test_two_commits_into_one_lane_come_one_after_the_other_and_one_is_its_head() -> None:
    async def body(on: Stage) -> None:
        (one, mine), (two, theirs) = await on.bench.begin("t"), await on.bench.begin("u")
        first, second = await parcel(on.bench), await parcel(on.bench)

        outcomes = await on.held_against(
            lambda store: store.commit(one, [deliver(mine, "s", first)]),
            on.bench.store.commit(two, [deliver(theirs, "s", second)]),
        )

        assert outcomes == (CommitOutcome(), CommitOutcome())
        assert await lane(on.bench) == [first.id, second.id]

    played(body)


def test_what_comes_while_the_last_of_a_lane_is_settled_waits_and_is_its_head() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        await handed(on.bench, worker, claimed)
        fetched = await fetch_one(on.bench, worker)
        new = await parcel(on.bench)

        await on.held_against(
            lambda store: store.settle_deliveries(worker, [said(fetched)]),
            on.bench.store.commit(worker, [deliver(claimed, "s", new)]),
        )

        assert await lane(on.bench) == [new.id]

    played(body)


def test_a_settlement_waits_for_what_is_coming_and_gives_it_its_turn() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        await handed(on.bench, worker, claimed)
        fetched = await fetch_one(on.bench, worker)
        new = await parcel(on.bench)

        await on.held_against(
            lambda store: store.commit(worker, [deliver(claimed, "s", new)]),
            on.bench.store.settle_deliveries(worker, [said(fetched)]),
        )

        assert await lane(on.bench) == [new.id]

    played(body)


def test_one_key_in_two_lanes_at_once_is_one_delivery_and_no_lane_is_without_its_head() -> None:
    async def body(on: Stage) -> None:
        (one, mine), (two, theirs) = await on.bench.begin("t"), await on.bench.begin("u")
        first, other, last = [
            await parcel(on.bench, key, partition=partition) for key, partition in (("k", "a"), ("k", "b"), ("z", "b"))
        ]

        outcomes = await on.held_against(
            lambda store: store.commit(one, [deliver(mine, "s", first)]),
            on.bench.store.commit(two, [deliver(theirs, "s", other), deliver(theirs, "t", last)]),
        )

        assert outcomes == (CommitOutcome(), CommitOutcome())
        assert await lane(on.bench, partition="a") == [first.id]
        assert await lane(on.bench, partition="b") == [last.id]
        assert set(await on.bench.steps(theirs.run)) == {"s", "t"}

    played(body)


def test_a_take_over_passes_by_a_relay_that_is_claiming_and_queues_again_what_it_has_afterwards() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        (delivery,) = await handed(on.bench, worker, claimed)
        holding = on.hold(lambda store: fetch(on.bench, worker, store=store))
        await holding.written()

        assert await on.bench.store.take_over([worker], recoveries_max=5) == []
        assert await fetch(on.bench, await on.bench.worker()) == []
        (fetched,) = await holding.commit()
        assert (fetched.id, fetched.worker) == (delivery, worker)

        await on.bench.die(worker)
        assert (await fetch_one(on.bench, await on.bench.worker())).attempts == 2

    played(body)


def test_a_settlement_waits_for_a_take_over_and_says_nothing() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        await handed(on.bench, worker, claimed)
        fetched = await fetch_one(on.bench, worker)

        await on.held_against(
            lambda store: store.take_over([worker], recoveries_max=5),
            on.bench.store.settle_deliveries(worker, [said(fetched)]),
        )

        assert (await row_of(on.bench, fetched.id)).settled_at is None

    played(body)


# -- budgets, two at a time ----------------------------------------------------------------------------------


def test_of_two_reservations_for_which_there_is_room_for_one_the_second_bounces() -> None:
    async def body(on: Stage) -> None:
        (one, mine), (two, theirs) = await on.bench.begin("t"), await on.bench.begin("u")
        shared = await budget(on.bench, tokens=15)

        first, second = await on.held_against(
            lambda store: store.commit(one, [reserve(mine, "s", shared)]),
            on.bench.store.commit(two, [reserve(theirs, "s", shared)]),
        )

        assert first == CommitOutcome()
        assert second == CommitOutcome(bounced={(theirs.run, 1, "s"): Bounce.BUDGET})
        assert await tokens(on.bench, shared) == [(0, 10)]

    played(body)


async def asking(bench: Bench, claimed: Claimed, about: int, rev: int, key: str = "w") -> Change:
    question = NewInterrupt(await bench.new_id(), "raise?", b"?", None, "", "raise", None, (about, rev))
    return wait(claimed, key, WaitKind.ANSWER, interrupt=question)


async def question_of(bench: Bench, change: Any) -> InterruptState:
    (found,) = await bench.store.get_interrupts([change.interrupt.id])
    return found.state


def test_whoever_sets_a_budget_waits_for_a_question_about_it_and_withdraws_it() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        shared = await budget(on.bench, tokens=15)
        question = await asking(on.bench, claimed, shared.id, shared.rev)
        more = NewBudget(0, shared.name, Limits(tokens=30))

        outcome, row = await on.held_against(
            lambda store: store.commit(worker, [question, park(claimed)]), on.bench.store.set_budget(more, None)
        )

        assert (outcome, row.rev) == (CommitOutcome(), 2)
        assert await question_of(on.bench, question) is InterruptState.WITHDRAWN
        assert await on.bench.state(claimed.run) is RunState.QUEUED

    played(body)


def test_a_question_waits_for_whoever_sets_its_budget_and_is_not_asked() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        shared = await budget(on.bench, tokens=15)
        question = await asking(on.bench, claimed, shared.id, shared.rev)
        more = NewBudget(0, shared.name, Limits(tokens=30))

        _, outcome = await on.held_against(
            lambda store: store.set_budget(more, None), on.bench.store.commit(worker, [question, park(claimed)])
        )

        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
        assert await question_of(on.bench, question) is InterruptState.WITHDRAWN

    played(body)


# -- many at once --------------------------------------------------------------------------------------------


def test_many_relays_and_committers_lose_nothing_double_nothing_and_never_meet_in_a_circle() -> None:
    async def body(on: Stage) -> None:
        bench = on.bench
        stores = [await bench.clone() for _ in range(WORKERS)]
        shared = [await budget(bench, f"tenant:{name}", tokens=1_000_000) for name in "abc"]
        begun = [await bench.begin(f"t{number}") for number in range(WORKERS)]
        before = await deadlocks(on)
        relays = [(await bench.clone(), await bench.worker()) for _ in range(2)]
        other = await bench.clone()
        tried: list[Delivery] = []

        await asyncio.gather(
            *(
                commit_much(bench, store, worker, claimed, shared)
                for store, (worker, claimed) in zip(stores, begun, strict=True)
            ),
            *(relay(bench, store, worker, tried) for store, worker in relays),
            raise_often(other, shared),
        )

        assert len({(each.id, each.attempts) for each in tried}) == len(tried) == WORKERS * ROUNDS * 2
        assert sorted({each.partition for each in tried}) == ["a", "b", "c"]
        for partition in "abc":
            seqs = [each.seq for each in tried if each.partition == partition]
            assert seqs == sorted(seqs)
        used = WORKERS * ROUNDS * 3
        assert await tokens(bench, *shared) == [(used, 0)] * 3
        assert await deadlocks(on) == before

    played(body)


async def commit_much(bench: Bench, store: Any, worker: int, claimed: Claimed, shared: Sequence[Any]) -> None:
    """Reserve, then say what it came to with two deliveries and a question, in an order of its own each time."""
    mixed = random.Random(claimed.run)
    for number in range(ROUNDS):
        lanes = mixed.sample("abc", 2)
        each = mixed.sample(list(shared), len(shared))
        assert await store.commit(worker, [reserve(claimed, f"s{number}", *each)]) == CommitOutcome()
        batch: list[Change] = [
            deliver(claimed, f"d{number}{name}", await parcel(bench, partition=name)) for name in lanes
        ]
        record = step(claimed, f"s{number}", spent=spent(*each, tokens=3), meters=(meter(quantity=3),))
        question = await asking(bench, claimed, each[0].id, number, f"w{number}")
        assert await store.commit(worker, [*batch, record, question]) == CommitOutcome()


async def relay(bench: Bench, store: Any, worker: int, tried: list[Delivery]) -> None:
    """Hand over all that comes, until nothing is left to come."""
    while len(tried) < WORKERS * ROUNDS * 2:
        fetched = await fetch(bench, worker, store=store)
        tried += fetched
        await store.settle_deliveries(worker, [said(each) for each in reversed(fetched)])
        await asyncio.sleep(0)


async def raise_often(store: Any, shared: Sequence[Any]) -> None:
    for number in range(ROUNDS):
        for each in shared:
            await store.set_budget(NewBudget(0, each.name, Limits(tokens=1_000_000 + number)), "ann")


async def deadlocks(on: Stage) -> int:
    """How often the server has found a circle, by what backends have told it."""
    assert isinstance(on.bench.store, PostgresStore)
    statement = "select deadlocks from pg_stat_database where datname = current_database()"
    return int(await on.bench.store._clients.fetchval(statement))


def test_bills_of_many_runs_at_once_have_numbers_of_their_own() -> None:
    async def body(on: Stage) -> None:
        bench, count = on.bench, 12
        worker = await bench.worker()
        stores = [await bench.clone() for _ in range(3)]
        for number in range(count):
            await bench.start(f"t{number}", billing=Billing("bills", f"b{number}"))
        claims = await bench.claim(worker, limit=count)
        assert len(claims) == count

        taken = asyncio.create_task(reserve_often(stores[0]))
        await asyncio.gather(
            *(stores[number % 3].commit(worker, [end(claimed)]) for number, claimed in enumerate(claims)),
        )

        bills = await bench.store.deliveries(DeliveryFilter(sink="bills"))
        assert len(bills) == count
        assert (await taken).isdisjoint(bill.id for bill in bills)

    played(body)


async def reserve_often(store: Any) -> set[int]:
    taken: set[int] = set()
    for _ in range(30):
        first = await store.reserve_ids(7)
        taken.update(range(first, first + 7))
    return taken


# -- batches -------------------------------------------------------------------------------------------------


def delivering(claimed: Any) -> Change:
    new = mock.Mock(id=1, sink="bus", partition="p", key="k", payload=b"", blobs=())
    return deliver(claimed, "d", new)


RESERVED = mock.Mock(id=7)
QUESTION = NewInterrupt(1, "raise?", b"?", None, "", "raise", None, (7, 1))


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        (["append_one"], lambda c: [step(c, "s")]),
        (["append"], lambda c: [step(c, "s"), step(c, "t")]),
        (["commit"], lambda c: [attempt(c, "s"), end(c)]),
        (["append_one", "hand_over"], lambda c: [delivering(c)]),
        (["append", "hand_over", "spend"], lambda c: [delivering(c), reserve(c, "s", RESERVED)]),
        (["append_using"], lambda c: [step(c, "s", meters=(meter(),)), step(c, "t")]),
        (["append_using"], lambda c: [step(c, "s", spent=spent(RESERVED)), reserve(c, "t", RESERVED)]),
        (["commit", "record_meters", "spend"], lambda c: [attempt(c, "s", meters=(meter(),), spent=spent(RESERVED))]),
        (["append_using"], lambda c: [reserve(c, "s", RESERVED)]),
        (["commit", "spend"], lambda c: [attempt(c, "s"), reserve(c, "s", RESERVED)]),
        (["commit", "hand_over", "commit"], lambda c: [delivering(c), end(c)]),
        (["commit_effects", "commit_waits", "hand_over"], lambda c: [intend(c, 1), wait(c, "w"), delivering(c)]),
        (
            ["commit_waits", "ask_about_budgets", "commit_waits"],
            lambda c: [wait(c, "w", WaitKind.ANSWER, interrupt=QUESTION), park(c)],
        ),
    ],
)
def test_what_a_batch_hands_over_and_uses_is_written_behind_its_log(
    names: list[str], changes: Callable[[Any], Sequence[Change]]
) -> None:
    store = PostgresStore("postgresql://nobody@nowhere/db")
    texts = {statement.text: name for name, statement in store._statements.items()}

    writes = store._committer._writes(7, changes(mock.Mock(run=1, fence=2, thread=3, super_step=1)))

    assert [texts[each.text] for each in writes] == names


# -- a schema from before ------------------------------------------------------------------------------------

NOW_AND_BEFORE = (
    ("  m_sent_key text[] default null,\n  out alive", "  out alive"),
    (",\n  m_sent_key text[] default null\n", "\n"),
    (", id bigint)\n", ")\n"),
    (" m_payload bytea[], m_sent_key text[],\n  b_thread", " m_payload bytea[],\n  b_thread"),
    (" m_thread bigint[], m_sent_key text[],\n  m_position", " m_thread bigint[],\n  m_position"),
    (", effects boolean, budgets bigint[]\n", ", effects boolean\n"),
    (",\n  s_budget bigint[] default null, s_usd bigint[] default null, s_tokens bigint[] default null,\n", ""),
    ("  s_steps bigint[] default null, s_us bigint[] default null, s_bill_sink text[] default null,\n", ""),
    ("  s_bill_key text[] default null\n", "\n"),
)
"""What the functions take and return, and what they did."""

CATALOG = """
select 'column ' || c.table_name || '.' || c.column_name, concat_ws(' ', c.udt_name, c.is_nullable, c.column_default)
from information_schema.columns c
where c.table_schema = $1
union all
select 'index ' || i.indexname, i.indexdef from pg_indexes i where i.schemaname = $1
union all
select 'function ' || p.oid::regprocedure, pg_get_functiondef(p.oid) from pg_proc p
where p.pronamespace = (select n.oid from pg_namespace n where n.nspname = $1)
union all
select 'view ' || v.viewname, v.definition from pg_views v where v.schemaname = $1
"""


async def catalog(url: str) -> dict[str, str]:
    """What a schema is, without its name."""
    name = parse(url).schema
    connection = await asyncpg.connect(url.rpartition("&")[0])
    try:
        found = await connection.fetch(CATALOG, name)
    finally:
        await connection.close()
    return {what.replace(name, "S"): text.replace(name, "S") for what, text in found}


def as_it_was(text: str) -> str:
    """A file of functions as it was, as far as it shows from outside."""
    for now, before in NOW_AND_BEFORE:
        text = text.replace(now, before)
    return text


def test_a_schema_from_before_there_was_an_outbox_becomes_what_a_fresh_one_is() -> None:
    async def main() -> None:
        fresh, old = postgres.shared().fresh_url(), postgres.shared().fresh_url()
        prefix = parse(old).prefix
        migrations = schema.migrations(prefix)[:4]
        older = tuple(map(as_it_was, (text for text in schema.functions(prefix) if not outboxed(text))))
        with (
            mock.patch.object(schema, "migrations", lambda _: migrations),
            mock.patch.object(schema, "functions", lambda _: older),
        ):
            assert await PostgresStore(old).migrate() == (0, 4)

        assert await PostgresStore(old).migrate() == (4, 5)
        assert await PostgresStore(fresh).migrate() == (0, 5)

        assert await catalog(old) == await catalog(fresh)

    asyncio.run(main())


def outboxed(text: str) -> bool:
    """Whether a file of functions has to do with what came with the outbox alone."""
    return any(f".{view} as" in text for view in ("outbox", "accounts")) or "record_meters" in text
