"""Budgets: what was spent, and what is reserved for which try.

A budget's row has what was spent for good; a reservation lies beside it, under its step. Nothing here writes that a
claim is over: whether one's reservation counts as spent is a question to its run's row, asked anew each time (`seen`),
until the run ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.budgets import Amounts, BudgetFilter, BudgetRow, NewBudget, lacking, set_aside, total
from perdure.core.changes import AppendCheckpoint, NewInterrupt, RecordAttempt, Reserve
from perdure.core.records import InterruptState, Run, RunState, WaitKind, budget_name
from perdure.core.requests import Bounce, StartRun
from perdure.store.memory.accounts import Reservation
from perdure.store.memory.tables import Tables
from perdure.store.pages import page_size

# -- which a run counts against ------------------------------------------------------------------------------


def give(tables: Tables, ask: StartRun, *, now: int) -> None:
    """Give a new run its own budget, and all that its parent counts against."""
    own: list[int] = []
    if ask.budget is not None:
        new = msgspec.structs.replace(ask.budget, name=budget_name(ask.id))
        own = [_set_limits(tables, new, None, now=now).id]
    inherited = () if ask.parent is None else of_run(tables, tables.runs[ask.parent.run])
    if own or inherited:
        tables.accounts.given[ask.id] = tuple(sorted({*own, *inherited}))


def of_run(tables: Tables, run: Run) -> tuple[int, ...]:
    """What a run counts against now, by id."""
    names = [f"agent:{run.agent}", *([] if run.tenant is None else [f"tenant:{run.tenant}"])]
    named = (tables.accounts.by_name[name] for name in names if name in tables.accounts.by_name)
    return tuple(sorted({*tables.accounts.given.get(run.id, ()), *named}))


# -- what commits write --------------------------------------------------------------------------------------


def bounce(tables: Tables, change: Reserve) -> Bounce | None:
    """Why nothing is reserved; None where there is enough, or where it is there already."""
    if _is_done(tables, change):
        return None
    rows = (seen(tables, tables.accounts.rows[each]) for each in change.budgets if each in tables.accounts.rows)
    return Bounce.BUDGET if any(lacking(row, change.amounts) for row in rows) else None


def reserve(tables: Tables, change: Reserve) -> None:
    """Reserve, and count what another claim has reserved for this step as spent."""
    if _is_done(tables, change):
        return
    at = change.run, change.super_step, change.key
    for budget, old in tables.accounts.reservations.pop(at, {}).items():
        tables.accounts.spend(budget, old.amounts)
    there = [each for each in change.budgets if each in tables.accounts.rows]
    if there:
        tables.accounts.reservations[at] = dict.fromkeys(there, Reservation(change.fence, set_aside(change.amounts)))


def _is_done(tables: Tables, change: Reserve) -> bool:
    """Whether this is a batch sent again: its step is on record, or this very claim has reserved for it."""
    at = change.run, change.super_step, change.key
    recorded = at[1:] in tables.checkpoints[change.run]
    return recorded or any(each.fence == change.fence for each in tables.accounts.reservations.get(at, {}).values())


def settle(tables: Tables, change: AppendCheckpoint | RecordAttempt) -> None:
    """Count what a try has used, and release what was reserved for it; before it is on record itself. A try that is not
    its step's record counts only where that is there: else it has been counted."""
    if change.spent is None or (isinstance(change, RecordAttempt) and _is_settled(tables, change)):
        return
    tables.accounts.reservations.pop((change.run, change.super_step, change.spent.key or change.key), None)
    for budget in change.spent.budgets:
        if budget in tables.accounts.rows:
            tables.accounts.spend(budget, change.spent.amounts)


def _is_settled(tables: Tables, change: RecordAttempt) -> bool:
    """Whether this is a batch sent again: the try's end is on record under this fence, or nothing is reserved by it."""
    at = change.super_step, change.key
    told = tables.attempts[change.run].get((*at, change.attempt))
    if told is not None and told.fence == change.fence and told.error is not None:
        return True
    return not any(
        each.fence == change.fence for each in tables.accounts.reservations.get((change.run, *at), {}).values()
    )


def stands(tables: Tables, question: NewInterrupt) -> bool:
    """Whether the question is still to be asked: not one about a budget that was set since it was read."""
    if question.budget is None:
        return True
    budget, rev = question.budget
    return budget in tables.accounts.rows and tables.accounts.rows[budget].rev == rev


# -- people --------------------------------------------------------------------------------------------------


def set_limits(tables: Tables, new: NewBudget, by: str | None, *, if_rev: int | None, now: int) -> BudgetRow:
    """Set a budget's limits, and withdraw the questions about it."""
    known = tables.accounts.by_name.get(new.name)
    if known is not None and if_rev not in (None, tables.accounts.rows[known].rev):
        return seen(tables, tables.accounts.rows[known])
    row = _set_limits(tables, new, by, now=now)
    for interrupt in [each for each, budget in tables.accounts.about.items() if budget == row.id]:
        asked = tables.interrupts[interrupt]
        if asked.state is InterruptState.OPEN:
            tables.interrupts[interrupt] = msgspec.structs.replace(asked, state=InterruptState.WITHDRAWN)
            tables.wake_all(WaitKind.ANSWER, interrupt)
    return seen(tables, row)


def _set_limits(tables: Tables, new: NewBudget, by: str | None, *, now: int) -> BudgetRow:
    known = tables.accounts.by_name.get(new.name)
    if known is not None:
        before = tables.accounts.rows[known]
        row = msgspec.structs.replace(before, limits=new.limits, rev=before.rev + 1, updated_at=now, by=by)
    else:
        row = BudgetRow(
            id=new.id,
            name=new.name,
            limits=new.limits,
            spent=Amounts(),
            reserved=Amounts(),
            rev=1,
            created_at=now,
            updated_at=now,
            by=by,
        )
    tables.accounts.rows[row.id], tables.accounts.by_name[row.name] = row, row.id
    return row


# -- reading -------------------------------------------------------------------------------------------------


def seen(tables: Tables, row: BudgetRow) -> BudgetRow:
    """The row as others see it: what a claim that is over has reserved is spent."""
    reserved: list[Amounts] = []
    lost = [row.spent]
    for (run, _, _), those in tables.accounts.reservations.items():
        if (reservation := those.get(row.id)) is not None:
            owner = tables.runs[run]
            in_flight = owner.state is RunState.RUNNING and owner.fence == reservation.fence
            (reserved if in_flight else lost).append(reservation.amounts)
    return msgspec.structs.replace(row, spent=total(lost), reserved=total(reserved))


def get(tables: Tables, budgets: Sequence[int]) -> list[BudgetRow]:
    return [seen(tables, tables.accounts.rows[each]) for each in sorted(set(budgets)) if each in tables.accounts.rows]


def page(tables: Tables, where: BudgetFilter) -> list[BudgetRow]:
    """Budgets, by name."""
    names = [
        name
        for name in sorted(tables.accounts.by_name)
        if (where.prefix is None or name.startswith(where.prefix)) and (where.after is None or name > where.after)
    ]
    return [
        seen(tables, tables.accounts.rows[tables.accounts.by_name[name]]) for name in names[: page_size(where.limit)]
    ]
