"""Where programs are told: one ground for each kind of store, which makes fresh stores and moves their time.

A Postgres ground takes a schema of its own in the database it is given, empties it between programs and drops it at the
end. A SQLite ground makes a file for each program, without waiting for the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from perdure.errors import UsageError
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.differential.performing import Ground

if TYPE_CHECKING:
    from perdure.store.postgres.lines import Line

EPOCH_US: Final = 1_700_000_000_000_000
_schemas = itertools.count(1)


class Clock:
    """A clock that never stands still, so that no two operations fall on one moment, and that a program moves on."""

    def __init__(self) -> None:
        self._us = EPOCH_US

    def now_us(self) -> int:
        self._us += 1
        return self._us

    def advance_s(self, seconds: float) -> None:
        self._us += int(seconds * 1_000_000)


class StoreGround(Ground, Protocol):
    """A ground that comes with this package."""

    @property
    def name(self) -> str:
        """What reports call it."""

    async def fresh_url(self) -> str:
        """The address of an empty store, for an app."""

    async def close(self) -> None:
        """Leave nothing behind."""


class MemoryGround:
    """Memory: the reference."""

    name = "memory"

    def __init__(self) -> None:
        self._clock = Clock()

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Store]:
        self._clock = Clock()
        store = self._store()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def _store(self) -> Store:
        return MemoryStore(now_us=self._clock.now_us)

    async def fresh_url(self) -> str:
        return "memory://"

    async def advance_s(self, store: Store, seconds: float) -> None:
        self._clock.advance_s(seconds)

    async def crash(self, store: Store) -> None:
        await store.close()

    async def close(self) -> None:
        """Memory forgets by itself."""


class SQLiteGround(MemoryGround):
    """Files in a directory that goes with the ground."""

    name = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="perdure-differential-")
        self._paths = self._fresh_paths()

    def _store(self) -> Store:
        from perdure.store.sqlite import SQLiteStore

        return SQLiteStore(next(self._paths), synchronous="off", now_us=self._clock.now_us)

    async def fresh_url(self) -> str:
        return f"sqlite:///{next(self._paths)}?synchronous=off"

    async def close(self) -> None:
        self._directory.cleanup()

    def _fresh_paths(self) -> Iterator[Path]:
        """One after another; the file before, which nobody has open any more, goes."""
        for number in itertools.count(1):
            for old in Path(self._directory.name).iterdir():
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            yield Path(self._directory.name) / f"{number}.db"


class PostgresGround:
    """A schema in a database."""

    name = "postgresql"

    def __init__(self, url: str) -> None:
        from perdure.store.postgres import PostgresStore
        from perdure.store.postgres.address import parse
        from perdure.store.postgres.lines import Line

        schema = f"perdure_differential_{os.getpid()}_{next(_schemas)}"
        base, _, query = url.partition("?")
        rest = [part for part in query.split("&") if part and not part.startswith("schema=")]
        self._url = f"{base}?{'&'.join([*rest, 'synchronous_commit=off', f'schema={schema}'])}"
        self._address = parse(self._url)
        self._line: Line = Line(self._address)
        self._kept = PostgresStore(self._url)
        self._made = False

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Store]:
        """One store for all programs: its connections have planned every statement."""
        await self._empty()
        await self._kept.open()
        yield self._kept

    async def fresh_url(self) -> str:
        await self._empty()
        return self._url

    async def advance_s(self, store: Store, seconds: float) -> None:
        """The server's clock stays as it is: every time that is compared with it moves back."""
        await self._line.fetch(self._statement("advance"), int(seconds * 1_000_000))

    async def crash(self, store: Store) -> None:
        await store.close()

    async def close(self) -> None:
        await self._kept.close()
        await self._line.fetch(f'drop schema if exists "{self._address.schema}" cascade')
        await self._line.close()

    async def _empty(self) -> None:
        if not self._made:
            await self._kept.migrate()
            self._made = True
        await self._line.fetch(self._statement("empty"))

    def _statement(self, name: str) -> str:
        from perdure.store import sql
        from perdure.store.postgres.schema import dialect

        text = files("perdure.testing.differential").joinpath("sql").joinpath(f"{name}.sql").read_text(encoding="utf-8")
        return sql.translate(text, dialect(self._address.prefix))[0]


def ground_of(text: str) -> StoreGround:
    """The ground that a word or a Postgres URL names."""
    if text == "memory":
        return MemoryGround()
    if text == "sqlite":
        return SQLiteGround()
    if text.startswith(("postgresql://", "postgres://")):
        return PostgresGround(text)
    raise UsageError(f"{text!r} names no store to compare: it is memory, sqlite, or a postgresql:// URL")
