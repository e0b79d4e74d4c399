"""The user's own SQL and the record of its step, in one transaction.

It has connections of its own, whose plans nothing here shapes, and on which a statement may take as long as a step. The
record is written last, by the statements that `commit` would write it by: so the worker's row is locked only for a
moment, and what stands in the way of the record undoes the user's SQL with it.

A connection that is lost before COMMIT was sent has written nothing. One that is lost after it may have: then the store
waits until nothing of this worker is under way, and looks. Whoever gives up before that leaves a doubt behind, and the
worker's next commit waits in the same way.

The transaction is the store's to begin and to end: a mark in it tells whether the one that is committed is the one that
was begun. And the session is nobody's: what one has set, locked, prepared or made there beyond its end is undone with
the same message that ends it, so that the next one finds nothing of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal

import asyncpg

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.errors import StoreUnavailable, UsageError
from perdure.store import reasons
from perdure.store.postgres import failures, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.committing import Committer, Odd
from perdure.store.postgres.lines import CALL_TIMEOUT_S, Line, Pool
from perdure.store.protocol import Transaction
from perdure.store.sql import Statements

Work = Callable[[Transaction], Awaitable[AppendCheckpoint]]

LOST: Final = (
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.SerializationError,
    asyncpg.exceptions.InvalidCachedStatementError,
)
"""What the database raises where a transaction lost against another one, or the schema has changed under it. (Not that
a lock was not to be had at once: whoever says `nowait` wants to hear of it.)"""

SICK: Final = (
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.PostgresSystemError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
)
"""What the database raises where it cannot work now, whatever it is asked: a full disk, or a standby."""

COUNTED: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"})
"""Statements that change rows, by their tags."""


class PostgresTransaction:
    """A `Transaction` on one connection."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()
        self.is_over = False
        self.has_ended_itself = False
        self.error: Exception | None = None
        """What the database raised last, unless a statement went well since: then a savepoint has undone it."""

    @property
    def dialect(self) -> Literal["postgresql"]:
        return "postgresql"

    async def execute(self, sql: str, *args: Any) -> int:
        async with self._statement():
            status = str(await self._connection.execute(sql, *args))
        command, _, count = status.partition(" ")
        return int(count.split(" ")[-1]) if command in COUNTED else 0

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        async with self._statement():
            await self._connection.executemany(sql, rows)

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        async with self._statement():
            return [dict(row) for row in await self._connection.fetch(sql, *args)]

    async def fetch_row(self, sql: str, *args: Any) -> dict[str, Any] | None:
        async with self._statement():
            row = await self._connection.fetchrow(sql, *args)
        return None if row is None else dict(row)

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        async with self._statement():
            return await self._connection.fetchval(sql, *args)

    async def settle(self) -> None:
        """Wait for a statement that the user's code has left behind; no other comes after it."""
        self.is_over = True
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S), self._turn:
                pass
        except TimeoutError:
            raise UsageError("a transaction's function has returned before its statements; await them all") from None

    @contextlib.asynccontextmanager
    async def _statement(self) -> AsyncIterator[None]:
        """One statement, when it is its turn."""
        self._check()
        async with self._turn:
            self._check()
            try:
                yield
            except failures.DRIVER as error:
                if not isinstance(error, asyncpg.exceptions.InFailedSQLTransactionError):  # which follows from another
                    self.error = error
                raise
            self.error = None
            if not self._connection.is_in_transaction():
                self.has_ended_itself = True
                raise UsageError(reasons.ENDED_BY_ITSELF)

    def _check(self) -> None:
        if self.is_over:
            raise UsageError(reasons.OVER)
        if self.has_ended_itself:
            raise UsageError(reasons.ENDED_BY_ITSELF)


class _FromWork(Exception):
    """What the user's code has raised, which may look like an error of the store's own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class _Deed:
    """A transaction that is to be done once, and how far its last try has come."""

    def __init__(
        self, statements: Statements, committer: Committer, worker: int, place: Place, work: Work
    ) -> None:  # fmt: skip
        self._begin = statements["begin_own"].text
        self._commit, self._undo = (
            f"{statements[name].text};\n{statements['forget_own'].text}" for name in ("commit_own", "undo_own")
        )
        self._committer = committer
        self._worker = worker
        self._place = place
        self._do = work
        self.record: AppendCheckpoint | None = None
        self.committing = False
        """COMMIT was sent, and nothing has come back."""

    async def once(self, connection: asyncpg.Connection[Any]) -> CommitOutcome:
        """Do it, in a transaction that the database takes or not."""
        self.record, self.committing = None, False
        try:
            await connection.execute(self._begin, timeout=CALL_TIMEOUT_S)
            outcome = await self._write(connection)
            await self._end(connection)
        except Exception:
            if not self.committing:
                await self._roll_back(connection)
            raise
        except BaseException:  # the run is over for this worker
            connection.terminate()
            raise
        return outcome

    async def _write(self, connection: asyncpg.Connection[Any]) -> CommitOutcome:
        transaction = PostgresTransaction(connection)
        try:
            record = await self._do(transaction)
            await transaction.settle()
        except Exception as error:
            if isinstance(transaction.error, (*LOST, *SICK)) or connection.is_closed():
                raise transaction.error or error from error
            raise _FromWork(error) from error
        finally:
            transaction.is_over = True
        assert (record.run, record.super_step, record.key) == self._place
        self.record = record
        if transaction.has_ended_itself:
            raise _FromWork(UsageError(reasons.ENDED_BY_ITSELF))
        try:
            return await self._committer.file(connection, self._worker, record)
        except asyncpg.exceptions.InFailedSQLTransactionError as error:  # by what the user's code did not raise
            raise _FromWork(transaction.error or error) from error

    async def _end(self, connection: asyncpg.Connection[Any]) -> None:
        """Commit. What is refused at that was not committed."""
        self.committing = True
        try:
            await connection.execute(self._commit, timeout=CALL_TIMEOUT_S)
        except (*failures.REFUSED, asyncpg.exceptions.PLPGSQLError) as error:  # the user's, checked at the end
            self.committing = False
            raise _FromWork(error) from error
        except asyncpg.exceptions.InvalidTransactionInitiationError as error:
            self.committing = False
            raise _FromWork(UsageError(reasons.ENDED_BY_ITSELF)) from error
        except failures.REPEATABLE:
            self.committing = False
            raise
        self.committing = False

    async def _roll_back(self, connection: asyncpg.Connection[Any]) -> None:
        """Roll back; a connection that does not say so is dropped, which comes to the same."""
        try:
            await connection.execute(self._undo, timeout=CALL_TIMEOUT_S)
        except failures.DRIVER:
            connection.terminate()


class Transactor:
    """Does users' transactions for workers, on a few lines of its own."""

    def __init__(self, address: Address, pool: Pool, committer: Committer) -> None:
        self._pool = pool
        self._committer = committer
        self._statements = schema.statements(address.prefix)

    async def transact(self, worker: int, place: Place, work: Work) -> CommitOutcome:
        deed = _Deed(self._statements, self._committer, worker, place, work)
        async with self._pool.line() as line:
            while True:
                try:
                    return await self._try(line, deed)
                except StoreUnavailable as lost:
                    if isinstance(lost.__cause__, LOST):  # so often that it is the step's to say what becomes of it
                        raise lost.__cause__ from None
                    if not deed.committing:
                        raise
                    assert deed.record is not None
                    if await self._is_written(line, worker, deed.record):
                        return await self._committer.explain(deed.record, lost)

    async def _try(self, line: Line, deed: _Deed) -> CommitOutcome:
        try:
            return await line.use(deed.once)
        except _FromWork as raised:
            error = raised.error
        except (Odd, *failures.REFUSED) as odd:
            assert deed.record is not None
            return await self._committer.explain(deed.record, odd)
        except asyncio.CancelledError:
            if deed.committing:
                self._committer.doubt()
            raise
        raise error

    async def _is_written(self, line: Line, worker: int, record: AppendCheckpoint) -> bool:
        """Whether the record is there, once nothing of this worker is under way."""
        look = self._statements["recorded"]

        async def wait_and_look(connection: asyncpg.Connection[Any]) -> bool:
            async with connection.transaction():
                await connection.execute(self._statements["wait_for_worker"].text, worker, timeout=CALL_TIMEOUT_S)
                place = ([record.run], [record.super_step], [record.key])
                row = await connection.fetchrow(look.text, *place, timeout=CALL_TIMEOUT_S)
            return row is not None and row["fence"] == record.fence

        self._committer.doubt()
        return await line.use(wait_and_look)
