"""Users' own transactions in a SQLite file: all or nothing, one after the other, and nobody loses a lease for them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.core.changes import AppendCheckpoint, CommitOutcome
from perdure.core.records import Claimed
from perdure.errors import StoreError, StoreUnavailable, UsageError
from perdure.store.protocol import Transaction
from perdure.store.sqlite import SQLiteStore, transact
from perdure.testing.conformance import Bench, Harness, scenario
from perdure.testing.conformance.harness import LEASE_S, PATIENCE_S, step
from perdure.testing.conformance.transacting import ENDLESS
from tests.store.test_sqlite import OnFiles
from tests.store.test_sqlite_waiting import rows

ADD = "insert into accounts (name, amount) values (?, ?)"

Body = Callable[[Transaction], Awaitable[object]]


async def open_accounts(bench: Bench) -> None:
    """A table of the user's, in the store's file."""
    path = bench.store.url.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        connection.execute("create table accounts (name text primary key, amount integer not null)")
    connection.close()


async def accounts(bench: Bench) -> dict[str, int]:
    return dict(await rows(bench.store, "select name, amount from accounts"))


async def transacted(
    bench: Bench, worker: int, claimed: Claimed, body: Body, *, record: AppendCheckpoint | None = None,
    store: Any = None,
) -> CommitOutcome:  # fmt: skip
    """Do the body in a transaction, with the record of the step `move`."""
    recorded = record or step(claimed, "move")

    async def work(tx: Transaction) -> AppendCheckpoint:
        await body(tx)
        return recorded

    return await (store or bench.store).transact(worker, (recorded.run, recorded.super_step, recorded.key), work)


def block_until_another_has_written(bench: Bench) -> None:
    """Keep the loop from going on until another connection could write."""
    path = bench.store.url.removeprefix("sqlite:///")

    def write() -> None:
        with sqlite3.connect(path, timeout=20) as connection:
            connection.execute(ADD, ("other", 1))
        connection.close()

    other = threading.Thread(target=write)
    other.start()
    other.join(20)
    assert not other.is_alive()


async def add(tx: Transaction) -> None:
    assert await tx.execute(ADD, "a", 1) == 1


class TestTransactionsInAFile(OnFiles, Harness):
    """What the suite, which knows no connections and no locks, cannot see."""

    @scenario
    async def test_a_record_that_cannot_be_stored_takes_all_that_was_written_with_it(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        outcome = await transacted(bench, worker, claimed, add, record=step(claimed, "move", digest=2**63))

        assert set(outcome.refused) == {claimed.run}
        assert await accounts(bench) == {}

    @scenario
    async def test_only_the_store_ends_a_transaction(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def end_it(tx: Transaction) -> None:
            await add(tx)
            for statement in ("commit", "rollback", "begin", "end", "begin immediate", "rollback transaction"):
                with pytest.raises(UsageError, match="the store itself begins and ends"):
                    await tx.execute(statement)
            raise ValueError("all in vain")

        with pytest.raises(ValueError, match="in vain"):
            await transacted(bench, worker, claimed, end_it)

        assert await accounts(bench) == {}

    @scenario
    async def test_a_statement_that_fails_undoes_itself_alone_and_its_error_is_the_drivers(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def go_on(tx: Transaction) -> None:
            await add(tx)
            with pytest.raises(sqlite3.IntegrityError):
                await tx.execute_many(ADD, [("b", 2), ("a", 9)])
            with pytest.raises(sqlite3.OperationalError):
                await tx.fetch("select * from nowhere")
            with pytest.raises(sqlite3.ProgrammingError):
                await tx.execute(ADD, "too few")
            assert await tx.execute("create table other (a)") == 0

        await transacted(bench, worker, claimed, go_on)

        assert (await accounts(bench))["a"] == 1

    @scenario
    async def test_a_transaction_is_of_no_use_after_its_end(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()
        kept: list[Transaction] = []

        async def keep(tx: Transaction) -> None:
            kept.append(tx)

        await transacted(bench, worker, claimed, keep)

        with pytest.raises(UsageError, match="over"):
            await add(kept[0])
        assert await accounts(bench) == {}

    @scenario
    async def test_transactions_and_commits_of_several_stores_take_turns(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker = await bench.worker()
        await bench.start_many(9)
        runs = await bench.claim(worker)
        stores = [bench.store, *await bench.clones(2)]
        await transacted(bench, worker, runs[0], add, record=step(runs[0], "first"))

        async def count(tx: Transaction) -> None:
            amount = await tx.fetch_value("select amount from accounts")
            await asyncio.sleep(0)
            await tx.execute("update accounts set amount = ?", amount + 1)

        async with asyncio.TaskGroup() as group:
            for number, claimed in enumerate(runs):
                store = stores[number % 3]
                group.create_task(transacted(bench, worker, claimed, count, store=store))
                group.create_task(store.commit(worker, [step(claimed, f"a{n}", seq=n) for n in range(20)]))

        assert await accounts(bench) == {"a": 10}
        assert {len(await bench.steps(each.run)) for each in runs[1:]} == {21}

    @scenario
    async def test_nobody_loses_a_lease_while_a_transaction_keeps_all_from_renewing(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()
        other = await bench.worker()
        keeper, begun = await bench.clone(), asyncio.Event()
        renewal = asyncio.create_task(self.renew_when(begun, keeper, other))

        async def take_a_while(tx: Transaction) -> None:
            await add(tx)
            begun.set()
            await bench.advance_s(2 * LEASE_S)

        assert await transacted(bench, worker, claimed, take_a_while) == CommitOutcome()

        assert await keeper.take_over([], recoveries_max=5) == []
        assert await renewal

    async def renew_when(self, begun: asyncio.Event, store: Any, worker: int) -> bool:
        await begun.wait()
        renewed: bool = await store.renew(worker, int(LEASE_S * 1_000_000))
        return renewed

    @scenario
    async def test_nor_where_the_transaction_is_rolled_back_after_a_while(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def take_a_while_in_vain(tx: Transaction) -> None:
            await add(tx)
            await bench.advance_s(2 * LEASE_S)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await transacted(bench, worker, claimed, take_a_while_in_vain)

        assert await bench.store.take_over([], recoveries_max=5) == []
        assert await accounts(bench) == {}
        await bench.advance_s(2 * LEASE_S)
        assert [each.worker for each in await bench.store.take_over([], recoveries_max=5)] == [worker]

    @scenario
    async def test_a_transaction_that_does_not_end_is_ended(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def hang(tx: Transaction) -> None:
            await add(tx)
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError, match="kept all others from writing"):
            patch.setattr(transact, "HELD_S", 0.05)
            await transacted(bench, worker, claimed, hang)

        assert await bench.store.renew(worker, 1)
        assert await accounts(bench) == {}

    @scenario
    async def test_a_body_that_blocks_the_loop_keeps_nobody_from_writing_for_longer(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def block(tx: Transaction) -> None:
            await add(tx)
            block_until_another_has_written(bench)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError, match="kept all others from writing"):
            patch.setattr(transact, "HELD_S", 0.2)
            await transacted(bench, worker, claimed, block)

        assert await accounts(bench) == {"other": 1} and await bench.steps(claimed.run) == {}
        assert await transacted(bench, worker, claimed, add) == CommitOutcome()

    @scenario
    async def test_a_statement_after_too_long_a_time_is_refused_whatever_the_body_makes_of_that(
        self, bench: Bench
    ) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def go_on(tx: Transaction) -> None:
            await add(tx)
            block_until_another_has_written(bench)
            for _ in range(2):
                with contextlib.suppress(StoreError):
                    await tx.execute(ADD, "late", 1)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreError, match="kept all others from writing"):
            patch.setattr(transact, "HELD_S", 0.2)
            await transacted(bench, worker, claimed, go_on)

        assert await accounts(bench) == {"other": 1} and await bench.steps(claimed.run) == {}

    @scenario
    async def test_a_full_disk_is_the_stores_trouble_and_no_error_of_the_step(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def fill(tx: Transaction) -> None:
            await add(tx)
            await tx.execute("pragma max_page_count = 1")
            await tx.execute("create table large as select zeroblob(10000000)")

        async def fill_and_go_on(tx: Transaction) -> None:
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="disk is full"):
                    await fill(tx)

        async def fill_and_say_something_else(tx: Transaction) -> None:
            try:
                await fill(tx)
            except StoreUnavailable as error:
                raise ValueError("mine") from error

        for body in (fill, fill_and_go_on, fill_and_say_something_else):
            with pytest.raises(StoreUnavailable, match="disk is full"):
                await transacted(bench, worker, claimed, body)
            assert await accounts(bench) == {} and await bench.steps(claimed.run) == {}
        assert await transacted(bench, worker, claimed, add) == CommitOutcome()

    @scenario
    async def test_a_conflict_that_rolls_all_back_ends_the_transaction_and_is_not_recorded(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def roll_back(tx: Transaction) -> None:
            await add(tx)
            for name in ("a", "b"):
                with contextlib.suppress(sqlite3.IntegrityError, UsageError):
                    await tx.execute("insert or rollback into accounts (name, amount) values (?, 1)", name)

        with pytest.raises(UsageError, match="the store itself begins and ends"):
            await transacted(bench, worker, claimed, roll_back)

        assert await accounts(bench) == {} and await bench.steps(claimed.run) == {}

    @scenario
    async def test_nothing_of_a_connection_outlasts_its_transaction(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        async def leave(tx: Transaction) -> None:
            assert await tx.fetch("select name from temp.sqlite_master") == []
            assert await tx.fetch_value("pragma case_sensitive_like") is None
            assert await tx.fetch_value("pragma recursive_triggers") == 0
            await tx.execute("create temp table left_behind (a)")
            await tx.execute("pragma recursive_triggers = on")

        for key in ("a", "b", "c"):
            assert await transacted(bench, worker, claimed, leave, record=step(claimed, key)) == CommitOutcome()

    @scenario
    async def test_a_timeout_of_the_users_own_stays_one(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def time_out(tx: Transaction) -> None:
            raise TimeoutError("mine")

        with pytest.raises(TimeoutError, match="mine"):
            await transacted(bench, worker, claimed, time_out)

    @scenario
    async def test_a_cancelled_transaction_breaks_off_its_statement_and_lets_go(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()
        begun = asyncio.Event()

        async def count_for_ever(tx: Transaction) -> None:
            await add(tx)
            begun.set()
            endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n"
            await tx.fetch_value(endless)

        task = asyncio.create_task(transacted(bench, worker, claimed, count_for_ever))
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await transacted(bench, worker, claimed, add) == CommitOutcome()
        assert await accounts(bench) == {"a": 1}

    @scenario
    async def test_what_only_reads_is_broken_off_and_the_transaction_goes_on(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def give_up(tx: Transaction) -> None:
            await add(tx)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await tx.fetch_value(f"{ENDLESS} select max(i) from n")
            assert await tx.fetch_value("select amount from accounts") == 1

        async with asyncio.timeout(PATIENCE_S):
            assert await transacted(bench, worker, claimed, give_up) == CommitOutcome()

        assert await accounts(bench) == {"a": 1}

    @scenario
    async def test_what_writes_is_broken_off_with_all_that_was_written(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def give_up(tx: Transaction) -> None:
            await add(tx)
            async with asyncio.timeout(0.05):
                await tx.execute(f"{ENDLESS} insert into accounts select i, i from n")

        async def give_up_and_go_on(tx: Transaction) -> None:
            with contextlib.suppress(TimeoutError):
                await give_up(tx)

        for body, error in ((give_up, TimeoutError), (give_up_and_go_on, UsageError)):
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(error):
                    await transacted(bench, worker, claimed, body)
            assert await accounts(bench) == {} and await bench.steps(claimed.run) == {}

    @scenario
    async def test_one_that_was_left_before_its_turn_is_not_done(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()

        async def leave(tx: Transaction) -> None:
            await add(tx)
            slow = asyncio.create_task(tx.fetch_value(f"{ENDLESS} select max(i) from n"))
            late = asyncio.create_task(tx.execute(ADD, "late", 1))
            await asyncio.sleep(0)
            late.cancel()
            slow.cancel()
            await asyncio.wait([slow, late])

        async with asyncio.timeout(PATIENCE_S):
            assert await transacted(bench, worker, claimed, leave) == CommitOutcome()

        assert await accounts(bench) == {"a": 1}

    @scenario
    async def test_a_store_that_closes_rolls_back_what_is_under_way(self, bench: Bench) -> None:
        await open_accounts(bench)
        worker, claimed = await bench.begin()
        clone = await bench.clone()

        async def close(tx: Transaction) -> None:
            await add(tx)
            await clone.close()
            await add(tx)

        with pytest.raises(StoreUnavailable, match="closed"):
            await transacted(bench, worker, claimed, close, store=clone)

        assert await accounts(bench) == {}
        assert await transacted(bench, worker, claimed, add) == CommitOutcome()

    @scenario
    async def test_a_file_that_is_gone_is_told_before_anything_is_done(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        path = Path(bench.store.url.removeprefix("sqlite:///"))
        await transacted(bench, worker, claimed, lambda tx: tx.fetch("select 1"))
        path.rename(path.with_suffix(".away"))
        try:
            with pytest.raises(StoreUnavailable, match="moved"):
                await transacted(bench, worker, claimed, add, record=step(claimed, "other"))
        finally:
            path.with_suffix(".away").rename(path)

        assert await bench.store.renew(worker, 1)


class Silent(sqlite3.Connection):
    """A connection whose commit can fail, before it has done anything or after it has done all."""

    plan: str | None = None

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql != "commit" or Silent.plan is None:
            return super().execute(sql, *args)
        plan, Silent.plan = Silent.plan, None
        super().execute(plan)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


@pytest.mark.parametrize(("plan", "written"), [("commit", True), ("rollback", False)])
def test_where_nobody_says_whether_it_was_committed_the_file_does(
    plan: str, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Silent))

    async def main() -> None:
        bench = Bench(Harness(), SQLiteStore(tmp_path / "silent.db"))
        await bench.store.open()
        worker, claimed = await bench.begin()

        async def write(tx: Transaction) -> None:
            await tx.execute("create table mine (a)")
            Silent.plan = plan

        if written:
            assert await transacted(bench, worker, claimed, write) == CommitOutcome()
        else:
            with pytest.raises(StoreUnavailable, match="I/O error"):
                await transacted(bench, worker, claimed, write)
        assert list(await bench.steps(claimed.run)) == (["move"] if written else [])
        assert await transacted(bench, worker, claimed, lambda tx: tx.fetch("select 1")) == CommitOutcome()
        await bench.close()

    asyncio.run(main())
