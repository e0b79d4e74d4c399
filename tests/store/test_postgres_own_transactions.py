"""Users' own transactions on Postgres: only the store begins and ends them, and none finds what another has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from perdure.core.changes import AppendCheckpoint, CommitOutcome
from perdure.core.records import Claimed
from perdure.errors import LeaseLost, StoreUnavailable, UsageError
from perdure.store.postgres import transacting
from perdure.store.postgres.address import parse
from perdure.store.postgres.committing import Committer
from perdure.store.protocol import Transaction
from perdure.testing.conformance import Bench
from perdure.testing.conformance.harness import step
from tests.store.test_postgres_connections import admin, opened, socket_of
from tests.store.test_postgres_transactions import amounts, table
from tests.support import postgres
from tests.support.pooler import pooler

pytestmark = pytest.mark.postgres

Body = Callable[[Transaction], Awaitable[object]]


class Place:
    """A store with a run under way, and a table of its user's."""

    def __init__(self, bench: Bench, worker: int, claimed: Claimed, connection: Any, name: str) -> None:
        self.bench, self.worker, self.claimed = bench, worker, claimed
        self.connection, self.name = connection, name
        self.paid = f"update {name} set amount = amount - 1 where who = 'ann'"
        self.steps = 0

    async def transact(self, body: Body) -> CommitOutcome:
        """Do this in a transaction, as another step each time."""
        self.steps += 1
        key = f"s{self.steps}"

        async def work(tx: Transaction) -> AppendCheckpoint:
            await body(tx)
            return step(self.claimed, key)

        return await self.bench.store.transact(self.worker, (self.claimed.run, self.claimed.super_step, key), work)

    async def has(self) -> int:
        """How much Ann has; at first 10."""
        return (await amounts(self.connection, self.name))["ann"]

    async def recorded(self) -> set[str]:
        return set(await self.bench.steps(self.claimed.run))


def with_place(body: Callable[[Place], Awaitable[None]], *, lines: int = 1, pooled: bool = False) -> None:
    async def main() -> None:
        server = postgres.shared()
        url = server.fresh_url()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("perdure.store.postgres.store.TRANSACTIONS_MAX", lines)
            async with admin(url) as connection, pooler(socket_of(server)) as between:
                poolers = f"postgresql://postgres@127.0.0.1:{between.port}/postgres?sslmode=disable&pooler=transaction"
                own = f"{poolers}&schema={parse(url).schema}" if pooled else url
                async with opened(own) as bench:
                    worker, claimed = await bench.begin()
                    await body(Place(bench, worker, claimed, connection, await table(connection, url)))

    asyncio.run(main())


# -- its end -------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_over_does_nothing_inside_the_next_one_on_its_connection() -> None:
    async def body(place: Place) -> None:
        kept: list[Transaction] = []

        async def keep(tx: Transaction) -> None:
            kept.append(tx)
            await tx.fetch("select 1")

        async def use_the_first(tx: Transaction) -> None:
            old = kept[0]
            for use in (
                lambda: old.execute(place.paid),
                lambda: old.execute_many(place.paid, [()]),
                lambda: old.fetch("select 1"),
                lambda: old.fetch_row("select 1"),
                lambda: old.fetch_value("select 1"),
            ):
                with pytest.raises(UsageError, match="over"):
                    await use()

        await place.transact(keep)
        assert await place.transact(use_the_first) == CommitOutcome()

        assert await place.has() == 10

    with_place(body)


def test_what_a_body_has_left_behind_writes_nothing_beside_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        left: list[asyncio.Task[Any]] = []
        go, file = asyncio.Event(), Committer.file

        async def late(tx: Transaction) -> None:
            await go.wait()
            await tx.execute(place.paid)

        async def filing(self: Committer, *args: Any) -> CommitOutcome:
            go.set()
            await asyncio.wait(left)
            return await file(self, *args)

        async def leave_behind(tx: Transaction) -> None:
            await tx.fetch("select 1")
            left.append(asyncio.create_task(late(tx)))

        monkeypatch.setattr(Committer, "file", filing)
        assert await place.transact(leave_behind) == CommitOutcome()

        with pytest.raises(UsageError, match="over"):
            left[0].result()
        assert await place.has() == 10

    with_place(body)


def test_a_statement_that_a_body_did_not_wait_for_is_done_before_the_record() -> None:
    async def body(place: Place) -> None:
        left: list[asyncio.Task[Any]] = []

        async def leave_behind(tx: Transaction) -> None:
            left.append(asyncio.create_task(tx.execute(f"{place.paid} and pg_sleep(0.1) is not null")))
            await asyncio.sleep(0)

        assert await place.transact(leave_behind) == CommitOutcome()

        assert left[0].result() == 1 and await place.has() == 9

    with_place(body)


def test_one_that_does_not_end_in_time_undoes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        left: list[asyncio.Task[Any]] = []

        async def leave_behind(tx: Transaction) -> None:
            await tx.execute(place.paid)
            left.append(asyncio.create_task(tx.execute("select pg_sleep(2)")))
            await asyncio.sleep(0)

        with monkeypatch.context() as patch:
            patch.setattr(transacting, "CALL_TIMEOUT_S", 0.5)
            with pytest.raises(UsageError, match="before its statements"):
                await place.transact(leave_behind)

        await asyncio.wait(left)
        assert left[0].exception() is not None
        assert await place.transact(lambda tx: tx.execute(place.paid)) == CommitOutcome()
        assert (await place.has(), await place.recorded()) == (9, {"s2"})

    with_place(body)


def test_statements_at_once_take_turns() -> None:
    async def body(place: Place) -> None:
        async def at_once(tx: Transaction) -> None:
            assert await asyncio.gather(*(tx.execute(place.paid) for _ in range(5))) == [1] * 5

        assert await place.transact(at_once) == CommitOutcome()

        assert await place.has() == 5

    with_place(body)


def test_a_body_that_ends_the_transaction_itself_is_told_and_not_recorded() -> None:
    async def body(place: Place) -> None:
        for statements in (
            ["commit"], ["rollback"], ["end"], ["commit; begin"], ["rollback", "begin"], ["commit and chain"],
            ["rollback; begin"], ["commit", "begin"],
        ):  # fmt: skip

            async def end_it(tx: Transaction, statements: list[str] = statements) -> None:
                for each in [*statements, place.paid]:
                    with suppress(UsageError):  # who swallows it is told again
                        await tx.execute(each)

            with pytest.raises(UsageError, match="the store itself begins and ends"):
                await place.transact(end_it)
            assert (await place.has(), await place.recorded()) == (10, set()), statements

        assert await place.transact(lambda tx: tx.execute(place.paid)) == CommitOutcome()
        assert await place.has() == 9

    with_place(body)


def test_a_savepoint_of_the_users_own_is_no_end() -> None:
    async def body(place: Place) -> None:
        async def go_back(tx: Transaction) -> None:
            await tx.execute("set transaction isolation level repeatable read")
            await tx.execute(place.paid)
            await tx.execute("savepoint mine")
            with pytest.raises(asyncpg.UndefinedTableError):
                await tx.execute("select * from nowhere")
            await tx.execute("rollback to mine")

        assert await place.transact(go_back) == CommitOutcome()

        assert await place.has() == 9

    with_place(body)


def test_a_body_whose_run_was_lost_leaves_no_transaction_open() -> None:
    async def body(place: Place) -> None:
        async def lose(tx: Transaction) -> None:
            await tx.execute(place.paid)
            raise LeaseLost

        with pytest.raises(LeaseLost):
            await place.transact(lose)
        assert await place.transact(lambda tx: tx.fetch("select 1")) == CommitOutcome()

        assert (await place.has(), await place.recorded()) == (10, {"s2"})

    with_place(body)


def test_a_database_that_cannot_work_now_fails_no_step() -> None:
    async def body(place: Place) -> None:
        for code in ("53100", "53200", "58030"):

            async def write(tx: Transaction, code: str = code) -> None:
                try:
                    await tx.execute(f"do $$ begin raise exception using errcode = '{code}'; end $$")
                except asyncpg.PostgresError as error:
                    raise ValueError("mine") from error

            with pytest.raises(StoreUnavailable):
                await place.transact(write)

    with_place(body)


def test_an_error_that_a_trigger_of_the_users_raises_at_the_commit_is_theirs() -> None:
    async def body(place: Place) -> None:
        await place.connection.execute(f"""
            create function {place.name}_check() returns trigger language plpgsql
            as $$ begin raise exception 'not enough'; end $$;
            create constraint trigger enough after update on {place.name} deferrable initially deferred
            for each row execute function {place.name}_check()
        """)

        with pytest.raises(asyncpg.RaiseError, match="not enough"):
            await place.transact(lambda tx: tx.execute(place.paid))

        assert (await place.has(), await place.recorded()) == (10, set())
        assert await place.transact(lambda tx: tx.fetch("select 1")) == CommitOutcome()

    with_place(body)


# -- its session ---------------------------------------------------------------------------------------------

LASTING = (
    "set statement_timeout = 12345", "set my.tenant = 'acme'", "set role pg_monitor",
    "create temp table left_behind (a int)", "create sequence if not exists numbers", "select nextval('numbers')",
    "select pg_advisory_lock(4711)", "listen something", "prepare mine as select 1",
    "declare c cursor with hold for select 1", "set search_path = pg_catalog",
)  # fmt: skip
"""What a session keeps beyond a transaction. (The sequence is the database's own.)"""

LOOK = """
select
  current_setting('search_path') as path, current_setting('statement_timeout') as timeout,
  nullif(current_setting('my.tenant', true), '') as tenant, current_user as who,
  to_regclass('pg_temp.left_behind') is not null as temporary,
  (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks,
  (select count(*) from pg_listening_channels()) as channels,
  (select count(*) from pg_prepared_statements where from_sql) as prepared,
  (select count(*) from pg_cursors where is_holdable) as cursors
"""


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("ends_well", [True, False])
def test_nothing_of_a_session_outlasts_its_transaction(ends_well: bool, pooled: bool) -> None:
    async def body(place: Place) -> None:
        looks: list[Any] = []

        async def look(tx: Transaction) -> None:
            looks.append(await tx.fetch_row(LOOK))

        async def leave_all(tx: Transaction) -> None:
            for each in LASTING:
                await tx.execute("reset role")
                await tx.execute(each)
            if not ends_well:
                raise ValueError("no")

        for turn in range(4):  # the pooler has as many backends
            await place.transact(look)
            if ends_well:
                assert await place.transact(lambda tx: _without_role(tx, leave_all)) == CommitOutcome()
            else:
                with pytest.raises(ValueError, match="no"):
                    await place.transact(leave_all)
            assert not await place.connection.fetchval("select count(*) from pg_locks where objid = 4711"), turn
        for _ in range(4):
            await place.transact(look)
            await place.transact(lambda tx: tx.fetch("select 1"))

        assert all(each == looks[0] for each in looks), looks
        assert (looks[0]["locks"], looks[0]["channels"], looks[0]["who"]) == (0, 0, "postgres")

    with_place(body, pooled=pooled)


async def _without_role(tx: Transaction, body: Body) -> None:
    """The body; and then the record is written by whoever may."""
    await body(tx)
    await tx.execute("reset role")


def test_the_settings_that_the_store_connects_with_stay() -> None:
    async def body(place: Place) -> None:
        seen: list[Any] = []

        async def look(tx: Transaction) -> None:
            seen.append(await tx.fetch_row("select current_setting('jit') as jit, current_setting('application_name')"))

        for _ in range(3):
            await place.transact(look)
            await place.transact(lambda tx: tx.execute("set jit = on"))

        assert seen == [{"jit": "off", "current_setting": "perdure"}] * 3

    with_place(body)
