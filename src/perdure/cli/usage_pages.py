"""The page of `perdure usage`, and what a run has used on its own page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from rich.text import Text

from perdure.cli.paging import print_more
from perdure.client.usage import UsageInfo
from perdure.core.meters import UsageBy, UsageRow, quantity
from perdure.terminal.page import Middle, Page, table
from perdure.terminal.text import clean


def print_usage(page: Page, infos: Sequence[UsageInfo], *, by: UsageBy, more: bool) -> None:
    """The sums."""
    if not infos:
        page.say(Text("nothing was used", style="dim"))
        return
    rows = table(by.value, "name", "quantity", "entries", right=("quantity", "entries"), give=(by.value, "name"))
    for info in infos:
        rows.add_row(
            Middle(info.group, most=40) if info.group else Text("no tenant", "dim"),
            Middle(info.name, most=40),
            f"{info.quantity:,f}",
            f"{info.entries:,}",
        )
    page.print(rows)
    if more:
        print_more(page, f"{shlex.quote(infos[-1].group)} {shlex.quote(infos[-1].name)}")


# -- on the page of its run -----------------------------------------------------------------------------------------


def usage_rows(rows: Sequence[UsageRow]) -> Iterator[tuple[str, str]]:
    """What a run has used, in its header."""
    if rows:
        yield "used", ", ".join(f"{quantity(row.quantity):,f} {clean(row.name)}" for row in rows)
