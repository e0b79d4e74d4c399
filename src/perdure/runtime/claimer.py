"""The claimer: fills a worker's free slots.

Busy, it claims as soon as a useful number of slots is free. Idle, it says so in the store (so that starters send a
hint), looks once more, and then sleeps until a hint, the time of the next waiting run, or the fallback poll: no wake-up
can be lost, because the rows are what is looked at, and an idle claimer costs about two queries a second.

A claim whose answer was lost may have given this worker runs it never heard of; they are given back before the next
claim. So is a run whose execution broke off, or was told that it had lost it: perhaps to such a claim.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from perdure.core.limits import CLAIM_ROWS_MAX
from perdure.core.requests import ClaimRequest
from perdure.runtime.service import came, serve
from perdure.store.protocol import Hint

if TYPE_CHECKING:
    from perdure.runtime.tenure import Tenure

SLOTS_WAIT_S = 0.01
"""With work waiting, how long to let slots come free before claiming for fewer than a useful number."""

SUSPECTS_MAX = 1
"""Suspects in hand at a time, until they have recorded something."""

SETTLE_S = 0.1
"""The first sleep of an idle worker: a start that was being committed while this worker said that it is idle may have
seen nobody to send a hint to, and was not to be seen yet by the look after it."""


DUE_S_MIN = 0.001
"""The shortest sleep before a time that is known to come: clocks of two machines do not run alike."""


class Claimer:
    """Claims runs for one tenure."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._wake = asyncio.Event()
        self._slots = asyncio.Event()
        self._freed = asyncio.Event()
        self._useful = max(1, min(CLAIM_ROWS_MAX, tenure.settings.concurrency // 4))
        self._idle = False
        self._settling = False
        self._doubts = self._settled = 0
        """How often this worker had reason to doubt what it owns, and up to which of these it has had it given back."""
        self._ticket = 0
        self._stopped = asyncio.Event()
        self._claiming = asyncio.Lock()
        self._deaf = tenure.store.listen(self._hear)

    async def run(self) -> None:
        """Claim until stopped."""
        await serve("claimer", self._tick)

    async def stop(self) -> None:
        """Claim nothing more; a claim in flight is awaited, and what it brought is launched."""
        self._stopped.set()
        self._deaf()
        self._wake.set()
        self._slots.set()
        self._freed.set()
        async with self._claiming:
            pass

    def slot_freed(self) -> None:
        """An execution has ended."""
        self._freed.set()
        if self._tenure.free >= self._useful:
            self._slots.set()

    def give_back(self) -> None:
        """Have runs that this worker owns without executing them given back, before the next claim."""
        self._doubts += 1
        self._wake.set()
        self._freed.set()

    def look(self) -> None:
        """Something has changed in this worker that may let it claim more."""
        self._wake.set()

    async def _tick(self) -> float:
        if self._stopped.is_set():
            await asyncio.get_running_loop().create_future()  # until the tenure ends this task
        if self._settled < self._doubts:
            await self._be_sure()
        free = self._tenure.free
        if free <= 0:
            self._freed.clear()
            await came(self._freed, None)
            self._slots.clear()
            await came(self._slots, SLOTS_WAIT_S)
            return 0
        await self._tenure.trust.regained()
        limit = min(free, CLAIM_ROWS_MAX)
        claimed = await self._claim(limit)
        if claimed >= limit:
            await self._more_waits()
        elif claimed == 0:
            await self._none_waits()
        return 0

    async def _claim(self, limit: int) -> int:
        """Claim and launch; returns how many."""
        tenure = self._tenure
        suspects = max(0, SUSPECTS_MAX - len(tenure.suspects))
        request = ClaimRequest(
            tenure.worker, tuple(tenure.agents), tenure.settings.queues, tenure.deployment, limit, suspects,
            self._ticket,
        )  # fmt: skip
        async with self._claiming:
            if self._stopped.is_set():
                return 0
            self._wake.clear()
            try:
                claimed = await tenure.store.claim(request)
                for run in claimed:
                    tenure.launch(run)
            except Exception:  # whatever went wrong, the store may have given this worker runs it never heard of
                self._doubts += 1
                raise
        return len(claimed)

    async def _be_sure(self) -> None:
        """Give back what this worker owns without executing it. The claim that made it unsure may not have come yet; by
        its ticket it will be known as too late. What breaks off meanwhile is still among the runs to keep: that is
        another doubt."""
        tenure = self._tenure
        async with self._claiming:
            doubts = self._doubts
            self._ticket += 1
            await tenure.store.give_back(tenure.worker, keep=list(tenure.executions), ticket=self._ticket)
            self._settled = doubts

    async def _more_waits(self) -> None:
        """The queue has more than there were slots for."""
        if self._idle:
            await self._tenure.store.set_idle(self._tenure.worker, False)
            self._idle = False
        if self._tenure.free < self._useful:
            self._slots.clear()
            await came(self._slots, SLOTS_WAIT_S)

    async def _none_waits(self) -> None:
        """Nothing to claim: ask for hints, look once more (by returning), then sleep; shortly at first."""
        if not self._idle:
            await self._tenure.store.set_idle(self._tenure.worker, True)
            self._idle = self._settling = True
            return
        poll_s = self._tenure.settings.poll_s
        pause_s = min(poll_s, SETTLE_S) if self._settling else poll_s * random.uniform(0.8, 1.2)
        due_us = await self._tenure.store.next_due()
        if due_us is not None:
            pause_s = min(pause_s, max(due_us / 1_000_000, DUE_S_MIN))
        if not await came(self._wake, pause_s):
            self._settling = False

    def _hear(self, hint: Hint) -> None:
        if hint is Hint.WORK:
            self._wake.set()
