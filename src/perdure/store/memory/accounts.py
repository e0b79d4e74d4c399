"""Budgets as rows: what the tables keep of them. What it means is in `budgets.py`."""

from __future__ import annotations

import msgspec

from perdure.core.budgets import Amounts, BudgetRow, total
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

    def spend(self, budget: int, amounts: Amounts) -> None:
        """Count this as spent for good."""
        row = self.rows[budget]
        self.rows[budget] = msgspec.structs.replace(row, spent=total([row.spent, amounts]))

    def close(self, run: int) -> None:
        """Count what tries of a run that has ended have reserved, and nobody has settled, as spent for good."""
        for place in [each for each in self.reservations if each[0] == run]:
            for budget, left in self.reservations.pop(place).items():
                self.spend(budget, left.amounts)
