"""A stopwatch: `with laps:` around what is timed, as often as wanted."""

from __future__ import annotations

import statistics
import time
from typing import Self


class Laps:
    """Times in milliseconds, in the order in which they were taken."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.ms.append((time.perf_counter() - self._began) * 1e3)

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.ms)

    @property
    def p99(self) -> float:
        """All but the slowest hundredth are at most this long."""
        return statistics.quantiles(self.ms, n=100)[98]

    @property
    def total_s(self) -> float:
        """All together, in seconds."""
        return sum(self.ms) / 1e3
