"""What a question about a budget says, in a few words: which step needs what, and what came of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from perdure.cli.verbs import shown_key
from perdure.core.budgets import BudgetRow
from perdure.core.display import render
from perdure.core.records import Interrupt, InterruptState
from perdure.core.snapshot import spilled
from perdure.terminal.text import clean

BUDGET: Final = "budget"
"""What such a question is called."""

_PLACE: Final = re.compile(r"^~(\d+)\$(\d+)$", re.ASCII)

WHOLE: Final = 4_096
"""Characters of such a question that are read; no real one is longer."""

Budgets = Mapping[int, BudgetRow]
"""By id."""


def about(asked: Interrupt) -> tuple[int, int] | None:
    """The budget that a question is about, and how often that was set before; None for other questions."""
    found = _PLACE.match(asked.key) if asked.name == BUDGET else None
    return None if found is None else (int(found[1]), int(found[2]))


def payload_of(asked: Interrupt) -> dict[str, Any]:
    """What such a question says; nothing where it is none."""
    if about(asked) is None or spilled(asked.payload) is not None:
        return {}
    payload = render(asked.payload, WHOLE)
    return payload if isinstance(payload, dict) else {}


def named(payload: Mapping[str, Any]) -> str:
    """The budget that is meant: `run:r42`."""
    return clean(str(payload.get("budget", "")))


def label(asked: Interrupt) -> str:
    """Such a question in a timeline, which has keys of steps there."""
    return f"{BUDGET} {named(payload_of(asked))}".rstrip() + "?"


def need(payload: Mapping[str, Any]) -> str | None:
    """What is asked: `book needs more usd: 0.85 of 0.8 spent (run:r2)`. None where that cannot be told."""
    limit, spent, wanted = (amounts(payload.get(name)) for name in ("limit", "spent", "wanted"))
    lacks = short_of(limit, spent, wanted)
    if not lacks or not named(payload):
        return None
    how = " and ".join(f"{_number(spent.get(unit, 0))} of {_number(limit[unit])}" for unit in lacks)
    what = f"more {' and '.join(lacks)}"
    if len(lacks) == 1 and spent.get(lacks[0], 0) < limit[lacks[0]]:  # something is left, but not that much
        what = f"{_number(wanted[lacks[0]])} {lacks[0]}"
    who = clean(shown_key(str(payload.get("step", "")))) or "a step"
    return f"{who} needs {what}: {how} spent ({named(payload)})"


def short_of(
    limit: Mapping[str, float], spent: Mapping[str, float], wanted: Mapping[str, float]
) -> list[str]:  # fmt: skip
    """The limited units of which there is not enough."""
    return [
        unit
        for unit in limit
        if spent.get(unit, 0) >= limit[unit] or spent.get(unit, 0) + wanted.get(unit, 0) > limit[unit]
    ]


def amounts(given: Any) -> dict[str, float]:
    """Units with their numbers."""
    said = given.items() if isinstance(given, dict) else ()
    return {str(unit): value for unit, value in said if isinstance(value, int | float) and not isinstance(value, bool)}


def _number(value: float) -> str:
    """As people write it: 0.85, 12,000."""
    if isinstance(value, int) or value.is_integer():
        return f"{int(value):,}"
    return f"{value:,.9f}".rstrip("0")


# -- what came of it ------------------------------------------------------------------------------------------------


def said(answer: Any) -> str | None:
    """What somebody has answered: `raised it to 1.5 usd`."""
    match answer:
        case {"raise_to": dict() as raised} if amounts(raised):
            return "raised it to " + " and ".join(f"{_number(value)} {unit}" for unit, value in amounts(raised).items())
        case {"stop": True}:
            return "said to stop"
        case _:
            return None


def closed_at(asked: Interrupt, budgets: Budgets) -> int | None:
    """When it was answered, or the budget was set; None where that is not known."""
    if asked.answered_at is not None:
        return asked.answered_at
    row = _as_it_was_set(asked, budgets)
    return None if row is None else row.updated_at


def setting(asked: Interrupt, budgets: Budgets) -> str | None:
    """Who has set the budget, so that nobody had to answer any more: `ann has set run:r2`. None where none has."""
    found = about(asked)
    row = budgets.get(found[0]) if found is not None else None
    if asked.state is not InterruptState.WITHDRAWN or found is None or row is None or row.rev <= found[1]:
        return None
    if row.rev > found[1] + 1 or row.by is None:
        return f"{clean(row.name)} was set"
    return f"{clean(row.by)} has set {clean(row.name)}"


def _as_it_was_set(asked: Interrupt, budgets: Budgets) -> BudgetRow | None:
    """The budget, where its last setting is the one that came after the question."""
    found = about(asked)
    row = budgets.get(found[0]) if found is not None and setting(asked, budgets) is not None else None
    return row if row is not None and found is not None and row.rev == found[1] + 1 else None
