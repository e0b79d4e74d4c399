"""The alarm: workers are woken at the very moment a run becomes due, so they need not look again and again."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.store.memory.tables import Tables
from perdure.store.protocol import Hint

LATE_S: Final = 2e-6
"""Clocks count in microseconds; so much later, a run is due on all of them."""


class Alarm:
    """Rings when the next run that waits for a time of its own is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tables: Tables) -> None:
        self._loop = loop
        self._tables = tables
        self._at_us: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Look at what waits; to be called whenever rows may have changed."""
        tables = self._tables
        now_us = tables.now_us()
        coming = (tables.runs[run].ready_at for run in tables.waiting)
        at_us = min((ready_at for ready_at in coming if ready_at > now_us), default=None)
        if at_us == self._at_us:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_us, self._timer = at_us, None
        if at_us is not None:
            self._timer = self._loop.call_later((at_us - now_us) / 1e6 + LATE_S, self._ring)

    def _ring(self) -> None:
        self._at_us = self._timer = None
        self._tables.send(Hint.WORK)
        self.set()
