"""Budgets as rows: what the tables keep of them. What it means is in `budgets.py`."""

from __future__ import annotations

import msgspec

from perdure.core.budgets import Amounts, BudgetRow
from perdure.core.changes import Place


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What a claim has reserved in a budget for a try of a step."""

    fence: int
    amounts: Amounts


class Accounts:
    """Budgets, and who counts against them."""

    def __init__(self) -> None:
        self.rows: dict[int, BudgetRow] = {}
        """With what was spent for good; nothing is reserved in them."""
        self.by_name: dict[str, int] = {}
        self.given: dict[int, tuple[int, ...]] = {}
        """A run to its own budget and its parent's."""
        self.reservations: dict[Place, dict[int, Reservation]] = {}
        """A step to the budgets in which it has reserved."""
        self.about: dict[int, int] = {}
        """An interrupt to the budget that it asks about."""
