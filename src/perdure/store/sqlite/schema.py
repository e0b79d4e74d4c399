"""The schema's version, and bringing it up to date.

The version is the file's `user_version`; `application_id` tells our files from other programs'. A migration runs in
one transaction with the version it leads to, under the writer lock, so that of several processes one does it and the
others find it done.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from perdure.errors import SchemaAhead, SchemaOutdated, StoreError
from perdure.store import sql
from perdure.store.sqlite.transaction import DIALECT

APPLICATION_ID: Final = 0x70647265
"""`pdre`, as `file` shows it."""

SQLITE_VERSION_MIN: Final = (3, 37, 0)
"""The first with strict tables (November 2021)."""

MIGRATIONS: Final = sql.load_migrations(DIALECT)
VERSION: Final = MIGRATIONS[-1].version


def check_library() -> None:
    """Refuse a SQLite that is too old, naming the one that is needed."""
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        needed = ".".join(map(str, SQLITE_VERSION_MIN))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; this needs {needed} or newer")


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version; 0 for a new, empty file."""
    (application,) = connection.execute("pragma application_id").fetchone()
    (version,) = connection.execute("pragma user_version").fetchone()
    if application == APPLICATION_ID:
        return int(version)
    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
    if application or version or tables:
        raise StoreError(f"{path} is the database of another program; give another path")
    return 0


def check_version(version: int, path: Path) -> None:
    """Refuse a schema that is not this code's."""
    values = {"path": str(path), "found": version, "needed": VERSION}
    if version < VERSION:
        remedy = "run `perdure migrate`"
        raise SchemaOutdated(f"{path} has schema {version}, this perdure needs {VERSION}; {remedy}", **values)
    if version > VERSION:
        raise SchemaAhead(f"{path} has schema {version}, this perdure knows {VERSION}; upgrade perdure here", **values)


def set_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch the file to WAL: readers and the writer do not wait for each other."""
    (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
    if mode != "wal":
        raise StoreError(f"{path}: its file system does not support SQLite's WAL (got {mode}); use a local disk")


def migrate(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    """Apply what is missing; the versions before and after. The caller holds the writer lock."""
    before = version_of(connection, path)
    if before > VERSION:
        check_version(before, path)
    set_wal(connection, path)
    for migration in MIGRATIONS[before:]:
        connection.execute("begin immediate")
        try:
            for statement in _split(migration.text):
                connection.execute(statement)
            connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute(f"pragma user_version = {migration.version}")
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
    return before, max(before, VERSION)


def _split(text: str) -> Iterator[str]:
    """The statements of a script; `executescript` would commit between them."""
    statement = ""
    for line in text.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    assert not statement.strip(), "a migration ends in the middle of a statement"
