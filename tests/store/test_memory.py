"""The store in memory keeps every promise of the conformance suite."""

from __future__ import annotations

import time

from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    durable = False
    ahead_us = 0

    def store(self) -> Store:
        return MemoryStore(now_us=self.now_us)

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + self.ahead_us

    async def advance_s(self, store: Store, seconds: float) -> None:
        self.ahead_us += int(seconds * 1_000_000)
