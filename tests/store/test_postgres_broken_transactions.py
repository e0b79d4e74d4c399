"""Users' own transactions on Postgres whose function has the database break them off, or leaves what hinders others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from perdure.core.changes import CommitOutcome
from perdure.errors import StoreUnavailable, TransactionBroken, UsageError
from perdure.store.postgres import lines
from perdure.store.postgres.committing import Committer
from perdure.store.protocol import Transaction
from tests.store.test_postgres_own_transactions import Place, with_place

pytestmark = pytest.mark.postgres

ENDS = (
    "select pg_terminate_backend(pg_backend_pid())",
    "set local idle_in_transaction_session_timeout = '1ms'",
    "do $$ begin if current_setting('transaction_timeout', true) is null then perform "
    "pg_terminate_backend(pg_backend_pid()); else set local transaction_timeout = '1ms'; end if; end $$",
)
"""What has the server end the session. (`transaction_timeout` came with Postgres 17.)"""


async def is_gone(place: Place, pid: int) -> None:
    """Wait until a session has ended."""
    while await place.connection.fetchval("select count(*) from pg_stat_activity where pid = $1", pid):
        pass


# -- broken off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_transaction_whose_session_the_database_ends_has_failed_and_is_not_done_again(
    statement: str, goes_on: bool
) -> None:
    async def body(place: Place) -> None:
        calls: list[int] = []

        async def end_it(tx: Transaction) -> None:
            calls.append(pid := await tx.fetch_value("select pg_backend_pid()"))
            await tx.execute(place.paid)
            with suppress(*(asyncpg.PostgresError, asyncpg.InterfaceError) if goes_on else ()):
                await tx.execute(statement)
            await is_gone(place, pid)
            with suppress(*(asyncpg.PostgresError, asyncpg.InterfaceError) if goes_on else ()):
                await tx.fetch("select 1")

        with pytest.raises(TransactionBroken, match="nothing of it was written"):
            await place.transact(end_it)

        assert len(calls) == 1
        assert (await place.has(), await place.recorded()) == (10, set())
        assert await place.transact(lambda tx: tx.execute(place.paid)) == CommitOutcome()

    with_place(body)


def test_a_body_that_raises_as_a_store_does_is_heard_as_it_is() -> None:
    async def body(place: Place) -> None:
        mine = StoreUnavailable("another store's")

        async def raise_it(tx: Transaction) -> None:
            await tx.execute(place.paid)
            raise mine

        with pytest.raises(StoreUnavailable) as raised:
            await place.transact(raise_it)

        assert raised.value is mine and await place.has() == 10

    with_place(body)


def test_where_the_database_is_really_away_the_store_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        async def nobody(*args: Any, **options: Any) -> Any:
            raise StoreUnavailable("nobody there")

        with monkeypatch.context() as patch:
            connect = lines.connect

            async def once(*args: Any, **options: Any) -> Any:
                patch.setattr(lines, "connect", nobody)
                return await connect(*args, **options)

            patch.setattr(lines, "connect", once)
            with pytest.raises(StoreUnavailable, match="administrator command"):
                await place.transact(lambda tx: tx.execute(ENDS[0]))

        assert (await place.has(), await place.recorded()) == (10, set())

    with_place(body)


def test_a_deferred_trigger_that_ends_the_session_fails_the_try() -> None:
    async def body(place: Place) -> None:
        await _trigger(place, "perform pg_terminate_backend(pg_backend_pid());")

        with pytest.raises(TransactionBroken):
            await place.transact(lambda tx: tx.execute(place.paid))

        assert (await place.has(), await place.recorded()) == (10, set())

    with_place(body)


async def _trigger(place: Place, does: str) -> None:
    """Something happens at the end of whatever writes the table."""
    await place.connection.execute(f"""
        create function {place.name}_does() returns trigger language plpgsql as $$ begin {does} return null; end $$;
        create constraint trigger late after update on {place.name} deferrable initially deferred
        for each row execute function {place.name}_does()
    """)


def test_a_transaction_that_may_only_read_is_told_so() -> None:
    async def body(place: Place) -> None:
        async def read(tx: Transaction) -> None:
            await tx.execute("set transaction read only")
            await tx.fetch("select 1")

        async def write(tx: Transaction) -> None:
            await tx.execute("set transaction read only")
            await tx.execute(place.paid)

        for each in (read, write):
            with pytest.raises(UsageError, match="READ ONLY"):
                await place.transact(each)

    with_place(body)


def test_a_database_that_takes_no_writes_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        async def write(tx: Transaction) -> None:
            await tx.execute("set transaction read only")
            await tx.execute(place.paid)

        async def none(*_: Any) -> bool:
            return False

        with monkeypatch.context() as patch, pytest.raises(StoreUnavailable, match="read-only"):
            patch.setattr(lines.Line, "fetchval", none)
            await place.transact(write)

    with_place(body)


def test_a_limit_of_the_sessions_own_is_no_sickness_of_the_database() -> None:
    async def body(place: Place) -> None:
        with pytest.raises(asyncpg.exceptions.ConfigurationLimitExceededError):
            await place.transact(
                lambda tx: tx.execute("do $$ begin raise exception using errcode = '53400'; end $$"),
            )

    with_place(body)


def test_a_body_that_goes_on_after_it_has_broken_off_a_statement_is_told() -> None:
    async def body(place: Place) -> None:
        async def go_on(tx: Transaction) -> None:
            await tx.execute(place.paid)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await tx.fetch("select pg_sleep(30)")

        with pytest.raises(UsageError, match="broken off"):
            await place.transact(go_on)

        assert (await place.has(), await place.recorded()) == (10, set())

    with_place(body)


# -- what it has set -----------------------------------------------------------------------------------------

LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def test_what_the_function_has_set_does_not_stand_in_the_way_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(place: Place) -> None:
        found: list[dict[str, Any]] = []
        file = Committer.file

        async def look(self: Committer, connection: asyncpg.Connection[Any], *args: Any) -> CommitOutcome:
            settings = ", ".join(f"current_setting('{each}') as {each}" for each in LIMITS)
            found.append(dict(await connection.fetchrow(f"select current_user, {settings}")))
            return await file(self, connection, *args)

        async def leave_all(tx: Transaction) -> None:
            await tx.execute(f"grant update, select on {place.name} to pg_monitor")
            for each in LIMITS:
                await tx.execute(f"set local {each} = '10min'")
            await tx.execute("set local role pg_monitor")
            await tx.execute(place.paid)

        monkeypatch.setattr(Committer, "file", look)
        await place.transact(lambda tx: tx.fetch("select 1"))
        assert await place.transact(leave_all) == CommitOutcome()

        assert found[0] == found[1] and found[0]["current_user"] == "postgres"
        assert await place.has() == 9

    with_place(body)


def test_what_is_deferred_is_done_with_the_rights_that_it_was_written_with() -> None:
    async def body(place: Place) -> None:
        await place.connection.execute(f"create table {place.name}_who (who text)")
        await place.connection.execute(f"grant insert on {place.name}_who to pg_monitor")
        await place.connection.execute(f"grant update, select on {place.name} to pg_monitor")
        await _trigger(place, f"insert into {place.name}_who values (current_user || current_setting('my.tenant'));")

        async def pay(tx: Transaction) -> None:
            await tx.execute("set local role pg_monitor")
            await tx.execute("set local my.tenant = 'acme'")
            await tx.execute(place.paid)

        assert await place.transact(pay) == CommitOutcome()

        assert await place.connection.fetchval(f"select who from {place.name}_who") == "pg_monitoracme"

    with_place(body)


# -- what it has undone --------------------------------------------------------------------------------------


def test_a_session_of_which_the_driver_knows_nothing_any_more_harms_nobody() -> None:
    async def body(place: Place) -> None:
        async def ask(tx: Transaction) -> None:
            assert await tx.fetch_value("select $1::integer + 1", 1) == 2

        async def forget(tx: Transaction) -> None:
            await ask(tx)
            await tx.execute(place.paid)
            await tx.execute("deallocate all")

        for _ in range(3):
            for each in (ask, forget, ask):
                assert await place.transact(each) == CommitOutcome()

        assert await place.has() == 7

    with_place(body)


def test_a_body_that_forgets_its_own_statement_hears_of_it() -> None:
    async def body(place: Place) -> None:
        calls: list[int] = []

        async def forget(tx: Transaction) -> None:
            calls.append(1)
            for _ in range(2):
                await tx.fetch_value("select $1::integer + 1", 1)
                await tx.execute("deallocate all")

        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await place.transact(forget)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError):
            await place.transact(lambda tx: tx.execute("execute unknown"))

        assert len(calls) == 2

    with_place(body)


def test_a_table_that_has_changed_between_two_transactions_fails_neither() -> None:
    async def body(place: Place) -> None:
        found: list[list[dict[str, Any]]] = []

        async def look(tx: Transaction) -> None:
            found.append(await tx.fetch(f"select * from {place.name} where who = $1", "ann"))

        await place.transact(look)
        await place.connection.execute(f"alter table {place.name} add column more integer")
        assert await place.transact(look) == CommitOutcome()

        assert found[-1] == [{"who": "ann", "amount": 10, "more": None}]

    with_place(body)


def test_reset_all_is_told_for_what_it_is() -> None:
    async def body(place: Place) -> None:
        async def reset(tx: Transaction) -> None:
            await tx.execute(place.paid)
            await tx.execute("reset all")

        with pytest.raises(UsageError, match="RESET ALL"):
            await place.transact(reset)

        assert (await place.has(), await place.recorded()) == (10, set())
        assert await place.transact(lambda tx: tx.execute("reset work_mem")) == CommitOutcome()

    with_place(body)
