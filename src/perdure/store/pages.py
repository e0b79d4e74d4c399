"""Pages of listings: how long one may be, and all of a run's log, one page after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from perdure.core.limits import LIST_ROWS_MAX

if TYPE_CHECKING:
    from perdure.core.records import Checkpoint
    from perdure.store.protocol import Store

ID_MAX: Final = 2**63 - 1
"""Of an id: what a column holds."""


def page_size(limit: int) -> int:
    """The rows that a listing returns at most when it is asked for `limit` of them."""
    return max(0, min(limit, LIST_ROWS_MAX))


async def whole_log(
    store: Store, run: int, *, super_step: int | None = None, boundaries: bool = False
) -> AsyncIterator[Checkpoint]:
    """A run's whole log, in order, by as many reads as it takes; or that of one super-step, or the boundaries and the
    end alone."""
    after: tuple[int, int] | None = None
    while page := await store.checkpoints(
        run, super_step=super_step, boundaries=boundaries, limit=LIST_ROWS_MAX, after=after
    ):
        for row in page:
            yield row
        if len(page) < LIST_ROWS_MAX:
            return
        after = (page[-1].super_step, page[-1].seq)
