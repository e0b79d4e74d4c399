"""Scenarios: users' own SQL in the transaction that records their step. A store without SQL refuses."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.core.records import Claimed, Kind
from perdure.errors import UsageError
from perdure.store.protocol import Store, Transaction
from perdure.testing.conformance.harness import (
    PATIENCE_S,
    Bench,
    Harness,
    blob,
    requeue,
    scenario,
    step,
)
from perdure.testing.conformance.parcels import budget, meter, reserve, spent, tokens

Work = Callable[[Transaction], Awaitable[AppendCheckpoint]]
Self = TypeVar("Self", bound=Harness)


ENDLESS = "with recursive n (i) as (select 1 union all select i + 1 from n)"


class Table:
    """A table of users': who has how much."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def put(self, tx: Transaction, who: str, amount: int) -> int:
        return await tx.execute(f"insert into {self.name} values {marks(tx, 2)}", who, amount)

    async def add(self, tx: Transaction, who: str, amount: int) -> int:
        first, second = ("$1", "$2") if tx.dialect == "postgresql" else ("?", "?")
        return await tx.execute(f"update {self.name} set amount = amount + {first} where who = {second}", amount, who)

    async def rows(self, tx: Transaction) -> list[tuple[str, int]]:
        found = await tx.fetch(f"select who, amount from {self.name} order by who")
        return [(row["who"], row["amount"]) for row in found]

    def putting(self, record: AppendCheckpoint, who: str = "ann", amount: int = 1) -> Work:
        """A row, and a record."""

        async def work(tx: Transaction) -> AppendCheckpoint:
            await self.put(tx, who, amount)
            return record

        return work


def marks(tx: Transaction, count: int) -> str:
    """So many parameters, in parentheses."""
    each = [f"${number}" if tx.dialect == "postgresql" else "?" for number in range(1, count + 1)]
    return f"({', '.join(each)})"


def place(claimed: Claimed, key: str) -> Place:
    return claimed.run, claimed.super_step, key


class EnoughError(Exception):
    """Undo it all."""


async def looked(bench: Bench, table: Table) -> list[tuple[str, int]]:
    """What is in the table, as another step's transaction sees it, which is undone."""
    number = await bench.new_id()
    worker, claimed = await bench.begin(f"looking {number}", agent=f"looks {number}")
    found: list[tuple[str, int]] = []

    async def look(tx: Transaction) -> AppendCheckpoint:
        found.extend(await table.rows(tx))
        raise EnoughError

    with contextlib.suppress(EnoughError):
        await bench.store.transact(worker, place(claimed, "look"), look)
    return found


@contextlib.asynccontextmanager
async def a_table(bench: Bench) -> AsyncIterator[Table]:
    """A table of users' that goes again."""
    table = Table(f"perdure_users_{secrets.token_hex(8)}")
    worker, claimed = await bench.begin("making", agent="makes")

    async def run(key: str, sql: str) -> None:
        async def work(tx: Transaction) -> AppendCheckpoint:
            await tx.execute(sql)
            return step(claimed, key)

        assert await bench.store.transact(worker, place(claimed, key), work) == CommitOutcome()

    await run("make", f"create table {table.name} (who text primary key, amount integer)")
    try:
        yield table
    finally:
        await run("drop", f"drop table {table.name}")


def with_sql(body: Callable[[Self, Bench, Table], Awaitable[None]]) -> Callable[[Self], None]:
    """A scenario with a table; for a store without SQL it is that `transact` refuses."""

    async def on_a_table(self: Self, bench: Bench) -> None:
        if self.has_sql:
            async with a_table(bench) as table:
                await body(self, bench, table)
            return
        worker, claimed = await bench.begin()
        refused = False
        try:
            await bench.store.transact(worker, place(claimed, "s"), Table("none").putting(step(claimed, "s")))
        except UsageError:
            refused = True
        assert refused and await bench.steps(claimed.run) == {}

    on_a_table.__name__, on_a_table.__qualname__ = body.__name__, body.__qualname__
    on_a_table.__module__, on_a_table.__doc__ = body.__module__, body.__doc__
    return scenario(on_a_table)


class Transacting(Harness):
    """What `transact` promises."""

    @with_sql
    async def test_a_step_is_recorded_together_with_its_users_sql(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        large = blob(b"large" * 10_000)

        work = table.putting(step(claimed, "s", b"moved", seq=3, blobs=(large,)), "ann 🦉", 7)
        outcome = await bench.store.transact(worker, place(claimed, "s"), work)

        assert outcome == CommitOutcome()
        assert await looked(bench, table) == [("ann 🦉", 7)]
        (record,) = [row for row in await bench.log(claimed.run) if row.kind is Kind.STEP]
        assert (record.key, record.payload, record.seq, record.attempt) == ("s", b"moved", 3, 1)
        assert (record.fence, record.worker, record.failed) == (claimed.fence, worker, False)
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}

    @with_sql
    async def test_a_transaction_reads_and_writes(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        seen: list[Any] = []

        async def work(tx: Transaction) -> AppendCheckpoint:
            seen.append(await table.put(tx, "ann", 1))
            await tx.execute_many(f"insert into {table.name} values {marks(tx, 2)}", [("bob", 2), ("cid", None)])
            await tx.execute_many(f"insert into {table.name} values {marks(tx, 2)}", [])
            mark = "$1" if tx.dialect == "postgresql" else "?"
            seen.append(await tx.execute(f"update {table.name} set amount = amount + {mark}", 10))
            seen.append(await tx.execute(f"delete from {table.name} where who = 'nobody'"))
            seen.append(await tx.fetch(f"select who, amount from {table.name} where who > {mark} order by who", "ann"))
            seen.append(await tx.fetch_row(f"select * from {table.name} order by who"))
            seen.append(await tx.fetch_row(f"select * from {table.name} where who = 'nobody'"))
            seen.append(await tx.fetch_value(f"select amount, who from {table.name} where who = {mark}", "bob"))
            seen.append(await tx.fetch_value(f"select amount from {table.name} where who = 'nobody'"))
            return step(claimed, "s")

        assert await bench.store.transact(worker, place(claimed, "s"), work) == CommitOutcome()

        others = [{"who": "bob", "amount": 12}, {"who": "cid", "amount": None}]
        assert seen == [1, 3, 0, others, {"who": "ann", "amount": 11}, None, 12, None]

    @with_sql
    async def test_an_error_undoes_all_and_is_raised(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        error = EnoughError("no")

        async def fails(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            raise error

        async def twice(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            await table.put(tx, "ann", 2)
            return step(claimed, "s")

        for work in (fails, twice):
            raised: Exception | None = None
            try:
                await bench.store.transact(worker, place(claimed, "s"), work)
            except Exception as each:  # an error of the driver has no name here
                raised = each
            assert raised is error if work is fails else raised is not None
        assert await looked(bench, table) == [] and await bench.steps(claimed.run) == {}
        again = table.putting(step(claimed, "s"))
        assert await bench.store.transact(worker, place(claimed, "s"), again) == CommitOutcome()
        assert await looked(bench, table) == [("ann", 1)]

    @with_sql
    async def test_a_transaction_that_is_cancelled_leaves_nothing(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        inside = asyncio.Event()

        async def hangs(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            inside.set()
            await asyncio.Event().wait()
            return step(claimed, "s")

        task = asyncio.create_task(bench.store.transact(worker, place(claimed, "s"), hangs))
        async with asyncio.timeout(PATIENCE_S):
            await inside.wait()
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert await looked(bench, table) == [] and await bench.steps(claimed.run) == {}

    @with_sql
    async def test_a_statement_that_nobody_waits_for_any_more_holds_nobody_up(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")

        async def gives_up(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            async with asyncio.timeout(0.05):
                await tx.fetch(f"{ENDLESS} select max(i) from n")
            return step(claimed, "s")

        late = False
        async with asyncio.timeout(PATIENCE_S):
            try:
                await bench.store.transact(worker, place(claimed, "s"), gives_up)
            except TimeoutError:
                late = True
            again = table.putting(step(claimed, "s"))
            assert late and await bench.store.transact(worker, place(claimed, "s"), again) == CommitOutcome()

        assert await looked(bench, table) == [("ann", 1)]

    # -- guarded ---------------------------------------------------------------------------------------------

    @with_sql
    async def test_an_old_fence_undoes_all(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        await bench.store.give_back(worker, keep=[])

        outcome = await bench.store.transact(worker, place(claimed, "s"), table.putting(step(claimed, "s")))

        assert outcome == CommitOutcome(lost=frozenset({claimed.run}))
        assert await looked(bench, table) == [] and await bench.steps(claimed.run) == {}

    @with_sql
    async def test_a_worker_that_was_taken_over_meanwhile_undoes_all(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")

        async def work(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            if tx.dialect == "postgresql":
                await bench.die(worker)
            return step(claimed, "s")

        if await dialect_of(bench) == "sqlite":
            await bench.die(worker)
        outcome = await bench.store.transact(worker, place(claimed, "s"), work)

        assert outcome == CommitOutcome(alive=False)
        assert await looked(bench, table) == [] and await bench.steps(claimed.run) == {}

    @with_sql
    async def test_a_record_that_is_there_is_not_done_again(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        work = table.putting(step(claimed, "s", b"first"))
        await bench.store.transact(worker, place(claimed, "s"), work)

        for amount in (2, 3):
            again = table.putting(step(claimed, "s", b"second"), f"bob {amount}", amount)
            assert await bench.store.transact(worker, place(claimed, "s"), again) == CommitOutcome()

        assert await looked(bench, table) == [("ann", 1)]
        assert await bench.steps(claimed.run) == {"s": b"first"}

    @with_sql
    async def test_a_record_under_another_fence_is_refused_and_undoes_all(self, bench: Bench, table: Table) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, step(first, "s", b"first"), requeue(first))
        second = await bench.claim_one(worker)

        outcome = await bench.store.transact(worker, place(second, "s"), table.putting(step(second, "s", b"second")))

        assert list(outcome.refused) == [first.run]
        assert await looked(bench, table) == [] and await bench.steps(first.run) == {"s": b"first"}

    @with_sql
    async def test_a_run_that_is_to_be_cancelled_is_told_so_and_recorded(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)

        outcome = await bench.store.transact(worker, place(claimed, "s"), table.putting(step(claimed, "s")))

        assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))
        assert await looked(bench, table) == [("ann", 1)] and (await bench.steps(claimed.run)).keys() == {"s"}

    @with_sql
    async def test_a_failed_step_may_be_recorded_with_what_it_has_done(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        failed = step(claimed, "s", b"error", failed=True)

        await bench.store.transact(worker, place(claimed, "s"), table.putting(failed))

        assert [row.failed for row in await bench.log(claimed.run) if row.key == "s"] == [True]
        assert await looked(bench, table) == [("ann", 1)]

    @with_sql
    async def test_meters_and_what_was_spent_go_with_the_record(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench)
        await bench.commit(worker, reserve(claimed, "s", shared, tokens=10))
        record = step(claimed, "s", meters=(meter("a"), meter("b")), spent=spent(shared, tokens=3))

        for who in ("ann", "bob"):
            await bench.store.transact(worker, place(claimed, "s"), table.putting(record, who))

        assert await looked(bench, table) == [("ann", 1)]
        assert [row.name for row in await bench.store.meters(claimed.run)] == ["a", "b"]
        assert await tokens(bench, shared) == [(3, 0)]

    # -- beside others ---------------------------------------------------------------------------------------

    @with_sql
    async def test_others_commit_and_renew_while_a_transaction_is_open_or_after_it(
        self, bench: Bench, table: Table
    ) -> None:
        worker, claimed = await bench.begin("t")
        other, theirs = await bench.begin("other", agent="other")
        inside, leave, clone = asyncio.Event(), asyncio.Event(), await bench.clone()

        async def stays(tx: Transaction) -> AppendCheckpoint:
            await table.put(tx, "ann", 1)
            inside.set()
            await leave.wait()
            return step(claimed, "s")

        task = asyncio.create_task(bench.store.transact(worker, place(claimed, "s"), stays))
        async with asyncio.timeout(PATIENCE_S):
            await inside.wait()
            work = asyncio.gather(
                bench.store.commit(other, [step(theirs, "a")]),
                clone.renew(worker, 30_000_000),
                bench.store.get_runs([claimed.run]),
            )
            await asyncio.sleep(0)
            leave.set()
            written, renewed, runs = await work
            assert await task == CommitOutcome() == written

        assert renewed and [row.id for row in runs] == [claimed.run]
        assert await looked(bench, table) == [("ann", 1)]

    @with_sql
    async def test_a_transaction_that_lost_against_another_is_done_again(self, bench: Bench, table: Table) -> None:
        one, first = await bench.begin("one", agent="one")
        two, second = await bench.begin("two", agent="two")
        await bench.store.transact(one, place(first, "a"), table.putting(step(first, "a"), "ann", 0))
        await bench.store.transact(two, place(second, "b"), table.putting(step(second, "b"), "bob", 0))
        begun = {"ann": asyncio.Event(), "bob": asyncio.Event()}
        calls: list[str] = []

        def moving(source: str, target: str, record: AppendCheckpoint) -> Work:
            async def work(tx: Transaction) -> AppendCheckpoint:
                calls.append(source)
                await table.add(tx, source, -1)
                begun[source].set()
                if tx.dialect == "postgresql":
                    await begun[target].wait()
                await table.add(tx, target, 3)
                return record

            return work

        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(
                bench.store.transact(one, place(first, "s"), moving("ann", "bob", step(first, "s"))),
                bench.store.transact(two, place(second, "s"), moving("bob", "ann", step(second, "s"))),
            )

        assert list(outcomes) == [CommitOutcome()] * 2
        assert await looked(bench, table) == [("ann", 2), ("bob", 2)]
        assert len(calls) == 2 if await dialect_of(bench) == "sqlite" else len(calls) > 2
        assert "s" in await bench.steps(first.run) and "s" in await bench.steps(second.run)

    @with_sql
    async def test_many_transactions_at_once_are_all_done_once(self, bench: Bench, table: Table) -> None:
        worker = await bench.worker()
        await bench.start_many(12)
        claims = await bench.claim(worker)
        await bench.store.transact(worker, place(claims[0], "a"), table.putting(step(claims[0], "a"), "ann", 0))

        def adding(record: AppendCheckpoint) -> Work:
            async def work(tx: Transaction) -> AppendCheckpoint:
                await table.add(tx, "ann", 1)
                return record

            return work

        outcomes = await asyncio.gather(
            *(bench.store.transact(worker, place(each, "s"), adding(step(each, "s"))) for each in claims)
        )

        assert outcomes == [CommitOutcome()] * 12
        assert await looked(bench, table) == [("ann", 12)]

    @with_sql
    async def test_a_store_that_has_transacted_closes_and_opens_again(self, bench: Bench, table: Table) -> None:
        worker, claimed = await bench.begin("t")
        store: Store = await bench.clone()
        await store.transact(worker, place(claimed, "a"), table.putting(step(claimed, "a"), "ann"))
        await store.close()
        await store.open()

        await store.transact(worker, place(claimed, "b"), table.putting(step(claimed, "b"), "bob"))

        assert await looked(bench, table) == [("ann", 1), ("bob", 1)]


async def dialect_of(bench: Bench) -> str:
    """Which SQL the store speaks."""
    number = await bench.new_id()
    worker, claimed = await bench.begin(f"speaking {number}", agent=f"speaks {number}")
    spoken: list[str] = []

    async def listen(tx: Transaction) -> AppendCheckpoint:
        spoken.append(tx.dialect)
        raise EnoughError

    with contextlib.suppress(EnoughError):
        await bench.store.transact(worker, place(claimed, "s"), listen)
    return spoken[0]
