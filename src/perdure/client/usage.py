"""Usage for people: sums of what runs have used, by tenant, agent, run or day.

Meters are kept by run, so whatever they are summed by comes out exactly, to the billionth, and equal to what each run's
bill says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final

from perdure.client.connection import Client
from perdure.client.requests import agent_name, page_limit, run_number
from perdure.core.limits import ID_CHARS_MAX
from perdure.core.meters import UsageBy, UsageFilter, UsageRow, quantity
from perdure.core.records import run_id
from perdure.core.shown import shown
from perdure.core.times import due_us
from perdure.errors import UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.info import EPOCH
from perdure.runtime.settings import check_name


@dataclass(frozen=True, slots=True)
class UsageInfo:
    """How much of something was used by one tenant, agent or run, or on one day."""

    group: str
    """The tenant (`""`: none), the agent, the run (`r42`), or the day in UTC (`2026-11-30`)."""
    name: str
    """What was used: `tokens`, say."""
    quantity: Decimal
    """Exact."""
    entries: int
    """How many meters that sums."""


RowName = tuple[str, str]
"""The group and the name of a row."""

_DAY: Final = timedelta(days=1)


def usage_filter(
    *, by: str, name: str | None, tenant: str | None, agent: Agent[..., object] | str | None, run_id: str | None,
    since: datetime | date | str | None, until: datetime | date | str | None, limit: int, after: RowName | None,
) -> UsageFilter:  # fmt: skip
    """What to sum, and by what; a name that nothing can have is refused."""
    grouped = _by(by)
    first, end = _us("since", since), _us("until", until)
    if first is not None and end is not None and end <= first:
        raise UsageError(f"until ({_said(until)}) is not after since ({_said(since)}): there is no time between them")
    return UsageFilter(
        grouped,
        name=None if name is None else check_name("a meter's name", name),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        agent=None if agent is None else agent_name(agent),
        run=None if run_id is None else run_number(run_id),
        since=first,
        until=end,
        limit=page_limit(limit),
        after=None if after is None else _after(grouped, after),
    )


async def summed(client: Client, where: UsageFilter) -> list[UsageInfo]:
    """A page of sums."""
    return [info(where.by, row) for row in await client.store.usage(where)]


def info(by: UsageBy, row: UsageRow) -> UsageInfo:
    """A view of a sum."""
    return UsageInfo(_group(by, row.group), row.name, quantity(row.quantity), row.entries)


def _group(by: UsageBy, group: str | int) -> str:
    """A group by the name that people know it by."""
    if by is UsageBy.RUN:
        return run_id(int(group))
    return (EPOCH + int(group) * _DAY).date().isoformat() if by is UsageBy.DAY else str(group)


def _after(by: UsageBy, last: RowName) -> tuple[str | int, str]:
    """The last row of the page before, as the store knows it."""
    match last:
        case (str() as group, str() as name):
            known = check_name("a meter's name", name)
        case _:
            raise UsageError(f"after is {shown(last)}; give the group and the name of the last row of the page before")
    if by is UsageBy.RUN:
        return run_number(group), known
    if by is UsageBy.DAY:
        return (_day("after", group) - EPOCH.date()).days, known
    return check_name("a group", group, ID_CHARS_MAX) if group else "", known


def _us(what: str, when: datetime | date | str | None) -> int | None:
    """A time; of a day, its beginning in UTC."""
    if when is None:
        return None
    if isinstance(when, str) and len(when) <= len("2026-11-30"):
        when = _day(what, when)
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime.combine(when, time(tzinfo=UTC))
    return due_us(when)


def _day(what: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{what} is {shown(text)}, which is no day; days look like 2026-11-30") from None


def _said(when: datetime | date | str | None) -> str:
    """A time as people write it."""
    return when.isoformat() if isinstance(when, date) else str(when)


def _by(text: str) -> UsageBy:
    if not isinstance(text, str) or text not in tuple(UsageBy):
        raise UsageError(f"{shown(text)} is nothing to sum by; give one of: {', '.join(UsageBy)}")
    return UsageBy(text)
