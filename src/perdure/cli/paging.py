"""Pages of listings: whether there is another one, and how to get it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.terminal.page import Page

Row = TypeVar("Row")


async def is_more(rows: Sequence[Row], limit: int, after: Callable[[Row], Awaitable[Sequence[object]]]) -> bool:
    """Whether anything comes after a page: a full one may be the last. `after` reads one row after that one."""
    return len(rows) == limit and bool(await after(rows[-1]))


def print_more(page: Page, last: str) -> None:
    """How to get the next page: whole, for it is copied."""
    from rich.text import Text

    page.print(Text(f"more: --after {clean(last)}", style="dim"), overflow="fold")
