"""Meters: what tries have used, filed beside their records, and the sums of it."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.changes import AppendCheckpoint, RecordAttempt
from perdure.core.limits import NEVER_US
from perdure.core.meters import UNIT, MeterRow, UsageFilter, UsageRow
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.transaction import Reader, Transaction

FENCE_MAX: Final = 2**62
"""Past every fence."""


def meter_rows(tx: Transaction, change: AppendCheckpoint | RecordAttempt) -> list[tuple[Any, ...]]:
    """The rows of what a try has used."""
    c = change
    at = (c.run, c.super_step, c.key, c.attempt, c.fence)
    return [(*at, number, m.name, m.quantity, m.attributes, tx.now) for number, m in enumerate(c.meters)]


def meters(reader: Reader, run: int, *, limit: int, offset: int) -> list[MeterRow]:
    return reader.records("meters", rows.METER, run=run, limit=page_size(limit), offset=max(0, offset))


def usage(reader: Reader, where: UsageFilter) -> list[UsageRow]:
    after_part, after_name = where.after or (None, None)
    values: dict[str, Any] = {
        "by": where.by,
        "name": where.name,
        "tenant": where.tenant,
        "agent": where.agent,
        "since": 0 if where.since is None else where.since,
        "until": NEVER_US if where.until is None else where.until,
        "after_fence": -1 if where.after_fence is None else where.after_fence,
        "fence": FENCE_MAX if where.fence is None else where.fence,
        "after_part": after_part,
        "after_name": after_name,
        "limit": page_size(where.limit),
    }
    if where.run is None:
        found = reader.array("usage", **values)
    else:
        found = reader.array("usage_of_run", **values, run=where.run)
    return [UsageRow(part, name, whole * UNIT + rest, entries) for part, name, whole, rest, entries in found]
