"""Budgets: what is spent of them, and what is reserved in them for which try.

A budget's row has what was spent for good and the sum of all its reservations; a reservation lies beside it, under its
step. A batch's reservations and what settles them are decided in their order on these rows, and are then written as
sets. Nobody writes that a claim is over: whether a reservation counts as spent is decided when it is read, until its
run ends (`waiters.after_end`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from perdure.core.budgets import Amounts, BudgetFilter, BudgetRow, NewBudget, lacking, set_aside
from perdure.core.changes import AppendCheckpoint, Change, Place, RecordAttempt, Reserve, record_of
from perdure.core.requests import Bounce
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.accounts import Account, held, move_all, parts
from perdure.store.sqlite.transaction import Reader, Transaction, decode, encode
from perdure.store.sqlite.waiters import wake

LAST: Final = "\U0010ffff"
"""Behind every name that begins as another one does."""


class Reservation(msgspec.Struct, frozen=True):
    """What a claim has reserved in one budget for a try of a step."""

    fence: int
    amounts: Amounts


Reservations = dict[int, Reservation]
"""By budget."""


class Spendings:
    """What a batch reserves and settles."""

    def __init__(self, tx: Transaction, changes: Iterable[Change]) -> None:
        self.tx = tx
        self.at: dict[Place, Reservations] = {}
        self.before: dict[Place, Reservations] = {}
        self.ended: set[tuple[int, int, str, int, int]] = set()
        """Tries that are on record, with their fences."""
        self.accounts: dict[int, Account] = {}
        reserves = [each for each in changes if isinstance(each, Reserve)]
        spenders = [each for change in changes if (each := spender(change)) is not None]
        if reserves or spenders:
            self._read(reserves, spenders)

    def _read(self, reserves: Sequence[Reserve], spenders: Sequence[AppendCheckpoint | RecordAttempt]) -> None:
        places = sorted({_place(each) for each in (*reserves, *spenders)})
        self.at = {place: {} for place in places}
        for cursor in self.tx.spread("reservations_at", places):
            for run, super_step, key, budget, fence, *amounts in decode(cursor.fetchone()[0]):
                self.at[run, super_step, key][budget] = Reservation(fence, Amounts(*amounts))
        self.before = {place: dict(there) for place, there in self.at.items()}
        tries = {(*_place(each), each.attempt) for each in spenders if isinstance(each, RecordAttempt)}
        for cursor in self.tx.spread("tries_ended", sorted(tries)):
            self.ended |= {(run, step, key, n, fence) for run, step, key, n, fence in decode(cursor.fetchone()[0])}
        ids = {budget for there in self.at.values() for budget in there}
        ids.update(budget for each in reserves for budget in each.budgets)
        ids.update(budget for each in spenders if each.spent is not None for budget in each.spent.budgets)
        self.accounts = held(self.tx, ids)

    def why_not(self, change: Reserve) -> Bounce | None:
        """Why nothing is reserved; None where there is enough, or where this claim has done it before."""
        if self._is_done(change):
            return None
        short = (lacking(account.row, change.amounts) for account in self._accounts(change.budgets))
        return Bounce.BUDGET if any(short) else None

    def reserve(self, change: Reserve) -> None:
        """Reserve for a try. What another claim has reserved for the step is spent."""
        if self._is_done(change):
            return
        self._release(_place(change), spend=True)
        mine = Reservation(change.fence, set_aside(change.amounts))
        for account in self._accounts(change.budgets):
            account.move(reserved=mine.amounts)
            self.at[_place(change)][account.row.id] = mine

    def settle(self, change: AppendCheckpoint | RecordAttempt) -> None:
        """Count what a try has used, and release what was reserved for it. One that is not its step's record counts
        only where this claim's reservation for it is there: else it has been counted."""
        if change.spent is None:
            return
        if isinstance(change, RecordAttempt):
            if not self._is_news(change):
                return
            self.ended.add((*_place(change), change.attempt, change.fence))
        self._release(_place(change), spend=False)
        for account in self._accounts(change.spent.budgets):
            account.move(spent=change.spent.amounts)

    def _is_news(self, change: RecordAttempt) -> bool:
        """Whether the try has not been counted. (In a batch sent again the reservation may be the next try's.)"""
        told = (*_place(change), change.attempt, change.fence) in self.ended
        return not told and self._holds(_place(change), change.fence)

    def _is_done(self, change: Reserve) -> bool:
        return self._holds(_place(change), change.fence)

    def _holds(self, place: Place, fence: int) -> bool:
        return any(each.fence == fence for each in self.at[place].values())

    def _release(self, place: Place, *, spend: bool) -> None:
        for budget, old in self.at[place].items():
            self.accounts[budget].move(spent=old.amounts if spend else None, reserved=old.amounts, released=True)
        self.at[place] = {}

    def _accounts(self, budgets: Iterable[int]) -> list[Account]:
        return [self.accounts[each] for each in dict.fromkeys(budgets) if each in self.accounts]

    def write(self) -> None:
        """The rows of what has changed."""
        tx = self.tx
        moved = [place for place, there in self.at.items() if there != self.before[place]]
        tx.write("release_reservations", [place for place in moved if self.before[place]])
        reserved = [(place, budget, each) for place in moved for budget, each in self.at[place].items()]
        tx.write("insert_reservations", [(*at, budget, r.fence, *parts(r.amounts)) for at, budget, r in reserved])
        move_all(tx, self.accounts.values())


def spender(change: Change) -> AppendCheckpoint | RecordAttempt | None:
    """The record or the try of this change that says what it has spent."""
    told = change if isinstance(change, RecordAttempt) else record_of(change)
    return told if told is not None and told.spent is not None else None


def _place(change: Reserve | AppendCheckpoint | RecordAttempt) -> Place:
    """The step that it is about."""
    other = None if isinstance(change, Reserve) or change.spent is None else change.spent.key
    return change.run, change.super_step, other or change.key


# -- which a run counts against ------------------------------------------------------------------------------


def budget_rows(budgets: Iterable[NewBudget], now: int) -> list[tuple[Any, ...]]:
    """The rows of new budgets."""
    return [(each.id, each.name, *parts(each.limits), now, now) for each in budgets]


def named(reader: Reader, names: Collection[str]) -> dict[str, int]:
    """The budgets of these names."""
    found: dict[str, int] = {}
    for cursor in reader.spread("budgets_named", [(name,) for name in names]):
        found |= dict(decode(cursor.fetchone()[0]))
    return found


# -- people --------------------------------------------------------------------------------------------------


def set_budget(tx: Transaction, budget: NewBudget, by: str | None, *, if_rev: int | None) -> BudgetRow:
    """Set a budget's limits, withdraw the questions about it, and wake who waits for their answers."""
    known = named(tx, [budget.name]).get(budget.name)
    if known is not None and if_rev is not None:
        (before,) = get_budgets(tx, [known])
        if before.rev != if_rev:
            return before
    usd, tokens, steps, us = parts(budget.limits)
    values = {"usd": usd, "tokens": tokens, "steps": steps, "us": us, "by": by, "now": tx.now}
    tx.run("set_budget", id=budget.id, name=budget.name, **values)
    id = named(tx, [budget.name])[budget.name]
    if asking := tx.array("asking_about_budget", budget=id):
        tx.run("withdraw_interrupts", ids=encode([interrupt for interrupt, _ in asking]))
        wake(tx, {run for _, run in asking if run is not None})
    return get_budgets(tx, [id])[0]


def budgets(reader: Reader, where: BudgetFilter) -> list[BudgetRow]:
    prefix = where.prefix or ""
    values = {"prefix": prefix, "past": prefix + LAST, "after": where.after or "", "limit": page_size(where.limit)}
    found = {each.id: each for each in get_budgets(reader, reader.array("budget_page", **values))}
    return sorted(found.values(), key=lambda row: row.name)


def get_budgets(reader: Reader, budgets: Sequence[int]) -> list[BudgetRow]:
    return reader.records("get_budgets", rows.BUDGET, ids=encode(list(budgets)))
