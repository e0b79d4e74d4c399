"""Answers to the question whether a budget is raised: one that would only have it asked again is refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.core.meters import UNIT
from perdure.errors import InvalidAnswer

BUDGET: Final = "budget"
"""What such a question is called."""


def check_raise(asked: Any, answer: Any) -> None:
    """Refuse to raise a budget to limits under which the step lacks what it lacks now. A question that does not say how
    its budget stands takes any limit. Raises `InvalidAnswer`."""
    raised = answer.get("raise_to") if isinstance(answer, Mapping) else None
    if not isinstance(asked, Mapping) or not isinstance(asked.get("budget"), str) or not isinstance(raised, Mapping):
        return
    limit, spent, wanted = (_amounts(asked.get(name)) for name in ("limit", "spent", "wanted"))
    if not limit:
        return
    refused = [_refusal(unit, value, limit, spent, wanted) for unit, value in raised.items()]
    if all(why is not None for why in refused):
        why = "; ".join(why for why in refused if why is not None)
        raise InvalidAnswer(f"{why}. The question stays open.", path="$.raise_to")


def _refusal(
    unit: str, value: Any, limit: Mapping[str, float], spent: Mapping[str, float], wanted: Mapping[str, float]
) -> str | None:
    """Why this limit does not let the step go on; None where it may."""
    if unit not in limit:
        return f"the budget has no limit of {unit}, but of {', '.join(limit)}"
    taken, more = spent.get(unit, 0), wanted.get(unit, 0)
    if limit[unit] > taken and limit[unit] >= taken + more:
        return f"{_number(limit[unit])} {unit} is not what is short"
    if _exact(value) <= _exact(limit[unit]):
        return f"{_number(value)} is not above the limit {_number(limit[unit])}"
    if _exact(value) <= _exact(taken):
        return f"{_number(value)} leaves nothing: {_number(taken)} {unit} is spent"
    if _exact(value) < _exact(taken + more):
        return f"{_number(value)} is not enough: {_number(taken)} {unit} is spent, and a try wants {_number(more)}"
    return None


def _amounts(given: Any) -> dict[str, float]:
    said = given.items() if isinstance(given, Mapping) else ()
    return {str(unit): value for unit, value in said if isinstance(value, int | float) and not isinstance(value, bool)}


def _exact(value: float) -> int:
    """In billionths, as limits are kept."""
    return round(value * UNIT)


def _number(value: float) -> str:
    text = f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return text or "0"
