"""Budgets for people: what tenants, agents and runs may use, and how far they are.

Whoever sets a budget sets its limits, all of them: what is spent and reserved stays. Runs that asked because of it look
again, and go on if there is enough by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from perdure.client.connection import Client
from perdure.client.requests import page_limit
from perdure.core.budgets import Budget, BudgetFilter, BudgetRow, Limits, NewBudget, in_users_units, limits_of
from perdure.core.records import budget_name, parse_run_id
from perdure.core.shown import shown
from perdure.errors import Conflict, NotFound, UsageError
from perdure.runtime.info import moment
from perdure.runtime.patience import patiently
from perdure.runtime.settings import check_name
from perdure.runtime.starting import checked_id
from perdure.store.protocol import Store

InUnits = dict[str, float | int | None]
"""By `usd`, `tokens`, `steps` and `seconds`."""


@dataclass(frozen=True, slots=True)
class BudgetInfo:
    """A budget, as it was when it was read."""

    name: str
    """`tenant:acme`, `agent:order`, or `run:r42`."""
    limits: InUnits
    """How much may be used; None for no limit."""
    spent: InUnits
    """What was used, and what nobody knows to have been used or not."""
    reserved: InUnits
    """By tries in flight: it counts against the limits too."""
    rev: int
    """How often its limits were set."""
    created_at: datetime
    updated_at: datetime
    """When its limits were last set."""
    by: str | None
    """Who set them, where a person did."""


# -- reading --------------------------------------------------------------------------------------------------------


def budget_filter(*, prefix: str | None, limit: int, after: str | None) -> BudgetFilter:
    """Which budgets to list; a name that nothing can have is refused."""
    return BudgetFilter(
        prefix=None if prefix is None else checked_id("a prefix", prefix),
        limit=page_limit(limit),
        after=None if after is None else checked_id("a budget's name", after),
    )


async def listed(client: Client, where: BudgetFilter) -> list[BudgetInfo]:
    """A page of budgets."""
    return [_info(row) for row in await client.store.budgets(where)]


async def found(client: Client, name: str) -> BudgetInfo:
    """One budget."""
    known = budget_called(name)
    row = await _row(client.store, known)
    if row is None:
        raise NotFound(
            f"no budget {known!r} in {client.store.url}; `perdure budgets list` shows those there are", name=known
        )
    return _info(row)


# -- setting --------------------------------------------------------------------------------------------------------


async def set_budget(
    client: Client, name: str, budget: Budget | None, *, by: str | None, if_rev: int | None = None
) -> BudgetInfo:
    """Set what a tenant, an agent or a run may use; returns the budget as it is then. Raises `Conflict` where somebody
    has set it since it was at `if_rev`."""
    known = budget_called(name)
    if budget is not None and not isinstance(budget, Budget):
        raise UsageError(f"a budget is set to a perdure.Budget, such as Budget(usd=20), not to {shown(budget)}")
    if if_rev is not None and (isinstance(if_rev, bool) or not isinstance(if_rev, int) or not 0 <= if_rev <= REV_MAX):
        raise UsageError(f"if_rev is {shown(if_rev)}; give the `rev` that a BudgetInfo had, or leave it out")
    who = None if by is None else check_name("by", by)
    if known.startswith(_RUN) and await _row(client.store, known) is None:
        raise _without_own(client, known)
    limits = Limits() if budget is None else limits_of(budget)
    row, is_set = await _set(client, known, limits, who, if_rev=if_rev)
    if not is_set:
        raise Conflict(
            f"budget {known} is at rev {row.rev} by now, not at {shown(if_rev)}: somebody else has set it, and it is "
            "left as it is. Look at it again (`app.budget_info`), and set it with that rev, or without if_rev=",
            name=known, rev=row.rev,
        )  # fmt: skip
    return _info(row)


async def set_limits(client: Client, name: str, given: Mapping[str, Any], *, by: str | None) -> None:
    """Set these limits of a budget (by unit, as `Budget` has them; None for no limit), and leave its others as they
    are."""
    known = budget_called(name)
    who = None if by is None else check_name("by", by)
    limited = {unit: value for unit, value in given.items() if value is not None}
    asked = limits_of(Budget(**limited)) if limited else Limits()
    changed = {unit: getattr(asked, unit) for unit in ("us" if each == "seconds" else each for each in given)}
    is_set = False
    while not is_set:  # unless somebody else has set it in between: then anew
        before = await _row(client.store, known)
        if before is None and known.startswith(_RUN):
            raise _without_own(client, known)
        if before is None and not limited:
            raise NotFound(
                f"no budget {known!r} in {client.store.url}, so there is no limit to drop; `perdure budgets list` "
                f"shows those there are, and `perdure budgets set {known} --usd 20` makes one", name=known,
            )  # fmt: skip
        limits = msgspec.structs.replace(Limits() if before is None else before.limits, **changed)
        _, is_set = await _set(client, known, limits, who, if_rev=0 if before is None else before.rev)


async def _set(
    client: Client, name: str, limits: Limits, by: str | None, *, if_rev: int | None
) -> tuple[BudgetRow, bool]:  # fmt: skip
    """The budget as it is then, and whether that was done. One whose answer was lost finds its own work."""
    new = NewBudget(await client.ids.take(1), name, limits)
    row = await patiently("set_budget", lambda: client.store.set_budget(new, by, if_rev=if_rev))
    mine = (row.rev, row.limits, row.by) == ((if_rev or 0) + 1, limits, by)
    return row, if_rev is None or mine or row.id == new.id


def _without_own(client: Client, name: str) -> NotFound:
    return NotFound(
        f"no budget {name!r} in {client.store.url}: a run has one of its own only from its start on (`budget=` of "
        "app.start, or --budget). Set the one of its agent or its tenant", name=name,
    )  # fmt: skip


REV_MAX: Final = 2**31 - 1
"""As far as a database counts how often one was set."""

_RUN: Final = "run:"
"""How the name of a run's own begins."""

_KINDS: Final = {"tenant": "a tenant", "agent": "an agent's name"}


def budget_called(name: object) -> str:
    """The name of a budget, checked: `tenant:…`, `agent:…` or `run:r42`."""
    kind, colon, whose = name.partition(":") if isinstance(name, str) else ("", "", "")
    if colon and kind in _KINDS:
        return f"{kind}:{check_name(_KINDS[kind], whose)}"
    if colon and f"{kind}:" == _RUN and (number := parse_run_id(whose)) is not None:
        return budget_name(number)
    raise UsageError(f"{shown(name)} is not the name of a budget: they look like tenant:acme, agent:order or run:r42")


async def _row(store: Store, name: str) -> BudgetRow | None:
    """The budget of exactly this name: of those that begin so, it is the first."""
    rows = await store.budgets(BudgetFilter(prefix=name, limit=1))
    return rows[0] if rows and rows[0].name == name else None


def _info(row: BudgetRow) -> BudgetInfo:
    """A view of a budget."""
    return BudgetInfo(
        row.name, in_users_units(row.limits), in_users_units(row.spent), in_users_units(row.reserved), row.rev,
        moment(row.created_at), moment(row.updated_at), row.by,
    )  # fmt: skip
