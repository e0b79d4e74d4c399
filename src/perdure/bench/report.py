"""From readings to rows: the median of each value, of its raw limit and of their ratio, held against the goals."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from perdure.bench.goals import GOALS, Bound, Goal, Reading, meets, ratio
from perdure.bench.plan import Item


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report."""

    name: str
    store: str
    value: float
    raw: float
    ratio: float
    note: str
    values: tuple[float, ...]

    @property
    def goal(self) -> Goal:
        """What it is held against."""
        return GOALS[self.name]

    def meets(self, bound: Bound) -> bool:
        """Whether the medians do what the bound asks."""
        return meets(self.goal, bound, self.value, self.ratio)


def rows(found: Iterable[tuple[Item, list[Reading]]]) -> list[Row]:
    """One row for each name, in the order in which they were first read."""
    readings: dict[tuple[str, str], list[Reading]] = {}
    for item, taken in found:
        for reading in taken:
            readings.setdefault((reading.row, item.where), []).append(reading)
    return [_row(name, store, taken) for (name, store), taken in readings.items()]


def _row(name: str, store: str, taken: list[Reading]) -> Row:
    values = tuple(reading.value for reading in taken)
    value = statistics.median_low(values)
    return Row(
        name=name,
        store=store,
        value=value,
        raw=statistics.median(reading.raw for reading in taken),
        ratio=statistics.median(ratio(reading.value, reading.raw) for reading in taken),
        note=taken[values.index(value)].note,
        values=values,
    )


def machine() -> dict[str, Any]:
    """What the numbers were taken on."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {
        "cores": os.cpu_count() or 1,
        "load": round(load, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "loop": f"uvloop {version('uvloop')}" if find_spec("uvloop") else "asyncio",
    }


def document(found: list[Row], *, repeat: int) -> dict[str, Any]:
    """The report as one JSON document."""
    return {"machine": machine(), "repeat": repeat, "rows": [_document(row) for row in found]}


def _document(row: Row) -> dict[str, Any]:
    goal = row.goal
    return {
        "measure": row.name,
        "what": goal.what,
        "store": row.store or None,
        "value": row.value,
        "unit": goal.unit,
        "raw": row.raw,
        "raw_is": goal.raw,
        "ratio": row.ratio,
        "note": row.note or None,
        "values": list(row.values),
        "goal": {"now": _bound(goal.now), "final": _bound(goal.final), "more_is_better": goal.more_is_better},
        "met": {"now": row.meets(goal.now), "final": row.meets(goal.final)},
    }


def _bound(bound: Bound) -> dict[str, float | None]:
    return {"value": bound.value, "ratio": bound.ratio}
