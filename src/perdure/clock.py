"""Time, passed in: what the runtime knows of clocks.

Leases and due times are compared on the store's clock only. A process uses its own two for what stays inside it:
`monotonic` for trust windows and durations, `wall_us` for the times shown in a timeline.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Both of a process's clocks."""

    def monotonic(self) -> float:
        """Seconds that never go back; they go on while the process is stopped (not while the machine sleeps)."""

    def wall_us(self) -> int:
        """Microseconds since the epoch; may jump."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000


SYSTEM_CLOCK = SystemClock()
