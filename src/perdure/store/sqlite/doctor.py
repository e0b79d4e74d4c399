"""The checks of `perdure doctor` for a SQLite store."""

from __future__ import annotations

from typing import Final

from perdure.core.limits import MIB
from perdure.store.sqlite import clock, filesystem, schema
from perdure.store.sqlite.connection import Database
from perdure.store.sqlite.transaction import Reader

INTEGRITY_BYTES_MAX: Final = 256 * MIB
"""Up to this size the file is checked through; that takes about a second."""

SYNCHRONOUS: Final = ("off", "normal", "full", "extra")

Check = tuple[str, bool, str]


def diagnose(reader: Reader, database: Database) -> list[Check]:
    """Every check, on a connection of its own database."""
    return [
        _file_system(database),
        _free_disk(database),
        _sync(database),
        _journal_mode(reader),
        _synchronous(reader),
        _schema(reader, database),
        _clock(reader, database),
        _integrity(reader, database),
    ]


def _file_system(database: Database) -> Check:
    mount = filesystem.mount_of(database.path)
    if mount is None:
        return ("file system", True, "type unknown on this system; it must be a local disk")
    remedy = "; SQLite's locks do not hold there: use a local disk" if mount.is_network else ""
    return ("file system", not mount.is_network, f"{mount.type} at {mount.point}{remedy}")


def _free_disk(database: Database) -> Check:
    free = filesystem.free_bytes(database.path.parent)
    well = free >= filesystem.FREE_BYTES_MIN
    return ("free disk", well, f"{free // MIB} MiB{'' if well else '; make room before it is full'}")


def _sync(database: Database) -> Check:
    seconds = filesystem.sync_s(database.path.parent)
    well = seconds <= filesystem.SYNC_S_MAX
    remedy = "" if well else "; the disk is slow or busy: every commit waits for it"
    return ("sync", well, f"{seconds * 1000:.2f} ms{remedy}")


def _journal_mode(reader: Reader) -> Check:
    (mode,) = reader.connection.execute("pragma journal_mode").fetchone()
    return ("journal mode", mode == "wal", mode if mode == "wal" else f"{mode}; run `perdure migrate` to switch to wal")


def _synchronous(reader: Reader) -> Check:
    (level,) = reader.connection.execute("pragma synchronous").fetchone()
    well = level >= SYNCHRONOUS.index("full")
    remedy = "" if well else "; a power cut can lose commits: use synchronous=full"
    return ("synchronous", well, f"{SYNCHRONOUS[level]}{remedy}")


def _schema(reader: Reader, database: Database) -> Check:
    version = schema.version_of(reader.connection, database.path)
    well = version == schema.VERSION
    return ("schema", well, f"version {version}{'' if well else f', needs {schema.VERSION}: run `perdure migrate`'}")


def _clock(reader: Reader, database: Database) -> Check:
    ahead_us = clock.look(reader, database.clock).ahead_us
    if ahead_us < clock.STEP_US:
        return ("clock", True, "goes with this machine's")
    hours = ahead_us * clock.SLEW / 3_600_000_000
    ahead = f"{ahead_us // 1_000_000:,} s ahead of this machine's, which was set back"
    return ("clock", False, f"{ahead}; it goes a tenth slower until they agree, in {hours:.1f} h of use")


def _integrity(reader: Reader, database: Database) -> Check:
    size = database.path.stat().st_size
    if size > INTEGRITY_BYTES_MAX:
        found = f"not checked: {size // MIB} MiB; run `sqlite3 FILE 'pragma quick_check'` at a quiet time"
        return ("integrity", True, found)
    (found,) = reader.connection.execute("pragma quick_check(1)").fetchone()
    return ("integrity", found == "ok", found if found == "ok" else f"{found}; stop all workers and restore a backup")
