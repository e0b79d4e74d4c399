"""Limits and times as people give them to a command. What is wrong with one is said in words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

from perdure.core.durations import seconds
from perdure.core.limits import DURATION_S_MAX
from perdure.errors import UsageError
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.core.budgets import Budget

UNITS: Final = ("usd", "tokens", "steps", "seconds")

_WHOLE: Final = ("tokens", "steps")

_DAY: Final = re.compile(r"\d{4}-", re.ASCII)
_CLOCK: Final = re.compile(r"\d\d-\d\d[T ]\d\d:", re.ASCII)
"""What comes behind it in a time as it is written here."""

_TIME: Final = "2026-11-01T09:00+01:00"


def limit(option: str, unit: str, text: str) -> float | Decimal:
    """A limit of that unit. Raises `UsageError`."""
    shown = clean(text)
    if unit == "seconds":
        return duration(option, text)
    try:
        value = int(text) if unit in _WHOLE else Decimal(text)
    except (ValueError, InvalidOperation):
        whole = "whole number" if unit in _WHOLE else "number"
        raise UsageError(f"{option} {shown!r} is no {whole}; give one, from 0") from None
    if (isinstance(value, Decimal) and not value.is_finite()) or value < 0:
        raise UsageError(f"{option} {shown!r} is no limit; give a number from 0")
    return value


def duration(option: str, text: str) -> float:
    """A span of time, in seconds: `90`, `90s`, `1h30m`. Raises `UsageError`."""
    try:
        return seconds(float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text.strip(), re.ASCII) else text)
    except (UsageError, ValueError):
        days = f"{DURATION_S_MAX / 86_400:,.0f}"
        shown = clean(text)
        said = f"{option} {shown!r} is no time; give seconds, or 90s, 2h, 1h30m, up to {days} days"
        raise UsageError(said) from None


def budget_of(option: str, given: Iterable[str]) -> Budget | None:
    """What `--budget usd=5,tokens=100 --budget steps=3` says; None where it is not given."""
    from perdure.core.budgets import Budget

    limits: dict[str, float | Decimal] = {}
    for part in (part for text in given for part in text.split(",")):
        unit, equals, amount = (word.strip() for word in part.partition("="))
        if not equals or unit not in UNITS:
            said = f"usd=5, or several: usd=5,tokens=1000 (of {', '.join(UNITS)})"
            raise UsageError(f"{option} {clean(part)!r} is no limit; give {said}")
        if unit in limits:
            raise UsageError(f"{option} names {unit} twice; give one limit of it")
        limits[unit] = limit(f"{option} {unit}", unit, amount)
    return Budget(**limits) if limits else None  # type: ignore[arg-type]


def deadline(text: str | None) -> float | datetime | None:
    """A deadline as it was given: so long from now, or a time with its offset. Raises `UsageError`."""
    if text is None:
        return None
    shown, day = clean(text), _DAY.match(text)
    if day is None:
        try:
            return duration("--deadline", text)
        except UsageError as error:
            raise UsageError(f"{error}; or a time with its offset ({_TIME})") from None
    if not _CLOCK.match(text, day.end()):
        raise UsageError(f"--deadline {shown!r} is no time of a day; give one, with its offset, as in {_TIME}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--deadline {shown!r} is no time; it looks like {_TIME}") from None
    if moment.utcoffset() is None:
        said = f"give its offset too: {shown}Z, say, in UTC, or {shown}+01:00"
        raise UsageError(f"--deadline {shown!r} does not say in which time zone; {said}")
    return moment


def day_or_time(option: str, text: str) -> date | datetime:
    """A day, or a time with its offset. Raises `UsageError`."""
    shown = clean(text)
    try:
        return date.fromisoformat(text) if len(text) <= len("2026-11-01") else _time(option, text)
    except ValueError:
        raise UsageError(
            f"{option} {shown!r} is neither a day nor a time; give a day (2026-11-01), or a time with its offset "
            f"({_TIME})"
        ) from None


def _time(option: str, text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise UsageError(
            f"{option} {clean(text)!r} does not say in which time zone; give its offset too, as in {_TIME}"
        )
    return moment
