"""What is measured, and what is aimed at: the one table.

Each row has two goals: the one of this stage of the project, and the one that the design ends with. Speeds are for a
machine with two cores, durable commits on, and one worker process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["steps/s", "runs/s", "ms", "bytes", "KB", "times"]


@dataclass(frozen=True, slots=True)
class Bound:
    """What a value, and its ratio to the raw limit, must reach or stay below; None for no demand."""

    value: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Goal:
    """A row of the bench."""

    what: str
    unit: Unit
    more_is_better: bool
    now: Bound
    final: Bound
    raw: str
    """What the raw limit beside it is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured value, and the raw limit of the same run."""

    row: str
    value: float
    raw: float
    note: str = ""


def _fast(unit: Unit, what: str, now: Bound, final: Bound) -> Goal:
    return Goal(what, unit, True, now, final, "rows a second, 1,000 to an insert and a commit")


def _quick(what: str, raw: str, now: Bound, final: Bound) -> Goal:
    return Goal(what, "ms", False, now, final, raw)


GOALS: Final[dict[str, Goal]] = {
    "P1": _fast("steps/s", "1,000 runs × 20 steps", Bound(10_000), Bound(20_000, 0.2)),
    "P2": _fast("steps/s", "1,000 runs × 20 steps", Bound(6_000), Bound(12_000)),
    "P3 async": _quick("one step of one run, p50", "one insert and its commit, p50", Bound(0.2), Bound(0.1)),
    "P3 sync": _quick("the same, each durable", "one insert and its commit, p50", Bound(ratio=3), Bound(ratio=1.5)),
    "P5": _fast("runs/s", "8,000 one-step runs, queued", Bound(8_000), Bound(8_000)),
    "P6 bytes": Goal("database of a parked run", "KB", False, Bound(1), Bound(1), "its payloads and keys, about"),
    "P6 memory": Goal("memory of a parked run", "KB", False, Bound(0.5), Bound(0.5), "its payloads and keys, about"),
    "P6 resume": _quick("answer to next step, p50", "one insert and its commit, p50", Bound(10), Bound(5)),
    "P7 replay": _quick("5,000 steps replayed", "reading as many rows", Bound(50), Bound(50)),
    "P7 flat": Goal("cost a step, 50,000 / 5,000", "times", False, Bound(1.25), Bound(1.25), "the same of reading"),
    "P9 bytes": Goal("1,000 super-steps of 1 KB", "bytes", False, Bound(3e6), Bound(3e6), "the content alone"),
    "P9 load": _quick("loading their last state", "reading as many bytes in rows", Bound(20), Bound(20)),
    "P10 import": _quick("import perdure", "a Python that does nothing", Bound(150), Bound(150)),
    "P10 help": _quick("perdure --help", "a Python that does nothing", Bound(300), Bound(300)),
}

MEASURES: Final = ("P1", "P2", "P3", "P5", "P6", "P7", "P9", "P10")
"""What `--only` takes: the rows of one measure are read together."""


def ratio(value: float, raw: float) -> float:
    """The value as a share or a multiple of the raw limit."""
    return value / raw if raw else 0.0


def meets(goal: Goal, bound: Bound, value: float, share: float) -> bool:
    """Whether a value and its ratio to the raw limit do what a bound asks."""
    pairs = ((value, bound.value), (share, bound.ratio))
    demands = [(found, asked) for found, asked in pairs if asked is not None]
    return all(found >= asked if goal.more_is_better else found <= asked for found, asked in demands)
