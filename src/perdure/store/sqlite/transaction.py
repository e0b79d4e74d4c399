"""A connection with our statements on it.

**One step a statement.** Python's `sqlite3` lets go of the interpreter lock around every row it steps to. While the
event loop computes, the thread waits up to 5 ms to get it back: a thousand rows by `executemany` then take seconds
(622 rows/s, measured beside one busy thread, against 33,000/s in this form). So a set of rows is written by one
`insert` with many `values`, and a set of rows is read as one JSON array; blobs travel in it as hex.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import msgspec

from perdure.store import sql
from perdure.store.protocol import Hint
from perdure.store.sqlite.clock import MachineClock, begin, leave

T = TypeVar("T")

DIALECT: Final = sql.Dialect("sqlite", prefix="", positional=False)
STATEMENTS: Final = sql.load(DIALECT)

ROWS_A_STATEMENT: Final = 2_048
"""Rows of one `values`: a whole batch (`COMMIT_ROWS_MAX`), or half of one where the rows are wide. A set is filled up
with nulls to a power of two, so that twelve texts of each statement serve all sizes and stay prepared; preparing one
costs twice as much as executing it."""

COLUMNS_WIDE: Final = 16
"""From so many columns on, that many rows would be over SQLite's limit of 32,766 parameters."""

_ROW: Final = re.compile(r"\(\?(?:, \?)*\)")


class Reader:
    """Runs statements by name on one connection, and reads whole sets."""

    __slots__ = ("connection",)

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def run(self, name: str, /, **values: Any) -> int:
        """Execute a write; the number of rows it touched."""
        return self.connection.execute(STATEMENTS[name].text, values).rowcount

    def row(self, name: str, /, **values: Any) -> Any:
        """The first row, or None."""
        return self.connection.execute(STATEMENTS[name].text, values).fetchone()

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        """All rows, one step each: where there are few."""
        return self.connection.execute(STATEMENTS[name].text, values).fetchall()

    def value(self, name: str, /, **values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self.row(name, **values)
        return None if row is None else row[0]

    def array(self, name: str, /, **values: Any) -> list[Any]:
        """The JSON array that the statement answers with."""
        return decode(self.value(name, **values))

    def records(self, name: str, shape: Shape[T], /, **values: Any) -> list[T]:
        """The statement's rows, fetched as one JSON array, as records."""
        return shape.read(self.connection.execute(_packed(name, shape), values).fetchone()[0])

    def spread(self, name: str, rows: Sequence[tuple[Any, ...]]) -> Iterator[sqlite3.Cursor]:
        """Execute a statement that has one `(?, …)` for all these rows; a cursor for each part of them.

        The statement ignores rows of nulls.
        """
        most = ROWS_A_STATEMENT if not rows or len(rows[0]) < COLUMNS_WIDE else ROWS_A_STATEMENT // 2
        for start in range(0, len(rows), most):
            part = rows[start : start + most]
            size = 1 << (len(part) - 1).bit_length()
            values = list(chain.from_iterable(part))
            values += [None] * ((size - len(part)) * len(part[0]))
            yield self.connection.execute(spread_text(name, size), values)


class Transaction(Reader):
    """A reader that writes: what operations see of the writer's transaction. All of it happens at one time, `now`."""

    __slots__ = ("_before", "_moment", "hints", "now")

    def __init__(self, connection: sqlite3.Connection, clock: MachineClock) -> None:
        super().__init__(connection)
        self.hints: set[Hint] = set()
        self._before = connection.total_changes
        self._moment = begin(self, clock)
        self.now = self._moment.now

    def write(self, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Write a set of rows; how many were really written."""
        return sum(cursor.rowcount for cursor in self.spread(name, rows))

    def end(self) -> None:
        """Leave a mark on the file's clock; not where nothing was written, for then the commit costs no sync."""
        if self.connection.total_changes > self._before:
            leave(self, self._moment.mark)

    def undo(self) -> None:
        """Go back to the beginning of this operation."""
        self.connection.execute("rollback to operation")

    @contextlib.contextmanager
    def savepoint(self, name: str) -> Iterator[None]:
        """A part that is undone alone if it fails; a failure that took the whole transaction with it just goes on."""
        self.connection.execute(f"savepoint {name}")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute(f"rollback to {name}")
                self.connection.execute(f"release {name}")
            raise
        self.connection.execute(f"release {name}")


@dataclass(frozen=True, slots=True)
class Shape(Generic[T]):
    """How the columns of a statement become records of one kind."""

    columns: tuple[str, ...]
    blobs: frozenset[str]
    build: Callable[[list[Any]], T]

    def read(self, packed: str) -> list[T]:
        """The records of a packed answer."""
        return [self.build(row) for row in decode(packed)]


decode: Final[Callable[[str], list[Any]]] = msgspec.json.Decoder(list[Any]).decode


def encode(value: Any) -> str:
    """A set parameter. Numbers and short names only: SQLite cuts a JSON text at a NUL."""
    return msgspec.json.encode(value).decode()


@functools.cache
def spread_text(name: str, size: int) -> str:
    text, count = _ROW.subn(lambda row: ", ".join([row[0]] * size), STATEMENTS[name].text)
    assert count == 1, f"{name} must have one row of parameters"
    return text


@functools.cache
def _packed(name: str, shape: Shape[Any]) -> str:
    columns = ", ".join(_hex(column) if column in shape.blobs else column for column in shape.columns)
    return f"select json_group_array(json_array({columns}))\nfrom (\n{STATEMENTS[name].text}\n)"


def _hex(column: str) -> str:
    return f"case when {column} is not null then hex({column}) end"
