"""The store in memory keeps every promise of the conformance suite."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure.core.records import WorkerState
from perdure.errors import StoreUnavailable
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Hint, Store
from perdure.testing.conformance import Bench, StoreConformance, scenario


class TestMemoryStore(StoreConformance):
    durable = False
    has_sql = False
    ahead_us = 0

    def store(self) -> Store:
        return MemoryStore(now_us=self.now_us)

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + self.ahead_us

    async def advance_s(self, store: Store, seconds: float) -> None:
        self.ahead_us += int(seconds * 1_000_000)

    @scenario
    async def test_a_crashed_store_leaves_its_worker_to_a_take_over(self, bench: Bench) -> None:
        own = bench.store.clone()
        assert isinstance(own, MemoryStore)
        await own.open()
        worker = await bench.worker(own)
        assert await own.attend(worker)

        own.crash()

        assert await bench.store.silent_workers() == [worker]
        assert (await bench.worker_row(worker)).state is WorkerState.ALIVE


def test_a_store_that_is_not_open_says_so() -> None:
    store = MemoryStore()
    with pytest.raises(StoreUnavailable, match="not open"):
        asyncio.run(store.reserve_ids(1))
    with pytest.raises(StoreUnavailable, match="not open"):
        store.listen(lambda hint: None)


def test_a_listener_whose_loop_is_gone_is_forgotten() -> None:
    store = MemoryStore()
    heard: list[Hint] = []

    async def listen() -> None:
        gone = store.clone()
        await gone.open()
        gone.listen(heard.append)

    async def work() -> None:
        await store.open()
        bench = Bench(StoreConformance(), store)
        worker = await bench.worker()
        await store.set_idle(worker, True)
        await bench.start()
        await bench.claim_one(worker)

    asyncio.run(listen())
    asyncio.run(work())

    assert heard == []
