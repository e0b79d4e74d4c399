"""Budgets: what runs may use, reserved before a try and settled after it.

A budget limits dollars, tokens, tries of steps and seconds of their bodies, any of them. A run counts against those
that it has been given, against all that its parent counts against, and against those of its agent and its tenant, where
there are such. Before a try of a step what it may cost is reserved (`Reserve`), in every budget or in none; the commit
of what it came to settles that (`Spent`). So however many spend at once, what is spent is never more than the limit and
what was in flight. What was reserved by a claim that is over, and was never settled, counts as spent: nobody knows
better. Where its run has ended it is added to that for good.

Amounts are whole numbers: billionths of a dollar, tokens, tries, microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from perdure.core.durations import Duration, microseconds
from perdure.core.limits import AMOUNT_MAX, DURATION_S_MAX, RESERVED_MAX
from perdure.core.meters import QUANTITY_MAX, UNIT, Meter, billionths, quantity
from perdure.core.shown import shown
from perdure.errors import UsageError

UNITS: Final = ("usd", "tokens", "steps", "us")

WHOLE_MAX: Final = 2**53 - 1
"""Of tokens and tries: what every JSON reader can tell from its neighbours."""

SCALES: Final = {"usd": UNIT, "tokens": 1, "steps": 1, "us": 1_000_000}
"""How many of an amount's units are one of a user's: a dollar, a token, a try, a second."""


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """What is used of each unit."""

    usd: int = 0
    tokens: int = 0
    steps: int = 0
    us: int = 0


UNKNOWN: Final = -1
"""Of what is wanted: nobody has said how much. Then the smallest amount must be left, and nothing is set aside."""

ONE_TRY: Final = Amounts(UNKNOWN, UNKNOWN, 1, UNKNOWN)
"""What a try wants that says nothing of what it may cost."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """How much may be used of each unit; None for no limit."""

    usd: int | None = None
    tokens: int | None = None
    steps: int | None = None
    us: int | None = None


class Spent(msgspec.Struct, frozen=True, gc=False):
    """What a try has used, in the commit of what it came to, and the budgets that it counts against."""

    budgets: tuple[int, ...]
    amounts: Amounts
    key: str | None = None
    """The step whose reservation a record settles, where that is not the record's own."""


class NewBudget(msgspec.Struct, frozen=True, gc=False):
    """A budget to be set: its limits, whether there is one of this name or not. `id` is a fresh number from
    `reserve_ids`; one that is there keeps its own. A run's own is named by the store (`run:r42`)."""

    id: int
    name: str
    limits: Limits


class BudgetRow(msgspec.Struct, frozen=True):
    """A budget, as it is read: what a claim that is over has reserved counts as spent."""

    id: int
    name: str
    """`run:r42`, `agent:NAME` or `tenant:NAME`."""
    limits: Limits
    spent: Amounts
    reserved: Amounts
    """By tries in flight."""
    rev: int
    """How often its limits were set."""
    created_at: int
    updated_at: int
    """When its limits were last set."""
    by: str | None
    """Who set them, where a person did."""


class BudgetFilter(msgspec.Struct, frozen=True):
    """Which budgets to list, by name, from after that one. None means any."""

    prefix: str | None = None
    """How the name begins: `tenant:`, say."""
    limit: int = 100
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be used: dollars, tokens, tries of steps, seconds of their bodies; None for no limit.

    Dollars and tokens are what `perdure.meter("usd", …)` and `perdure.meter("tokens", …)` say in a step.
    """

    usd: float | Decimal | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: Duration | None = None

    def __post_init__(self) -> None:
        limits_of(self)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a try of a step is expected to cost, at most; reserved before it. What is not said is not known: then some
    of it must be left. What is 0 is not used, and a try of it goes on where nothing is left."""

    usd: float | Decimal | None = None
    tokens: int | None = None
    seconds: Duration | None = None

    def __post_init__(self) -> None:
        amounts_of(self)


def limits_of(budget: Budget) -> Limits:
    """A budget's limits, checked."""
    limits = Limits(
        None if budget.usd is None else billionths(budget.usd, "usd"),
        None if budget.tokens is None else _whole("tokens", budget.tokens),
        None if budget.steps is None else _whole("steps", budget.steps),
        None if budget.seconds is None else microseconds(budget.seconds),
    )
    if limits == Limits():
        raise UsageError("a Budget limits something: give usd=, tokens=, steps= or seconds=")
    return limits


def amounts_of(cost: Cost) -> Amounts:
    """What one try may cost, checked; the try itself is one step."""
    return Amounts(
        ONE_TRY.usd if cost.usd is None else billionths(cost.usd, "usd"),
        ONE_TRY.tokens if cost.tokens is None else _whole("tokens", cost.tokens),
        1,
        ONE_TRY.us if cost.seconds is None else microseconds(cost.seconds),
    )


def used(meters: tuple[Meter, ...], *, steps: int, us: int) -> Amounts:
    """What a try has used, by its meters, and by itself. Parts of a token are whole ones."""
    usd = sum(meter.quantity for meter in meters if meter.name == "usd")
    tokens = sum(meter.quantity for meter in meters if meter.name == "tokens")
    return Amounts(usd, -(-tokens // UNIT), steps, us)


def lacking(row: BudgetRow, wanted: Amounts, *, in_flight: bool = True) -> tuple[str, ...]:
    """The units of which the budget has not enough for this. What is in flight counts as well, unless that is left out.
    (Of what it wants nothing of, it lacks nothing, though that may be spent and more.)"""
    short = []
    for unit in UNITS:
        limit = getattr(row.limits, unit)
        taken = getattr(row.spent, unit) + (getattr(row.reserved, unit) if in_flight else 0)
        more = abs(getattr(wanted, unit))
        if limit is not None and more and taken + more > limit:
            short.append(unit)
    return tuple(short)


def set_aside(wanted: Amounts) -> Amounts:
    """What is reserved where this is wanted."""
    return Amounts(*(min(max(getattr(wanted, unit), 0), RESERVED_MAX) for unit in UNITS))


def total(amounts: Iterable[Amounts]) -> Amounts:
    """All of them together."""
    each = list(amounts)
    return Amounts(*(min(sum(getattr(one, unit) for one in each), AMOUNT_MAX) for unit in UNITS))


def in_users_units(amounts: Amounts | Limits) -> dict[str, float | int | None]:
    """Amounts as people say them: `{"usd": 1.25, "tokens": 900, "steps": 3, "seconds": 0.2}`."""
    usd, us = amounts.usd, amounts.us
    return {
        "usd": None if usd is None else float(quantity(usd)),
        "tokens": amounts.tokens,
        "steps": amounts.steps,
        "seconds": None if us is None else us / SCALES["us"],
    }


def _whole(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= WHOLE_MAX:
        raise UsageError(f"{what} is {shown(value)}; give a whole number, not negative")
    return value


RAISE_OR_STOP: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "raise_to": {
            "type": "object",
            "description": "the new limits, in dollars, tokens, tries or seconds; those left out stay as they are",
            "properties": {
                "usd": {"type": "number", "exclusiveMinimum": 0, "maximum": QUANTITY_MAX},
                "tokens": {"type": "integer", "minimum": 1, "maximum": WHOLE_MAX},
                "steps": {"type": "integer", "minimum": 1, "maximum": WHOLE_MAX},
                "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": DURATION_S_MAX},
            },
            "minProperties": 1,
            "additionalProperties": False,
        },
        "stop": {"const": True, "description": "the step fails with BudgetExceeded"},
    },
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
"""Of the answer to the question whether a budget is raised."""


class _Raise(msgspec.Struct):
    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None


class _Answer(msgspec.Struct):
    raise_to: _Raise | None = None
    stop: bool = False


def raised(answer: bytes, limits: Limits) -> Limits | None:
    """The limits that a person's answer asks for, none of them below what it is; None where it says to stop."""
    told = msgspec.msgpack.decode(answer, type=_Answer).raise_to
    if told is None:
        return None
    asked = limits_of(Budget(told.usd, told.tokens, told.steps, told.seconds))
    return Limits(*(_higher(getattr(limits, unit), getattr(asked, unit)) for unit in UNITS))


def _higher(limit: int | None, asked: int | None) -> int | None:
    """A limit raised; one that there is not stays none."""
    return limit if limit is None or asked is None else max(limit, asked)
