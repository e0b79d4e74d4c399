"""The question whether a budget is raised, on its page: what to type."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from rich.text import Text

from perdure.cli.budget_words import amounts, short_of
from perdure.cli.remedies import command
from perdure.core.budgets import RAISE_OR_STOP
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.client.inbox import InterruptInfo
    from perdure.terminal.page import Page


def asks_for_budget(info: InterruptInfo) -> bool:
    """Whether a step asks for more, and not an agent for something of its own."""
    return info.schema == RAISE_OR_STOP and isinstance(info.payload, dict)


def print_choices(page: Page, info: InterruptInfo) -> None:
    """Both answers, and where to see how the budget stands."""
    raised = json.dumps({"raise_to": enough(info.payload)})
    for label, words in (
        ("to raise it: ", f"perdure resume {info.id} {shlex.quote(raised)}"),
        ("to have the step fail: ", f"perdure resume {info.id} {shlex.quote(json.dumps({'stop': True}))}"),
        ("to see how it stands: ", f"perdure budgets show {shlex.quote(clean(str(info.payload.get('budget'))))}"),
    ):
        page.print(Text.assemble((label, "bold"), command(words)), overflow="fold")


def enough(asked: dict[str, Any]) -> dict[str, float]:
    """Limits with which the step could go on: twice what it needs of what is short."""
    limit, spent, wanted = (amounts(asked.get(name)) for name in ("limit", "spent", "wanted"))
    need = {unit: spent.get(unit, 0) + wanted.get(unit, 0) for unit in limit}
    short = short_of(limit, spent, wanted)
    return {unit: _round(2 * max(need[unit], limit[unit])) for unit in short or limit} or {"usd": 1}


def _round(value: float) -> float:
    """A number that is nice to read, and a whole one where it was; a limit of nothing becomes 1."""
    return value or 1 if isinstance(value, int) else float(f"{value:.3g}") or 1
