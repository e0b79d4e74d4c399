"""A worker's belief in its own lease, shared by its loop and its renewal thread.

The renewal thread extends it; the loop asks before it dispatches anything. When belief has lapsed, dispatching
waits: either a renewal gets through, or the lease turns out to be lost (`core/leases.py` has the arithmetic).
"""

from __future__ import annotations

import asyncio

from perdure.clock import Clock
from perdure.runtime.threads import post


class Trust:
    """Until when the lease is believed, on the process's monotonic clock."""

    def __init__(self, clock: Clock, until: float) -> None:
        self.until = until
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    @property
    def holds(self) -> bool:
        """Whether something may be dispatched now."""
        return self._clock.monotonic() < self.until

    def extend(self, until: float) -> None:
        """Believe until then; from any thread."""
        self.until = until
        post(self._loop, self._pulse)

    async def regained(self) -> None:
        """Wait until the lease is believed again."""
        while not self.holds:
            await self._changed.wait()

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
