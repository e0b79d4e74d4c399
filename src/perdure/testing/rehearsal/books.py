"""The books of a stage: the tables that its agents' transactions read and write.

They lie in a SQLite file of their own, which goes with the stage. What a transaction has done to them is committed in
the moment in which the record of its step is written, and nobody has a turn in between; a process that dies before that
leaves neither. As in a SQLite store, one transaction is under way at a time, and the others wait.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from perdure.errors import UsageError
from perdure.testing.simulation.world import Process

Connection: TypeAlias = sqlite3.Connection

_POSTGRES_PARAMETER: Final = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\$(\d+)""")
"""A `$1`, and the texts and names in which it is none."""


class Books:
    """The file, once somebody asks for it, and whose turn it is to write it."""

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._opened: dict[str, sqlite3.Connection] = {}
        self._entry: Entry | None = None
        self._waiting: deque[tuple[Process, asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def view(self) -> sqlite3.Connection:
        """The test's own connection: it sees what is committed."""
        return self._connection("view")

    @asynccontextmanager
    async def entry(self, process: Process) -> AsyncIterator[Entry]:
        """A transaction of this process, when it is its turn; rolled back at the end, unless it is committed."""
        while self._entry is not None:
            loop = asyncio.get_running_loop()
            turn = loop.create_future()
            self._waiting.append((process, loop, turn))
            await turn
        entry = self._entry = Entry(self._connection("writer"), on_over=self._over)
        process.at_end.append(entry.undo)
        try:
            yield entry
        finally:
            entry.undo()
            process.at_end.remove(entry.undo)

    def close(self) -> None:
        """Roll back what is under way; the file goes."""
        for connection in self._opened.values():
            connection.close()
        self._opened.clear()
        if self._directory is not None:
            self._directory.cleanup()

    def _over(self) -> None:
        """Whoever is alive of those who wait looks whether it is their turn."""
        self._entry = None
        while self._waiting:
            process, loop, turn = self._waiting.popleft()
            if process.alive:
                loop.call_soon_threadsafe(_go_on, turn)

    def _connection(self, name: str) -> sqlite3.Connection:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="perdure-stage-")
        if name not in self._opened:
            path = Path(self._directory.name) / "stage.db"
            connection = self._opened[name] = sqlite3.connect(path, isolation_level=None, timeout=0)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = off")
        return self._opened[name]


class Entry:
    """A transaction under way, as its step's body gets it (`Transaction`)."""

    def __init__(self, connection: sqlite3.Connection, *, on_over: Callable[[], None]) -> None:
        self._connection = connection
        self._on_over = on_over
        self.is_over = False
        self.is_filed = False
        """Its record is being written: whatever becomes of its process, the two go together."""
        connection.execute("begin immediate")
        connection.set_authorizer(_deny_ends)

    @property
    def dialect(self) -> Literal["postgresql", "sqlite"]:
        return "sqlite"

    async def execute(self, sql: str, *args: Any) -> int:
        return max((await self._do(sql, args)).rowcount, 0)

    async def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        for row in list(rows):
            await self._do(sql, row)

    async def fetch(self, sql: str, *args: Any) -> list[dict[str, Any]]:
        cursor = await self._do(sql, args)
        names = [column for column, *_ in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    async def fetch_row(self, sql: str, *args: Any) -> dict[str, Any] | None:
        found = await self.fetch(sql, *args)
        return found[0] if found else None

    async def fetch_value(self, sql: str, *args: Any) -> Any:
        row = await self.fetch_row(sql, *args)
        return None if row is None else next(iter(row.values()))

    def undo(self) -> None:
        """Roll it back, if it is not over, nor its record being written."""
        if not self.is_filed:
            self.end(written=False)

    def end(self, *, written: bool) -> None:
        """Commit it, or roll it back; then the next may begin."""
        if self.is_over:
            return
        self.is_over = True
        self._connection.set_authorizer(None)
        if self._connection.in_transaction:
            self._connection.execute("commit" if written else "rollback")
        self._on_over()

    async def _do(self, sql: str, args: Sequence[Any]) -> sqlite3.Cursor:
        await asyncio.sleep(0)  # others have a turn, as in a round trip to a database
        if self.is_over:
            raise UsageError("this transaction is over; use it only in the function that it was given to")
        return self._connection.execute(*_as_sqlite(sql, args))


def _as_sqlite(sql: str, args: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """A statement with `?` for each `$1`, and its parameters in that order; one without any is left as it is."""
    numbers = [int(found) for found in _POSTGRES_PARAMETER.findall(sql) if found]
    if not numbers:
        return sql, args
    if not 1 <= min(numbers) <= max(numbers) <= len(args):
        raise sqlite3.ProgrammingError(f"the statement has ${max(numbers)}, and {len(args)} parameters were given")
    plain = _POSTGRES_PARAMETER.sub(lambda found: found[0] if found[1] is None else "?", sql)
    return plain, [args[number - 1] for number in numbers]


def _deny_ends(action: int, *_: str | None) -> int:
    """Refuse what would end the transaction, or begin another."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
