"""Absolute times as people write them, in microseconds since the epoch.

A time says where it is: an aware `datetime`, an ISO 8601 text with an offset, or a local time with the name of its zone
(`tz="Europe/Berlin"`, from the IANA database). A local time alone is refused, because the worker that reads it may be
anywhere.

Twice a year a zone's clocks make it hard to say which moment is meant. Two rules, the same for every zone:

- A local time that the clocks leave out (02:30 where they go from 02:00 to 03:00) means the first moment after the gap.
- A local time that comes twice means the first of the two, unless `fold=1` says the second (PEP 495).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from perdure.core.shown import shown
from perdure.errors import UsageError

_EPOCH: Final = datetime(1970, 1, 1)
_FIRST: Final = datetime.min - _EPOCH
_LAST: Final = datetime.max - _EPOCH
"""What can be shown again as a time in UTC; an offset may lead out of it by some hours, which matter to nobody."""

_SECOND: Final = timedelta(seconds=1)
_US: Final = timedelta(microseconds=1)


def earliest(*times: int | None) -> int | None:
    """The first of these times; None where there is none."""
    return min((time for time in times if time is not None), default=None)


def due_us(when: datetime | str, *, tz: str | None = None) -> int:
    """The moment that is meant; `tz` counts where `when` has no offset of its own. Raises `UsageError` for what is no
    time, or does not say where."""
    local = _parsed(when) if isinstance(when, str) else when
    if not isinstance(local, datetime):
        raise UsageError(f"{shown(when)} is not a time. {_REMEDY}")
    if local.utcoffset() is None:
        if tz is None:
            raise UsageError(f"{shown(when)} does not say in which time zone. {_REMEDY}")
        local = local.replace(tzinfo=_zone(tz))
    return min(max(_since_epoch(local), _FIRST), _LAST) // _US


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{shown(text)} is not a time: {error!s:.200}. {_REMEDY}") from None


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise UsageError(
            f"tz={shown(name)} is not the name of a time zone here ({error!s:.200}); they look like 'Europe/Berlin', "
            "and come with the system or with the package tzdata"
        ) from None


def _since_epoch(local: datetime) -> timedelta:
    """How long after the epoch an aware time is."""
    wall = local.replace(tzinfo=None, fold=0)
    first, second = (_offset(local, fold) for fold in (0, 1))
    if second > first:
        return _gap_end(local, wall - second, wall - first) - _EPOCH
    return wall - _EPOCH - (second if local.fold else first)


def _offset(local: datetime, fold: int) -> timedelta:
    return local.replace(fold=fold).utcoffset() or timedelta(0)


def _gap_end(local: datetime, before: datetime, after: datetime) -> datetime:
    """The moment between these two, in UTC, at which the clocks of the zone go forward; they do so at whole seconds."""
    zone = local.tzinfo
    assert zone is not None, "an aware time has a zone"

    def offset(utc: datetime) -> timedelta | None:
        return utc.replace(tzinfo=UTC).astimezone(zone).utcoffset()

    old = offset(before)
    low, high = 0, (after - before) // _SECOND + 1
    start = before.replace(microsecond=0)
    while high - low > 1:
        middle = (low + high) // 2
        if offset(start + middle * _SECOND) == old:
            low = middle
        else:
            high = middle
    return start + high * _SECOND


_REMEDY: Final = (
    "Give an aware datetime, such as datetime(2026, 12, 1, 9, tzinfo=ZoneInfo('Europe/Berlin')), text with an offset, "
    "such as '2026-12-01T09:00+01:00', or a local time with tz='Europe/Berlin'."
)
