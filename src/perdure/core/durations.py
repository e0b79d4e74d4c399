"""Durations as people write them: `90`, `"90s"`, `"1.5h"`, `"1h30m"`, `timedelta(days=2)`."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

from perdure.core.limits import DURATION_S_MAX
from perdure.core.shown import shown
from perdure.errors import UsageError

Duration = float | str | timedelta

UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

_PART: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|[smhdw])\s*", re.ASCII)


def seconds(value: Duration, *, what: str = "a duration") -> float:
    """A duration in seconds, 0 or more. Raises `UsageError` for anything that is none."""
    match value:
        case timedelta():
            amount = value.total_seconds()
        case str():
            amount = _parse(value, what)
        case int() | float() if not isinstance(value, bool):
            amount = float(value) if abs(value) < DURATION_S_MAX * 2 else math.inf
        case _:
            raise UsageError(f"{shown(value)} is not {what}. {_REMEDY}")
    if not 0 <= amount <= DURATION_S_MAX:
        raise UsageError(f"{shown(value)} is not {what} between 0 and {DURATION_S_MAX / UNITS_S['d']:,.0f} days.")
    return amount


def microseconds(value: Duration, *, what: str = "a duration") -> int:
    """The same in whole microseconds, to the nearest."""
    return round(seconds(value, what=what) * 1_000_000)


def _parse(text: str, what: str) -> float:
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text.strip()) != "" or len({unit for _, unit in parts}) != len(parts):
        raise UsageError(f"{shown(text)} is not {what}. {_REMEDY}")
    return sum(float(number) * UNITS_S[unit] for number, unit in parts)


_REMEDY: Final = 'Give a number of seconds, a timedelta, or text like "90s", "1.5h", "1h30m", "2d".'
