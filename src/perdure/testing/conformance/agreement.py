"""Seeded programs: the store and the reference in memory are told the same, and must agree.

What such a program is, and what of an answer must agree, is `perdure.testing.differential`'s affair; here are its first
seeds, so that a store is not called right which they tell from the reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial

from perdure.store.protocol import Store
from perdure.testing.conformance.harness import Bench, Harness, scenario
from perdure.testing.differential.author import write
from perdure.testing.differential.batches import UNIVERSE
from perdure.testing.differential.comparing import compare
from perdure.testing.differential.grounds import MemoryGround
from perdure.testing.differential.performing import (
    LANE_MAX,
    MAILBOX_MAX,
    THREAD_QUEUE_MAX,
    Ground,
    perform,
    short_queues,
)

SEEDS = 12
LENGTH = 60


class Agreement(Harness):
    """The store means what the reference means."""

    @scenario
    async def test_seeded_programs_get_the_answers_that_they_get_in_memory(self, bench: Bench) -> None:
        grounds: dict[str, Ground] = {"memory": MemoryGround(), "store": HarnessGround(self)}
        stores = {name: partial(perform, ground=ground, universe=UNIVERSE) for name, ground in grounds.items()}
        with (
            short_queues(),
            self.thread_queue_max(THREAD_QUEUE_MAX),
            self.mailbox_max(MAILBOX_MAX),
            self.lane_max(LANE_MAX),
        ):
            for seed in range(SEEDS):
                difference = await compare(await write(seed, LENGTH), stores)
                assert difference is None, f"seed {seed}\n{difference.described()}"


class HarnessGround:
    """The ground that a store's author has described."""

    def __init__(self, harness: Harness) -> None:
        self.advance_s = harness.advance_s
        self.crash = harness.crash
        self._harness = harness

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[Store]:
        store = await self._harness.open_store()
        try:
            yield store
        finally:
            await store.close()
