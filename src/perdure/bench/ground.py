"""Where a measure is taken: a store that nobody has used, and the raw limits of the same place.

A ground makes its own SQLite file, or its own schema in the given database, and removes it afterwards; nothing of the
user's is read or written.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from perdure.bench.laps import Laps
from perdure.errors import UsageError

ROWS_A_BATCH: Final = 1_000
RAW_BATCHES: Final = 50
RAW_COMMITS: Final = 200
READS: Final = 5
RECORD: Final = b"r" * 200

Kind = Literal["sqlite", "postgres"]


class Ground(Protocol):
    """A fresh store, and what the bare driver does beside it. The raw limits are measured when asked for."""

    kind: Kind
    url: str

    async def rows_per_s(self) -> float:
        """Rows a second, a thousand to a statement and to a commit: two bigint keys and 200 bytes. A batch holds a row
        of each of a thousand runs, as those of a busy worker do."""

    async def commit_ms(self) -> float:
        """One insert and its commit, the median."""

    async def read_ms(self, rows: int) -> float:
        """All of so many such rows, by one select: the median of a few."""

    async def bytes(self) -> int:
        """What the store takes on disk now."""

    async def tidy(self) -> None:
        """What the database does by itself every minute or so, done now: so that a burst costs what its hours would."""


@asynccontextmanager
async def ground_at(url: str | None) -> AsyncIterator[Ground]:
    """A ground beside the store at this URL, or in a temporary folder."""
    match kind_of(url):
        case "sqlite":
            folder = tempfile.mkdtemp(prefix="perdure-bench-", dir=_folder_of(url))
            try:
                yield SQLiteGround(Path(folder))
            finally:
                shutil.rmtree(folder)
        case "postgres":
            assert url is not None
            ground = PostgresGround(url)
            await ground.open()
            try:
                yield ground
            finally:
                await ground.close()


def kind_of(url: str | None) -> Kind:
    """Which kind of ground the URL leads to."""
    scheme = "sqlite" if url is None else url.partition(":")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return "postgres"
    if scheme == "sqlite":
        return "sqlite"
    raise UsageError(f"the bench measures sqlite and postgresql URLs, not {scheme}://")


def _folder_of(url: str | None) -> Path | None:
    if url is None:
        return None
    from perdure.store import open_url

    folder = Path(open_url(url).url.removeprefix("sqlite:///")).parent
    if not folder.is_dir():
        raise UsageError(f"{folder} is no directory; the bench makes a file beside the one that --store names")
    return folder


class SQLiteGround:
    """A file in a folder of its own."""

    kind: Kind = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "bench.db"
        self.raw_path = folder / "raw.db"
        self.url = f"sqlite:///{quote(str(self.path))}"

    async def tidy(self) -> None:
        """A file needs none."""

    async def rows_per_s(self) -> float:
        with self._raw() as raw:
            text = f"insert into raw values {', '.join(['(?, ?, ?)'] * ROWS_A_BATCH)}"
            batches = [_flat(step) for step in range(RAW_BATCHES)]
            with Laps() as laps:
                for batch in batches:
                    raw.connection.execute("begin immediate")
                    raw.connection.execute(text, batch)
                    raw.connection.execute("commit")
        return RAW_BATCHES * ROWS_A_BATCH / laps.total_s

    async def commit_ms(self) -> float:
        laps = Laps()
        with self._raw() as raw:
            for number in range(RAW_COMMITS):
                with laps:
                    raw.connection.execute("begin immediate")
                    raw.connection.execute("insert into raw values (?, ?, ?)", (1, number, RECORD))
                    raw.connection.execute("commit")
        return laps.median

    async def read_ms(self, rows: int) -> float:
        laps = Laps()
        with self._raw() as raw:
            raw.connection.execute("begin immediate")
            raw.connection.executemany("insert into raw values (?, ?, ?)", ((1, step, RECORD) for step in range(rows)))
            raw.connection.execute("commit")
            for _ in range(READS):
                with laps:
                    raw.connection.execute("select * from raw").fetchall()
        return laps.median

    async def bytes(self) -> int:
        connection = sqlite3.connect(self.path)
        try:
            connection.execute("pragma wal_checkpoint(truncate)")
        finally:
            connection.close()
        return sum(path.stat().st_size for path in self.path.parent.glob(f"{self.path.name}*") if path.is_file())

    def _raw(self) -> _RawFile:
        return _RawFile(self.raw_path)


class _RawFile:
    """A SQLite file as the store opens its own, with one bare table."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> _RawFile:
        self.connection = sqlite3.connect(self.path, isolation_level=None)
        for pragma in ("journal_mode = wal", "synchronous = full", "cache_size = -65536"):
            self.connection.execute(f"pragma {pragma}")
        self.connection.execute("create table raw (run integer, step integer, record blob, primary key (run, step))")
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.execute("drop table raw")
        self.connection.close()


def _flat(step: int) -> list[Any]:
    return [value for run in range(ROWS_A_BATCH) for value in (run, step, RECORD)]


class PostgresGround:
    """A schema of its own in the given database."""

    kind: Kind = "postgres"

    def __init__(self, url: str) -> None:
        self.schema = f"perdure_bench_{secrets.token_hex(4)}"
        parts = urlsplit(url)
        query = [(name, value) for name, value in parse_qsl(parts.query) if name != "schema"]
        self.url = urlunsplit(parts._replace(query=urlencode([*query, ("schema", self.schema)])))

    async def open(self) -> None:
        """Connect; the store makes the schema."""
        from perdure.store.postgres.address import parse
        from perdure.store.postgres.lines import connect

        self._connection = await connect(parse(self.url))
        await self._connection.execute(f"create schema {self.schema}")

    async def close(self) -> None:
        """Remove all of it."""
        await self._connection.execute(f"drop schema {self.schema} cascade")
        await self._connection.close()

    async def rows_per_s(self) -> float:
        async with self._raw():
            text = f"insert into {self.schema}.raw select * from unnest($1::bigint[], $2::bigint[], $3::bytea[])"
            statement = await self._connection.prepare(text)
            runs, records = list(range(ROWS_A_BATCH)), [RECORD] * ROWS_A_BATCH
            with Laps() as laps:
                for step in range(RAW_BATCHES):
                    await statement.fetch(runs, [step] * ROWS_A_BATCH, records)
        return RAW_BATCHES * ROWS_A_BATCH / laps.total_s

    async def commit_ms(self) -> float:
        laps = Laps()
        async with self._raw():
            statement = await self._connection.prepare(f"insert into {self.schema}.raw values (1, $1, $2)")
            for number in range(RAW_COMMITS):
                with laps:
                    await statement.fetch(number, RECORD)
        return laps.median

    async def read_ms(self, rows: int) -> float:
        laps = Laps()
        async with self._raw():
            text = f"insert into {self.schema}.raw select 1, n, $2 from generate_series(1, $1::bigint) as n"
            await self._connection.execute(text, rows, RECORD)
            statement = await self._connection.prepare(f"select * from {self.schema}.raw")
            for _ in range(READS):
                with laps:
                    await statement.fetch()
        return laps.median

    async def tidy(self) -> None:
        for table in ("runs", "threads", "waits"):
            await self._connection.execute(f"vacuum {self.schema}.{table}")

    async def bytes(self) -> int:
        text = (
            "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c "
            "where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'S')"
        )
        size: int = await self._connection.fetchval(text, self.schema)
        return size

    @asynccontextmanager
    async def _raw(self) -> AsyncIterator[None]:
        await self._connection.execute(
            f"create table {self.schema}.raw (run bigint, step bigint, record bytea, primary key (run, step))"
        )
        try:
            yield
        finally:
            await self._connection.execute(f"drop table {self.schema}.raw")
