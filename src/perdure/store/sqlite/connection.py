"""Opening a connection the way every part of the store wants it."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.store.sqlite.clock import MachineClock

CACHE_KIB: Final = 64 * 1024
"""Page cache of the writer: with the default of 2 MiB, inserts ran at a quarter of the speed."""

READ_CACHE_KIB: Final = 16 * 1024
"""Page cache of the reader: listings and outcomes touch few pages."""

CHECKPOINT_PAGES: Final = 4_000
"""The WAL is folded into the file at this size (16 MiB): four times the default, so four times fewer syncs of it."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""A WAL that grew larger (a long read held it open) is cut back to this size."""

BUSY_TIMEOUT_S: Final = 30.0
"""How long SQLite itself waits for a lock held by a program that does not know our writer lock."""

STATEMENTS_CACHED: Final = 512
"""Prepared statements kept: all of ours in all their sizes."""


@dataclass(frozen=True, slots=True)
class Database:
    """Which file, and how to speak to it."""

    path: Path
    synchronous: str
    clock: MachineClock

    @property
    def file(self) -> tuple[int, int] | None:
        """Which file lies there now; None where there is none."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def connect(self, *, create: bool = False, cache_kib: int) -> sqlite3.Connection:
        """A connection without implicit transactions, usable from any one thread at a time."""
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={'rwc' if create else 'rw'}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_CACHED,
        )
        try:
            connection.execute(f"pragma synchronous = {self.synchronous}")
            connection.execute(f"pragma cache_size = -{cache_kib}")
            connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"pragma journal_size_limit = {WAL_BYTES_KEPT}")
            connection.execute("pragma temp_store = memory")
        except BaseException:
            connection.close()
            raise
        return connection
