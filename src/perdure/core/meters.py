"""Meters: what runs have used, a row each, and their sums.

A meter's rows are written in the commit of the step that recorded them (`AppendCheckpoint.meters`), or, where its try
failed, with that try (`RecordAttempt.meters`); a replay writes none. Quantities are whole billionths, so that sums are
exact, whatever their order.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

import msgspec

from perdure.core.shown import shown
from perdure.errors import UsageError

UNIT: Final = 1_000_000_000
"""A quantity of 1, in billionths."""

QUANTITY_MAX: Final = 9_000_000_000
"""Of one meter: what fits 63 bits."""

ATTRIBUTES_BYTES_MAX: Final = 1024
"""Of one meter's attributes, encoded."""


class Meter(msgspec.Struct, frozen=True, gc=False):
    """Something used. `attributes` is a JSON object as text, its keys sorted; empty for none."""

    name: str
    quantity: int
    """In billionths; never negative."""
    attributes: bytes = b""


class MeterRow(msgspec.Struct, frozen=True, gc=False):
    """One meter as it is on record; unique by run, super-step, key, attempt, fence and number."""

    run: int
    super_step: int
    key: str
    attempt: int
    fence: int
    number: int
    """Which of its try's meters it is, from 0."""
    name: str
    quantity: int
    attributes: bytes
    at: int
    """When it was committed, on the store's clock."""


class UsageBy(StrEnum):
    """What usage is summed by."""

    TENANT = "tenant"
    AGENT = "agent"
    RUN = "run"
    DAY = "day"
    """Of the commit, in UTC."""


class UsageFilter(msgspec.Struct, frozen=True):
    """Which meters to sum, and by what. None means any; times are in microseconds, from `since` to before `until`;
    `after_fence` and `fence` bound the claims they were written under (after the one, up to the other). `after` is the
    group and the name of the last row of the page before."""

    by: UsageBy
    name: str | None = None
    tenant: str | None = None
    agent: str | None = None
    run: int | None = None
    since: int | None = None
    until: int | None = None
    after_fence: int | None = None
    fence: int | None = None
    limit: int = 1000
    after: tuple[str | int, str] | None = None


class UsageRow(msgspec.Struct, frozen=True):
    """A sum: rows come by group and name, each in its order (text by its code points, numbers as numbers)."""

    group: str | int
    """By tenant or agent its name ("" where there is no tenant); by run its number; by day the days since 1970."""
    name: str
    quantity: int
    """In billionths; may be larger than 64 bits."""
    entries: int
    """How many meters it sums."""


_EXACT: Final = Context(prec=64, rounding=ROUND_HALF_EVEN)
"""Whatever the caller's own context is."""


def billionths(quantity: object, what: str = "a quantity") -> int:
    """A quantity as it is recorded: exactly, or, of a float or a longer decimal, to the nearest billionth."""
    if isinstance(quantity, bool) or not isinstance(quantity, int | float | Decimal):
        raise UsageError(f"{what} is a number (int, float or Decimal), not {shown(quantity)}")
    try:
        exact = Decimal(float.__repr__(quantity)) if isinstance(quantity, float) else Decimal(quantity)
        if not exact.is_finite() or exact < 0 or exact > QUANTITY_MAX:
            raise UsageError(f"{what} is a number from 0 to {QUANTITY_MAX:,}, not {shown(quantity)}")
        return int(_EXACT.multiply(exact, UNIT).to_integral_value(context=_EXACT))
    except InvalidOperation:
        raise UsageError(f"{what} is a number from 0 to {QUANTITY_MAX:,}, not {shown(quantity)}") from None


def quantity(billionths: int) -> Decimal:
    """The number behind a recorded quantity, without zeros at its end."""
    whole, rest = divmod(billionths, UNIT)
    return Decimal(f"{whole}.{rest:09d}".rstrip("0").rstrip("."))


def attributes_bytes(attributes: dict[str, Any]) -> bytes:
    """Attributes as they are recorded: a small JSON object of text, numbers, booleans and nulls."""
    if not attributes:
        return b""
    for name, value in attributes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"meter attribute {name}={value}: JSON has no such number; give text")
        if value is not None and not isinstance(value, str | int | float | bool):
            raise UsageError(f"meter attribute {name}={shown(value)}: give text, a number, True, False or None")
    plain = {name: float(value) if isinstance(value, float) else value for name, value in attributes.items()}
    try:
        encoded = msgspec.json.encode(plain, order="sorted")
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"the attributes of a meter cannot be recorded: {error}") from error
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise UsageError(f"the attributes of a meter have {len(encoded)} bytes; at most {ATTRIBUTES_BYTES_MAX}")
    return encoded
