"""The user's own SQL and the record of its step, in one transaction.

It has connections of its own, whose plans nothing here shapes, and on which a statement may take as long as a step. The
record is written last, by the statements that `commit` would write it by: so the worker's row is locked only for a
moment, and what stands in the way of the record undoes the user's SQL with it.

A connection that is lost before COMMIT was sent has written nothing. One that is lost after it may have: then the store
waits until nothing of this worker is under way, and looks. Whoever gives up before that leaves a doubt behind, and the
worker's next commit waits in the same way. Nothing is done again for a connection that was lost: it may have been lost
for what the function does. Where the database is there all the same, the try has failed (`TransactionBroken`).

The transaction is the store's to begin and to end: a mark in it tells whether the one that is committed is the one that
was begun. What the function has set for the transaction (a role, a time limit) ends before the record is written. And
the session is nobody's: what one has set, locked, prepared or made there beyond its end is undone with the same
message that ends it, so that the next one finds nothing of it. Where one has undone what the driver had prepared there,
the next one goes to another session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, NoReturn

import asyncpg

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.errors import StoreUnavailable, TransactionBroken, UsageError
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
)
"""What the database raises where a transaction lost against another one. (Not that a lock was not to be had at once:
whoever says `nowait` wants to hear of it.)"""

OUTDATED: Final = (asyncpg.exceptions.InvalidCachedStatementError, asyncpg.exceptions.OutdatedSchemaCacheError)
"""What the driver raises where the schema has changed under what it keeps of a session."""

SICK: Final = (
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.PostgresSystemError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
)
"""What the database raises where it cannot work now, whatever it is asked: a full disk, or a standby."""

OWN_LIMIT: Final = asyncpg.exceptions.ConfigurationLimitExceededError
"""One of these that is about what was asked: so much was not to be (`temp_file_limit`)."""

DRIVERS_NAME: Final = "__asyncpg_"
"""In the names of what the driver has prepared, and not the user."""

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


class _Forgotten(Exception):
    """What the driver keeps of a session is not so any more, as the user's own error says; another session will do."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _outranks(error: Exception | None) -> bool:
    """Whether this is no error of the user's code, whatever that makes of it."""
    return (isinstance(error, (*LOST, *SICK)) and not isinstance(error, OWN_LIMIT)) or _is_forgotten(error)


def _is_forgotten(error: Exception | None) -> bool:
    unknown = asyncpg.exceptions.InvalidSQLStatementNameError
    return isinstance(error, OUTDATED) or (isinstance(error, unknown) and DRIVERS_NAME in str(error))


class _Deed:
    """A transaction that is to be done once, and how far its last try has come."""

    def __init__(
        self, statements: Statements, committer: Committer, worker: int, place: Place, work: Work
    ) -> None:  # fmt: skip
        self._begin = statements["begin_own"].text
        self._take_over = statements["take_over_own"].text
        self._commit, self._undo = (
            f"{statements[name].text};\n{statements['forget_own'].text}" for name in ("commit_own", "undo_own")
        )
        self._committer = committer
        self._worker = worker
        self._place = place
        self._do = work
        self.record: AppendCheckpoint | None = None
        self.begun = False
        self.committing = False
        """COMMIT was sent, and nothing has come back."""

    async def once(self, connection: asyncpg.Connection[Any]) -> CommitOutcome:
        """Do it, in a transaction that the database takes or not."""
        self.record, self.begun, self.committing = None, False, False
        try:
            await connection.execute(self._begin, timeout=CALL_TIMEOUT_S)
            self.begun = True
            outcome = await self._write(connection)
            await self._end(connection)
        except Exception as error:
            if not self.committing:
                await self._roll_back(connection)
            said = error.error if isinstance(error, _FromWork) else error
            if _is_forgotten(said):
                connection.terminate()
                raise _Forgotten(said) from error
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
            if _outranks(transaction.error) or connection.is_closed():
                raise transaction.error or error from error
            raise _FromWork(error) from error
        finally:
            transaction.is_over = True
        assert (record.run, record.super_step, record.key) == self._place
        self.record = record
        if transaction.has_ended_itself:
            raise _FromWork(UsageError(reasons.ENDED_BY_ITSELF))
        await self._take(connection, transaction)
        return await self._committer.file(connection, self._worker, record)

    async def _take(self, connection: asyncpg.Connection[Any], transaction: PostgresTransaction) -> None:
        """Take it over from the user's code. What is checked only now is that code's own."""
        try:
            await connection.execute(self._take_over, timeout=CALL_TIMEOUT_S)
        except asyncpg.exceptions.InvalidTransactionInitiationError as error:
            raise _FromWork(UsageError(reasons.NOT_THE_ONE)) from error
        except asyncpg.exceptions.InFailedSQLTransactionError as error:  # by what the user's code did not raise
            raise _FromWork(transaction.error or UsageError(reasons.LEFT)) from error
        except asyncpg.PostgresError as error:
            if _outranks(error) or connection.is_closed():
                raise
            raise _FromWork(error) from error

    async def _end(self, connection: asyncpg.Connection[Any]) -> None:
        """Commit. What is refused at that was not committed."""
        self.committing = True
        try:
            await connection.execute(self._commit, timeout=CALL_TIMEOUT_S)
        except failures.REFUSED as error:
            self.committing = False
            raise _FromWork(error) from error
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
        self._address = address
        self._pool = pool
        self._committer = committer
        self._statements = schema.statements(address.prefix)

    async def transact(self, worker: int, place: Place, work: Work) -> CommitOutcome:
        deed = _Deed(self._statements, self._committer, worker, place, work)
        async with self._pool.line() as line:
            try:
                return await self._try(line, deed)
            except (_FromWork, _Forgotten) as raised:
                error = raised.error
            except StoreUnavailable as lost:
                if deed.committing:
                    assert deed.record is not None
                    if await self._is_written(line, worker, deed.record):
                        return await self._committer.explain(deed.record, lost)
                await self._judge(line, deed, lost)
        raise error

    async def _judge(self, line: Line, deed: _Deed, lost: StoreUnavailable) -> NoReturn:
        """Raise what it was that has ended a transaction of which nothing is written. It was the store only where that
        does not work for others either."""
        cause = lost.__cause__
        if isinstance(cause, LOST):  # so often that it is the step's to say what becomes of it
            raise cause from None
        by_reading = isinstance(cause, asyncpg.exceptions.ReadOnlySQLTransactionError)
        if not deed.begun or (isinstance(cause, SICK) and not by_reading):
            raise lost
        try:
            works = await line.fetchval(self._statements["takes_writes"].text)
        except StoreUnavailable:
            raise lost from cause
        if not works:
            raise lost
        raise (UsageError(reasons.READ_ONLY) if by_reading else self._broken(cause)) from cause

    def _broken(self, cause: BaseException | None) -> TransactionBroken:
        return TransactionBroken(
            f"{self._address.public} has ended a transaction before it was committed, and nothing of it was written: "
            f"{str(cause) or type(cause).__name__}. Where its function takes long, do less in it, or raise the "
            "database's limits (idle_in_transaction_session_timeout, transaction_timeout); else somebody has ended its "
            "connection",
            url=self._address.public,
        )

    async def _try(self, line: Line, deed: _Deed) -> CommitOutcome:
        try:
            try:
                return await line.use(deed.once)
            except _Forgotten:  # what others have left; a session of its own has only what it leaves itself
                return await line.use(deed.once)
        except (Odd, *failures.REFUSED) as odd:
            assert deed.record is not None
            return await self._committer.explain(deed.record, odd)
        except asyncio.CancelledError:
            if deed.committing:
                self._committer.doubt()
            raise

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
