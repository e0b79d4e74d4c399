"""Users' own SQL on Postgres, in the transaction that records their step, when others or the network get in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import asyncpg
import pytest

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.core.records import Claimed
from perdure.errors import TransactionBroken, UsageError
from perdure.store.postgres.committing import Committer
from perdure.store.protocol import Transaction
from perdure.testing.conformance import Bench
from perdure.testing.conformance.harness import requeue, step
from perdure.testing.proxy import Proxy, proxy
from tests.store.test_postgres_connections import admin, opened, socket_of, through
from tests.support import postgres

pytestmark = pytest.mark.postgres

Filed = Callable[..., Awaitable[CommitOutcome]]


class Moved:
    """A user's transaction that moves 1 from the one to the other, and counts how often it was begun."""

    def __init__(self, claimed: Claimed, table: str) -> None:
        self.begun = 0
        self.pid = 0
        self.record = step(claimed, "move", b"moved")
        self.place: Place = claimed.run, claimed.super_step, "move"
        self._table = table

    async def __call__(self, tx: Transaction) -> AppendCheckpoint:
        self.begun += 1
        self.pid = await tx.fetch_value("select pg_backend_pid()")
        assert await tx.execute(f"update {self._table} set amount = amount - $1 where who = $2", 1, "ann") == 1
        assert await tx.execute(f"update {self._table} set amount = amount + $1 where who = $2", 1, "bob") == 1
        return self.record


async def table(connection: asyncpg.Connection[Any], url: str) -> str:
    """A table with what two people have."""
    name = f"accounts_of_{url.rpartition('=')[2]}"
    await connection.execute(f"create table {name} (who text primary key, amount bigint not null)")
    await connection.execute(f"insert into {name} values ('ann', 10), ('bob', 0)")
    return name


async def amounts(connection: asyncpg.Connection[Any], name: str) -> dict[str, int]:
    return dict(await connection.fetch(f"select who, amount from {name}"))


def after_filing(deed: Callable[[], Awaitable[None]]) -> Any:
    """Something happens between the record's write and its COMMIT, the first time."""
    file, done = Committer.file, False

    async def filing(self: Committer, *args: Any) -> CommitOutcome:
        nonlocal done
        outcome = await file(self, *args)
        if not done:
            done = True
            await deed()
        return outcome

    return mock.patch.object(Committer, "file", filing)


def played(body: Callable[[Bench, Bench, Proxy, asyncpg.Connection[Any], str], Awaitable[None]]) -> None:
    """With a store, another one by way of a proxy, that proxy, a connection past all that, and the user's table."""

    async def main() -> None:
        server = postgres.shared()
        url = server.fresh_url()
        async with (
            opened(url) as bench,
            proxy(socket_of(server)) as passing,
            opened(through(passing, url)) as far,
            admin(url) as connection,
        ):
            await body(bench, far, passing, connection, await table(connection, url))

    asyncio.run(main())


def test_a_transaction_whose_answer_was_lost_is_found_done_and_not_done_again() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        async def lose() -> None:
            passing.lose_answers()

        with after_filing(lose):
            asked = asyncio.ensure_future(far.store.transact(worker, moved.place, moved))
            await passing.answer_lost.wait()
            passing.cut()
            outcome = await asked

        assert (outcome, moved.begun) == (CommitOutcome(), 1)
        assert await amounts(connection, name) == {"ann": 9, "bob": 1}
        assert set(await bench.steps(claimed.run)) == {"move"}

    played(body)


def test_a_transaction_whose_backend_ended_before_its_commit_has_failed_and_did_nothing() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        async def terminate() -> None:
            await connection.fetchval("select pg_terminate_backend($1, 5000)", moved.pid)

        with after_filing(terminate), pytest.raises(TransactionBroken, match="nothing of it was written"):
            await far.store.transact(worker, moved.place, moved)

        assert moved.begun == 1 and await amounts(connection, name) == {"ann": 10, "bob": 0}
        assert await far.store.transact(worker, moved.place, moved) == CommitOutcome()
        assert await amounts(connection, name) == {"ann": 9, "bob": 1}

    played(body)


def test_a_transaction_that_lost_its_connection_before_its_record_did_nothing_and_says_so() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        async def cut(tx: Transaction) -> AppendCheckpoint:
            await moved(tx)
            passing.cut()
            await tx.fetch("select 1")
            raise AssertionError("there is a connection")

        with pytest.raises(TransactionBroken, match="nothing of it was written"):
            await far.store.transact(worker, moved.place, cut)

        assert await amounts(connection, name) == {"ann": 10, "bob": 0}
        assert await far.store.transact(worker, moved.place, moved) == CommitOutcome()
        assert await amounts(connection, name) == {"ann": 9, "bob": 1}

    played(body)


def test_a_transaction_that_is_asked_for_again_after_it_was_done_is_undone_and_found_done() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        for _ in range(3):
            assert await far.store.transact(worker, moved.place, moved) == CommitOutcome()

        assert await amounts(connection, name) == {"ann": 9, "bob": 1}

    played(body)


def test_a_commit_after_a_transaction_that_was_given_up_waits_until_that_is_over() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        async def lose() -> None:
            passing.lose_answers()

        with after_filing(lose):
            asked = asyncio.ensure_future(far.store.transact(worker, moved.place, moved))
            await passing.answer_lost.wait()
            asked.cancel()
            await asyncio.wait([asked])
            passing.cut()
            far_commit = far.store.commit(worker, [requeue(claimed)])
            with mock.patch.object(
                Committer, "_write_in_one", autospec=True, side_effect=Committer._write_in_one
            ) as one:
                assert await far_commit == CommitOutcome()

        assert one.call_args.args[-1] is True  # it was unsure
        assert await amounts(connection, name) == {"ann": 9, "bob": 1}

    played(body)


def test_a_transaction_that_met_another_one_is_done_again() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        (one, mine), (two, theirs) = await bench.begin("t"), await bench.begin("u")
        both = asyncio.Barrier(2)
        begun = 0

        def crossing(claimed: Claimed, *who: str) -> Callable[[Transaction], Awaitable[AppendCheckpoint]]:
            async def work(tx: Transaction) -> AppendCheckpoint:
                nonlocal begun
                begun += 1
                for number, each in enumerate(who):
                    await tx.execute(f"update {name} set amount = amount + 1 where who = $1", each)
                    if number == 0 and begun <= 2:
                        await both.wait()
                return step(claimed, "cross")

            return work

        outcomes = await asyncio.gather(
            bench.store.transact(one, (mine.run, 1, "cross"), crossing(mine, "ann", "bob")),
            far.store.transact(two, (theirs.run, 1, "cross"), crossing(theirs, "bob", "ann")),
        )

        assert list(outcomes) == [CommitOutcome(), CommitOutcome()]
        assert begun >= 3
        assert await amounts(connection, name) == {"ann": 12, "bob": 2}

    played(body)


def test_what_the_users_sql_raises_is_the_drivers_own_and_undoes_all() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)

        async def wrong(tx: Transaction) -> AppendCheckpoint:
            await moved(tx)
            await tx.execute("select * from nowhere")
            raise AssertionError("there is such a table")

        async def twice(tx: Transaction) -> AppendCheckpoint:
            await tx.execute(f"insert into {name} values ('ann', 1)")
            raise AssertionError("there was no such row")

        async def swallowing(tx: Transaction) -> AppendCheckpoint:
            with pytest.raises(asyncpg.UniqueViolationError):
                await twice(tx)
            return moved.record

        async def ending(tx: Transaction) -> AppendCheckpoint:
            await tx.execute("commit")
            return moved.record

        for work, error in (
            (wrong, asyncpg.UndefinedTableError),
            (twice, asyncpg.UniqueViolationError),
            (swallowing, asyncpg.UniqueViolationError),
            (ending, UsageError),
        ):
            with pytest.raises(error):
                await far.store.transact(worker, moved.place, work)
        assert await amounts(connection, name) == {"ann": 10, "bob": 0}
        assert await bench.steps(claimed.run) == {}

    played(body)


def test_a_constraint_that_is_checked_at_the_commit_undoes_all() -> None:
    async def body(
        bench: Bench, far: Bench, passing: Proxy, connection: asyncpg.Connection[Any], name: str
    ) -> None:  # fmt: skip
        worker, claimed = await bench.begin()
        moved = Moved(claimed, name)
        await connection.execute(
            f"create table {name}_of (who text references {name} deferrable initially deferred)"
        )  # fmt: skip

        async def dangling(tx: Transaction) -> AppendCheckpoint:
            await tx.execute(f"insert into {name}_of values ('nobody')")
            return await moved(tx)

        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await far.store.transact(worker, moved.place, dangling)

        assert await bench.steps(claimed.run) == {}
        assert await amounts(connection, name) == {"ann": 10, "bob": 0}
        assert await far.store.transact(worker, moved.place, moved) == CommitOutcome()

    played(body)
