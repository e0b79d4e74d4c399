"""How long a page of a listing may be."""

from __future__ import annotations

from perdure.core.limits import LIST_ROWS_MAX


def page_size(limit: int) -> int:
    """The rows that a listing returns at most when it is asked for `limit` of them."""
    return max(0, min(limit, LIST_ROWS_MAX))
