"""The rows of budgets, while a write moves what is spent and reserved of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from perdure.core.budgets import UNITS, Amounts, BudgetRow, Limits
from perdure.core.limits import AMOUNT_MAX
from perdure.store.sqlite.transaction import Transaction, encode


class Account(msgspec.Struct):
    """A budget's row while it is decided what is reserved and what is spent."""

    row: BudgetRow
    changed: bool = False

    def move(self, *, spent: Amounts | None = None, reserved: Amounts | None = None, released: bool = False) -> None:
        """Add to what is spent, and to what is reserved, or take it from there."""
        row = self.row
        if spent is not None:
            row = msgspec.structs.replace(row, spent=_sum(row.spent, spent, 1))
        if reserved is not None:
            row = msgspec.structs.replace(row, reserved=_sum(row.reserved, reserved, -1 if released else 1))
        self.row, self.changed = row, True


def close_ended(tx: Transaction, runs: Sequence[int]) -> None:
    """Count what those of these runs that have ended had reserved, and nobody has settled, as spent for good."""
    left = tx.array("reservations_left", runs=encode(runs))
    accounts = held(tx, {budget for budget, *_ in left})
    for budget, *reserved in left:
        amounts = Amounts(*reserved)
        accounts[budget].move(spent=amounts, reserved=amounts, released=True)
    move_all(tx, accounts.values())
    tx.run("close_reservations", runs=encode(runs))


def held(tx: Transaction, budgets: Collection[int]) -> dict[int, Account]:
    """These budgets, with all that is reserved in them."""
    accounts = {}
    for id, *amounts in tx.array("budgets_held", ids=encode(sorted(budgets))):
        row = Limits(*amounts[:4]), Amounts(*amounts[4:8]), Amounts(*amounts[8:])
        accounts[id] = Account(BudgetRow(id, "", *row, rev=0, created_at=0, updated_at=0, by=None))
    return accounts


def move_all(tx: Transaction, accounts: Iterable[Account]) -> None:
    """The rows of those that have changed."""
    changed = [each.row for each in accounts if each.changed]
    tx.write("move_budgets", [(each.id, *parts(each.spent), *parts(each.reserved)) for each in changed])


def parts(amounts: Amounts | Limits) -> tuple[Any, ...]:
    return amounts.usd, amounts.tokens, amounts.steps, amounts.us


def _sum(some: Amounts, more: Amounts, sign: int) -> Amounts:
    sums = (getattr(some, unit) + sign * getattr(more, unit) for unit in UNITS)
    return Amounts(*(max(0, min(each, AMOUNT_MAX)) for each in sums))
