"""The pages of `perdure budgets`: all of them, and one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

from rich.text import Text

from perdure.cli.interrupt_pages import us
from perdure.cli.paging import print_more
from perdure.cli.remedies import command
from perdure.client.budgets import BudgetInfo
from perdure.terminal.page import Middle, Page, header, table
from perdure.terminal.text import ago, clean, duration, moment

LOW: Final = Decimal("0.2")
"""Of a limit: with less than this left a budget is pointed out."""


def print_budgets(page: Page, infos: Sequence[BudgetInfo], *, more: bool) -> None:
    """The list: a line for each limit."""
    if not infos:
        page.say(Text("no budgets; set one: ", "dim"), command("perdure budgets set tenant:NAME --usd 20"))
        return
    rows = table("budget", "of", *_COLUMNS, right=_COLUMNS, give=("budget",))
    for info in infos:
        if set(info.limits.values()) == {None}:
            rows.add_row(Middle(info.name, most=60), "", Text("no limits", "dim"))
        for unit in (unit for unit, limit in info.limits.items() if limit is not None):
            rows.add_row(Middle(info.name, most=60), unit, *_cells(info, unit))
    page.print(rows)
    if more:
        print_more(page, shlex.quote(infos[-1].name))


_COLUMNS: Final = ("limit", "spent", "in flight", "left")


def _cells(info: BudgetInfo, unit: str) -> Iterator[str | Text]:
    """How one unit stands."""
    limit, spent, reserved = info.limits[unit], info.spent[unit] or 0, info.reserved[unit] or 0
    yield Text("no limit", "dim") if limit is None else _amount(unit, limit)
    yield _amount(unit, spent)
    yield _amount(unit, reserved) if reserved else ""
    yield "" if limit is None else _left(unit, _exact(limit), _exact(spent) + _exact(reserved))


def _left(unit: str, limit: Decimal, taken: Decimal) -> Text:
    left = limit - taken
    if left <= 0:
        return Text("nothing", "bold red")
    return Text(_amount(unit, left), "yellow" if left < limit * LOW else "")


def _amount(unit: str, value: float | Decimal) -> str:
    if unit == "seconds":
        return duration(int(value * 1_000_000)) if value else "0 s"
    return f"{_exact(value):,f}"


def _exact(value: float | Decimal) -> Decimal:
    """A number as it is written, without the zeros behind its point."""
    text = f"{Decimal(str(value)):f}"
    return Decimal(text.rstrip("0").rstrip(".") if "." in text else text)


def print_budget(page: Page, info: BudgetInfo, *, now_us: int) -> None:
    """One budget."""
    page.print(Text(clean(info.name), "bold"), overflow="fold")
    page.print(header(_header_rows(info, now_us=now_us)))
    page.say()
    rows = table("of", *_COLUMNS, right=_COLUMNS)
    for unit, limit in info.limits.items():
        if limit is not None or info.spent[unit]:
            rows.add_row(unit, *_cells(info, unit))
    page.print(rows)
    page.say()
    for said, look in _looks(info.name):
        page.print(Text.assemble((f"{said}: ", "bold"), command(look)), overflow="fold")
    page.print(Text(_ALSO_SPENT if info.name.startswith("tenant:") else f"{_STARTED}; {_ALSO_SPENT}", "dim"))


def _header_rows(info: BudgetInfo, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    who = f", by {clean(info.by)}" if info.by else ""
    yield "set", f"{moment(us(info.updated_at))}, {ago(us(info.updated_at), now_us=now_us)}{who}"
    if info.rev > 1:
        often = f"{info.rev}× since {moment(us(info.created_at))}, {ago(us(info.created_at), now_us=now_us)}"
        yield "set so far", often


_STARTED: Final = "what a run has started counts with it"

_ALSO_SPENT: Final = "spent is also what tries had reserved when their worker died, which is in no meter"


def _looks(name: str) -> Iterator[tuple[str, str]]:
    """The commands that show what counts against a budget, and what each shows of it."""
    kind, _, whose = name.partition(":")
    quoted = shlex.quote(clean(whose))
    match kind:
        case "tenant":
            yield "what used it", f"perdure usage --by agent --tenant {quoted}"
        case "agent":
            yield "what its own runs used", f"perdure usage --by run --agent {quoted}"
        case _:
            yield "what the run itself used", f"perdure usage --by run --run {quoted}"
            yield "what it has started", f"perdure runs list --parent {quoted}"
