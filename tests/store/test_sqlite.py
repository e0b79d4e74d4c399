"""The SQLite store: the conformance suite, and what only a file has to promise."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from perdure.store.protocol import Store
from perdure.store.sqlite import SQLiteStore
from perdure.testing.conformance import StoreConformance


class Clock:
    """The machine's clock, which a test can move on."""

    def __init__(self) -> None:
        self.ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us


class TestSQLite(StoreConformance):
    """Every scenario of the suite, on files of their own."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.paths = (tmp_path / f"{number}.db" for number in itertools.count())
        self.clock = Clock()

    def store(self) -> Store:
        return SQLiteStore(next(self.paths), now_us=self.clock.now_us)

    async def advance_s(self, store: Store, seconds: float) -> None:
        self.clock.ahead_us += int(seconds * 1_000_000)
