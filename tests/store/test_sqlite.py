"""The SQLite store: the conformance suite, and how it refuses what cannot work."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.core.changes import CommitOutcome
from perdure.errors import SchemaAhead, SchemaOutdated, StoreError, StoreUnavailable
from perdure.store.protocol import Store
from perdure.store.sql import Migration
from perdure.store.sqlite import SQLiteStore, claim, filesystem, schema
from perdure.testing.conformance import Bench, StoreConformance, scenario
from perdure.testing.conformance.harness import end, step


class Clock:
    """The machine's clock, which a test can move on."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us


class OnFiles:
    """A harness that gives every store a file of its own."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"{number}.db" for number in itertools.count())
        self.clock = Clock()

    def store(self) -> Store:
        return SQLiteStore(next(self.paths), now_us=self.clock.now_us)

    async def advance_s(self, store: Store, seconds: float) -> None:
        self.clock.ahead_us += int(seconds * 1_000_000)


class TestSQLiteStore(OnFiles, StoreConformance):
    """Every scenario of the suite, and what a batch does with values that SQLite cannot take."""

    @scenario
    async def test_long_logs_are_claimed_in_reads_of_a_bounded_size(self, bench: Bench) -> None:
        first = await bench.worker()
        await bench.start_many(3)
        runs = await bench.claim(first)
        sizes = {runs[0].run: 5, runs[1].run: 1, runs[2].run: 1}
        records = [step(run, key=f"k{n}", seq=n, payload=b"x" * 400) for run in runs for n in range(sizes[run.run])]
        await bench.store.commit(first, records)
        await bench.store.retire(first)

        second = await bench.worker()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(claim, "RECORD_BYTES_A_READ", 1_000)
            patch.setattr(claim, "RECORDS_A_READ", 2)
            claimed = await bench.claim(second)

        assert {run.run: [record.key for record in run.records] for run in claimed} == {
            run: [f"k{n}" for n in range(size)] for run, size in sizes.items()
        }

    @scenario
    async def test_values_that_cannot_be_stored_are_refused_alone(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(40)
        runs = await bench.claim(worker)
        bad: dict[int, Any] = {3: {"key": "\ud800"}, 11: {"payload": None}, 12: {"digest": 2**63}, 29: {"seq": "x"}}

        outcome = await bench.store.commit(
            worker, [step(run, **({"key": "a"} | bad.get(n, {}))) for n, run in enumerate(runs)]
        )

        assert outcome.alive and not outcome.lost
        assert set(outcome.refused) == {runs[n].run for n in bad}
        assert all(outcome.refused.values())
        for n, run in enumerate(runs):
            assert len(await bench.steps(run.run)) == (0 if n in bad else 1)

    @scenario
    async def test_a_bad_value_and_a_repeated_record_in_one_batch_each_get_their_answer(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        one, two, three = await bench.claim(worker)
        await bench.commit(worker, step(one, "a", b"1"))

        outcome = await bench.store.commit(worker, [step(one, "a", b"1"), step(two, "\ud800"), end(three)])

        assert outcome.lost == frozenset() and list(outcome.refused) == [two.run]
        assert len(await bench.store.outcomes([three.run])) == 1

    @scenario
    async def test_an_operation_that_fails_leaves_those_that_share_its_transaction_alone(self, bench: Bench) -> None:
        asked = [await bench.ask("good"), await bench.ask("\ud800"), await bench.ask("fine")]

        answers = await asyncio.gather(*(bench.store.start([each]) for each in asked), return_exceptions=True)

        assert [isinstance(answer, list) for answer in answers] == [True, False, True]
        assert isinstance(answers[1], StoreError) and not isinstance(answers[1], StoreUnavailable)
        assert await bench.store.get_thread("good") and await bench.store.get_thread("fine")

    @scenario
    async def test_a_closed_store_says_so(self, bench: Bench) -> None:
        own = await bench.clone()
        await own.close()

        with pytest.raises(StoreUnavailable, match="not open"):
            await own.now_us() and await own.get_runs([1])

    @scenario
    async def test_closing_writes_what_is_queued(self, bench: Bench) -> None:
        own = await bench.clone()
        asked = [await bench.ask(f"t{n}") for n in range(20)]
        starting = [asyncio.ensure_future(own.start([each])) for each in asked]
        await asyncio.sleep(0)

        await own.close()

        await asyncio.gather(*starting)
        assert len(await bench.store.get_runs([each.id for each in asked])) == 20

    @scenario
    async def test_a_full_disk_is_named_and_loses_nothing(self, bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, SQLiteStore)
        worker, claimed = await bench.begin()
        await bench.commit(worker, step(claimed, "kept"))
        await store._write(lambda tx: tx.connection.execute("pragma max_page_count = 1").fetchone())

        with pytest.raises(StoreUnavailable, match="disk is full"):
            for number in range(100):
                await store.commit(worker, [step(claimed, f"large#{number}", b"x" * 30_000)])

        kept = await bench.steps(claimed.run)
        assert len(kept) == number + 1 and "kept" in kept
        await store._write(lambda tx: tx.connection.execute("pragma max_page_count = 100000").fetchone())
        await bench.commit(worker, step(claimed, f"large#{number}", b"x" * 30_000), step(claimed, "more"))

    @scenario
    async def test_a_lost_transaction_is_told_to_everybody_in_it(self, bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, SQLiteStore)
        ask = await bench.ask()

        def lose(tx: Any) -> None:
            tx.connection.execute("rollback")
            tx.connection.execute("select * from nothing")

        started, lost = store.start([ask]), store._write(lose)
        answers = await asyncio.gather(started, lost, return_exceptions=True)

        assert all(isinstance(answer, StoreError) for answer in answers)
        assert await store.get_runs([ask.id]) == []
        assert await store.commit(await bench.worker(), []) == CommitOutcome()


def refusal(path: Path | str, **options: Any) -> StoreError:
    """What opening the file raises."""
    with pytest.raises(StoreError) as caught:
        asyncio.run(opened(path, **options))
    assert str(path) in str(caught.value)
    return caught.value


async def opened(path: Path | str, **options: Any) -> list[tuple[str, bool, str]]:
    """Open the file, look at it, close it."""
    store = SQLiteStore(path, **options)
    await store.open()
    try:
        return await store.diagnose()
    finally:
        await store.close()


def test_a_missing_directory_is_named_with_the_remedy(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no'} does not exist; create it" in str(refusal(tmp_path / "no" / "x.db"))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    assert "is a directory" in str(refusal(tmp_path))


def test_a_file_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    asyncio.run(opened(path))
    path.chmod(0o444)
    if os.geteuid() == 0:  # whom no mode stops
        monkeypatch.setattr(os, "access", lambda place, mode: place != path)

    assert f"{path} is read-only for this user; make it writable" in str(refusal(path))


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute("create table theirs (a)")
    connection.close()

    assert "another program" in str(refusal(path))
    connection = sqlite3.connect(path)
    assert connection.execute("select name from sqlite_master").fetchall() == [("theirs",)]
    connection.close()


def test_what_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"Dear diary, " * 1000)

    assert "not a SQLite database" in str(refusal(path))
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_a_newer_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    asyncio.run(opened(path))
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 99")
    connection.close()

    error = refusal(path)

    assert isinstance(error, SchemaAhead) and (error.found, error.needed) == (99, schema.VERSION)
    with pytest.raises(SchemaAhead):
        asyncio.run(SQLiteStore(path).migrate())


def test_an_older_schema_is_refused_until_it_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    asyncio.run(opened(path))
    newer = Migration(schema.VERSION + 1, "more", "create table more (a integer) strict;")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, newer))
    monkeypatch.setattr(schema, "VERSION", newer.version)

    error = refusal(path)
    assert isinstance(error, SchemaOutdated) and "perdure migrate" in str(error)

    assert asyncio.run(SQLiteStore(path).migrate()) == (newer.version - 1, newer.version)
    assert all(well for _, well, _ in asyncio.run(opened(path)))


def test_a_migration_that_fails_leaves_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    asyncio.run(opened(path))
    broken = Migration(schema.VERSION + 1, "broken", "create table more (a integer) strict;\ncreate table ids (b);")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))

    with pytest.raises(StoreError, match="already exists"):
        asyncio.run(SQLiteStore(path).migrate())

    connection = sqlite3.connect(path)
    assert connection.execute("pragma user_version").fetchone() == (schema.VERSION,)
    assert connection.execute("select count(*) from sqlite_master where name = 'more'").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(place).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nhost:/x {escaped} {kind} rw 0 0\n/dev/sdb {escaped}/local xfs rw 0 0\n")
    (place / "local").mkdir()
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)

    message = str(refusal(place / "x.db"))

    assert kind in message and "Postgres" in message
    assert not (place / "x.db").exists()
    assert {what: found for what, _, found in asyncio.run(opened(place / "local" / "x.db"))}["file system"]


def test_an_old_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))

    with pytest.raises(StoreError, match=r"needs 3\.37\.0 or newer"):
        asyncio.run(SQLiteStore(tmp_path / "x.db").open())


def test_only_files_and_known_levels_are_taken(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="memory://"):
        SQLiteStore(":memory:")
    with pytest.raises(StoreError, match="use full"):
        SQLiteStore(tmp_path / "x.db", synchronous="fully")  # type: ignore[arg-type]


def test_a_level_that_can_lose_commits_is_told_by_the_doctor(tmp_path: Path) -> None:
    checks = {what: (well, found) for what, well, found in asyncio.run(opened(tmp_path / "x.db", synchronous="off"))}

    well, found = checks["synchronous"]
    assert not well and "use synchronous=full" in found


def test_a_file_that_was_moved_away_is_written_again_only_when_it_is_back(tmp_path: Path) -> None:
    path, away = tmp_path / "a.db", tmp_path / "away.db"

    async def main() -> None:
        store = SQLiteStore(path)
        await store.open()
        try:
            first = await store.reserve_ids(10)
            path.rename(away)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
                    await store.reserve_ids(1)
            with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
                await store.get_runs([first])
            away.rename(path)
            assert await store.reserve_ids(1) == first + 10
        finally:
            await store.close()

    asyncio.run(main())


def test_a_file_in_the_place_of_the_one_that_was_opened_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        store, other = SQLiteStore(path), SQLiteStore(path)
        await store.open()
        try:
            await store.reserve_ids(10)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            await other.open()
            try:
                with pytest.raises(StoreUnavailable, match="start this process again"):
                    await store.reserve_ids(1)
                assert await other.reserve_ids(1) == 1
            finally:
                await other.close()
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("content", [b"app = App('desk')\n", b"x" * 5_000])
def test_beside_a_file_that_is_no_database_nothing_is_made(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "desk.py"
    path.write_bytes(content)

    with pytest.raises(StoreError, match="it is not a SQLite database; give another path"):
        asyncio.run(SQLiteStore(path).open())

    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == content


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()

    async def version() -> tuple[int, int]:
        return await SQLiteStore(tmp_path / "new.db").migrate()

    before, after = asyncio.run(version())
    assert before == 0 and after > 0
