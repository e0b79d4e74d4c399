"""Transactions of users' own: their SQL, and the record of their step, in one commit.

SQLite has one writer. So a user's transaction gets a thread and a connection of its own, waits for the writer lock as
every round of the store's writer does, and keeps it until it ends: meanwhile nobody else writes the file, and what they
ask for waits. It is over after `HELD_S` at the latest: its thread sees to that, also where the body keeps the event
loop from going on. Renewals wait as well, and no worker is to lose its lease for that: who held the lock for long moves
the leases of the living on by as much, before it lets go.

The record is written by `commit`, in the same transaction and at its end. Where it is not written, or was before, all
is rolled back. A process that dies in between leaves nothing: SQLite never shows what was not committed, and the kernel
lets go of the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.errors import StoreError, StoreUnavailable, UsageError
from perdure.store import protocol, reasons
from perdure.store.sqlite.clock import STEP_US, look
from perdure.store.sqlite.commit import commit
from perdure.store.sqlite.connection import READ_CACHE_KIB, Database
from perdure.store.sqlite.errors import primary_code, translate
from perdure.store.sqlite.files import WriterLock
from perdure.store.sqlite.line import ConnectionRounds, Failed, Line, Operation, attempt
from perdure.store.sqlite.transaction import Reader, Transaction

_log = logging.getLogger(__name__)

T = TypeVar("T")

HELD_S: Final = 30.0
"""How long one may keep all others from writing: half of what a verb waits for its answer."""

INSTRUCTIONS_A_LOOK: Final = 100_000
"""A statement looks so often whether it is still wanted: about once a millisecond."""

SICK: Final = frozenset({
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB,
})  # fmt: skip
"""Codes that say that the file cannot be used now, whatever was asked of it. SQLite may have rolled back on its own."""

LASTING: Final = frozenset({
    sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
})  # fmt: skip
"""What a connection keeps beyond a transaction: such a one is closed."""

Work = Callable[[protocol.Transaction], Awaitable[AppendCheckpoint]]


class Answer(Protocol):
    """How the store waits for what a line does."""

    def __call__(self, line: Line, operation: Callable[[Any], T], /) -> Awaitable[T]: ...


class Guests:
    """The transactions of users on an open store, one after the other."""

    def __init__(self, database: Database, directory: Path, answer: Answer) -> None:
        self._database = database
        self._directory = directory
        self._answer = answer
        self._turn = asyncio.Lock()
        self._open: tuple[Desk, Line] | None = None

    async def transact(self, worker: int, place: Place, work: Work) -> CommitOutcome:
        """Do the work, and commit its record with it."""
        async with self._turn:
            desk, line = self._opened()
            guest = Guest(partial(self._answer, line))
            try:
                await self._answer(line, Desk.begin)
                record = await self._record(guest, desk, work)
                assert (record.run, record.super_step, record.key) == place, "the record is another step's"
                return await self._answer(line, partial(Desk.finish, worker=worker, record=record))
            finally:
                with contextlib.suppress(StoreUnavailable):  # the store has closed, and its thread has done so
                    line.submit(Desk.undo).add_done_callback(_note)

    async def _record(self, guest: Guest, desk: Desk, work: Work) -> AppendCheckpoint:
        """What the work comes to, in the time that it has."""
        try:
            async with asyncio.timeout(HELD_S) as limit:
                return await work(guest)
        except BaseException as error:
            desk.breaks_off = True
            if isinstance(error, TimeoutError) and limit.expired():
                raise desk.too_long() from None
            over = None if desk.was_left else desk.over
            if isinstance(error, Exception) and over is not None:  # whatever has become of it in the user's code
                raise over from error
            raise
        finally:
            guest.is_over = True

    def _opened(self) -> tuple[Desk, Line]:
        if self._open is None:
            desk = Desk(self._database, WriterLock(self._directory))
            name = f"perdure transactions {self._database.path.name}"
            loop = asyncio.get_running_loop()
            line = Line(name, desk, loop, desk.end_all, patience_s=desk.left_s, on_silence=desk.break_up)
            self._open = desk, line
        return self._open

    async def close(self) -> None:
        """Roll back what is under way, and let go."""
        if self._open is not None:
            await self._open[1].close()

    def abandon(self) -> None:
        """The same without the loop, which has closed."""
        if self._open is not None:
            self._open[1].abandon()


def _note(undone: asyncio.Future[None]) -> None:
    if not undone.cancelled() and (error := undone.exception()) is not None:
        _log.warning("a transaction could not be rolled back, and its connection was closed: %s", error)


class Guest:
    """A user's transaction, as `work` gets it."""

    def __init__(self, answer: Callable[[Operation], Awaitable[Any]]) -> None:
        self._answer = answer
        self.is_over = False

    @property
    def dialect(self) -> Literal["postgresql", "sqlite"]:
        return "sqlite"

    async def execute(self, sql: str, *args: Any) -> int:
        return await self._do(lambda connection: max(connection.execute(sql, args).rowcount, 0))

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        given = list(rows)
        await self._do(lambda connection: connection.executemany(sql, given).rowcount)

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        return await self._do(lambda connection: _rows(connection.execute(sql, args)))

    async def fetch_row(self, sql: str, *args: Any) -> dict[str, Any] | None:
        found = await self._do(lambda connection: _rows(connection.execute(sql, args), 1))
        return found[0] if found else None

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        row = await self.fetch_row(sql, *args)
        return None if row is None else next(iter(row.values()))

    async def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        if self.is_over:
            raise UsageError(reasons.OVER)
        statement = Statement(act)
        try:
            answer: T = await self._answer(partial(Desk.act, statement=statement))
            return answer
        finally:
            statement.is_left = True  # nobody waits for it any more, whether it has ended, or begun, or not


class Statement:
    """What a user does on the connection, and whether anybody waits for it."""

    def __init__(self, act: Callable[[sqlite3.Connection], Any]) -> None:
        self.act = act
        self.is_left = False


def _rows(cursor: sqlite3.Cursor, most: int | None = None) -> list[dict[str, Any]]:
    """The rows of a cursor, or the first of them, by column."""
    with contextlib.closing(cursor):
        names = [column for column, *_ in cursor.description or ()]
        found = cursor.fetchall() if most is None else cursor.fetchmany(most)
    return [dict(zip(names, row, strict=True)) for row in found]


class Desk(ConnectionRounds):
    """What the line's thread does: a connection, the writer lock while a transaction is under way, and since when."""

    def __init__(self, database: Database, lock: WriterLock) -> None:
        super().__init__(database, READ_CACHE_KIB)
        self._lock = lock
        self._held = contextlib.ExitStack()
        self._since: int | None = None
        self._until = 0.0
        """When it has been held for too long, on the machine's own ticks."""
        self._leaves_traces = False
        self.breaks_off = False
        """Nobody waits for anything of it any more. (An interrupt might come before a statement has begun.)"""
        self.was_left = False
        """A statement that wrote was broken off, and SQLite undoes all then."""
        self._under_way: Statement | None = None
        self.over: StoreError | UsageError | None = None
        """Why it ended before its end, and does nothing any more."""

    def __call__(self, operations: list[Operation]) -> list[Any]:
        return [attempt(partial(operation, self)) for operation in operations]

    def begin(self) -> None:
        """Wait for the lock, and begin. From here on only the store ends the transaction."""
        with self._told_apart():
            self._held.enter_context(self._lock.held())
            self.breaks_off = self.was_left = self._leaves_traces = False
            self.over = None
            connection = self.connection
            connection.execute("begin immediate")
            self._since = look(Reader(connection), self.database.clock).now
            self._until = time.monotonic() + HELD_S
            connection.set_authorizer(self._authorize)
            connection.set_progress_handler(self._is_unwanted, INSTRUCTIONS_A_LOOK)

    def act(self, statement: Statement) -> Any:
        """Do what the user says. An error is the driver's, unless it is the file's: that ends the transaction."""
        self._see_whether_it_goes_on()
        self._under_way = statement
        try:
            return None if statement.is_left else statement.act(self.connection)
        except sqlite3.Error as error:
            code = primary_code(error)
            if code == sqlite3.SQLITE_INTERRUPT and statement.is_left and not self._in_transaction:  # it wrote
                self.over, self.was_left = UsageError(reasons.LEFT), True
            if code == sqlite3.SQLITE_AUTH:
                raise UsageError(reasons.ENDED_BY_ITSELF) from error
            if code in SICK:
                told = translate(error, self.database.path)
                assert isinstance(told, StoreError)
                self.over = told
            raise
        finally:
            self._under_way = None
            self._see_whether_it_goes_on()

    @property
    def _in_transaction(self) -> bool:
        return self._opened is not None and self._opened.in_transaction

    def _is_unwanted(self) -> bool:
        """Whether the statement under way is to be broken off."""
        left = self._under_way is not None and self._under_way.is_left
        return left or self.breaks_off or self._is_late()

    def _see_whether_it_goes_on(self) -> None:
        """Raise why it does not. (A conflict may have been solved by `or rollback`, and then it has ended itself.)"""
        if self.over is None and self._is_late():
            self.break_up()
        if self.over is None and not self._in_transaction:
            self.over = UsageError(reasons.ENDED_BY_ITSELF)
        if self.over is not None:
            raise self.over

    def _is_late(self) -> bool:
        return self._since is not None and time.monotonic() >= self._until

    def left_s(self) -> float | None:
        """How long it may go on; None where nothing is under way."""
        return None if self._since is None else max(0.0, self._until - time.monotonic())

    def break_up(self) -> None:
        """End what has been held for too long, so that others can write; also where nobody hears of it now."""
        self.over = self.too_long()
        if isinstance(failed := attempt(self.undo), Failed):
            _log.warning("a transaction could not be rolled back, and its connection was closed: %s", failed.error)

    def too_long(self) -> StoreError:
        path = self.database.path
        return StoreError(
            f"{path}: a transaction kept all others from writing for {HELD_S:.0f} s, and was rolled back; "
            "do in it what is to be done in the database, and all else in steps before it",
            path=str(path),
        )

    def finish(self, worker: int, record: AppendCheckpoint) -> CommitOutcome:
        """Commit the record with what the user has written; or nothing, where the record is not to be written."""
        self._see_whether_it_goes_on()
        with self._told_apart():
            connection = self.connection
            _set_free(connection)
            tx = Transaction(connection, self.database.clock)
            was_there = self._is_there(tx, record)
            with tx.savepoint("operation"):
                outcome = commit(tx, worker, [record])
            if was_there or not outcome.alive or outcome.lost or outcome.refused:
                self.undo()
                return outcome
            self._move_leases(tx)
            tx.end()
            self._commit(record)
            self._let_go()
            return outcome

    def undo(self) -> None:
        """Roll back what is under way, if anything is, and let go."""
        connection, since = self._opened, self._since
        try:
            if connection is not None:
                _set_free(connection)
                if connection.in_transaction:
                    connection.execute("rollback")
                if since is not None:
                    self._make_up(connection)
        except BaseException:
            self.end()
            raise
        finally:
            self._let_go()

    def end_all(self) -> None:
        """Close everything, on the line's thread: what is under way is rolled back."""
        self.end()
        self._let_go()
        self._lock.close()

    def _commit(self, record: AppendCheckpoint) -> None:
        """Commit. Where nobody says whether that was done, a fresh look at the file does."""
        try:
            self.connection.execute("commit")
        except sqlite3.Error:
            if self.connection.in_transaction:
                raise
            self.end()
            if not self._is_there(Reader(self.connection), record):
                raise

    def _is_there(self, reader: Reader, record: AppendCheckpoint) -> bool:
        at = {"run": record.run, "super_step": record.super_step, "key": record.key}
        return bool(reader.value("own_checkpoint", **at, fence=record.fence))

    def _make_up(self, connection: sqlite3.Connection) -> None:
        """Move leases on without anything else."""
        connection.execute("begin immediate")
        tx = Transaction(connection, self.database.clock)
        self._move_leases(tx)
        tx.end()
        connection.execute("commit")

    def _move_leases(self, tx: Transaction) -> None:
        """Give the living the time back in which they could not renew."""
        assert self._since is not None, "it has not begun"
        if (held_us := tx.now - self._since) >= STEP_US:
            tx.run("move_leases", step=held_us)

    def _let_go(self) -> None:
        self._since = None
        if self._leaves_traces:
            self.end()
        self._held.close()

    def _authorize(self, action: int, *_: str | None) -> int:
        """Refuse what would end the transaction, or begin another; note what would outlast it."""
        self._leaves_traces = self._leaves_traces or action in LASTING
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

    @contextlib.contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Errors of the store's own statements, as its callers know them. (Those of users' are the driver's.)"""
        try:
            yield
        except Exception as error:
            told = translate(error, self.database.path)
            if told is error:
                raise
            raise told from error


def _set_free(connection: sqlite3.Connection) -> None:
    """Let the store do with the connection what users may not."""
    connection.set_authorizer(None)
    connection.set_progress_handler(None, 0)
