"""Meters: rows that only come, and their sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Final, assert_never

from perdure.core.changes import AppendCheckpoint, RecordAttempt
from perdure.core.meters import MeterRow, UsageBy, UsageFilter, UsageRow
from perdure.core.records import Run
from perdure.store.memory.tables import Tables
from perdure.store.pages import page_size

DAY_US: Final = 86_400_000_000


def file(tables: Tables, change: AppendCheckpoint | RecordAttempt, *, now: int) -> None:
    """File what a try has used, once for its attempt and its fence."""
    for number, meter in enumerate(change.meters):
        row = MeterRow(
            run=change.run,
            super_step=change.super_step,
            key=change.key,
            attempt=change.attempt,
            fence=change.fence,
            number=number,
            name=meter.name,
            quantity=meter.quantity,
            attributes=meter.attributes,
            at=now,
        )
        tables.meters[row.run].setdefault((row.super_step, row.key, row.attempt, row.fence, row.number), row)


def page(tables: Tables, run: int, *, limit: int, offset: int) -> list[MeterRow]:
    """A run's meters, in the order of their places."""
    rows = [row for _, row in sorted(tables.meters.get(run, {}).items())]
    return rows[max(0, offset) :][: page_size(limit)]


def usage(tables: Tables, where: UsageFilter) -> list[UsageRow]:
    """Sums by group and name."""
    sums: dict[tuple[str | int, str], list[int]] = defaultdict(list)
    for run, rows in tables.meters.items():
        for row in rows.values():
            if _matches(row, tables.runs[run], where):
                sums[_group(row, tables.runs[run], where.by), row.name].append(row.quantity)
    found = [UsageRow(*at, sum(quantities), len(quantities)) for at, quantities in sorted(sums.items())]
    return [row for row in found if where.after is None or (row.group, row.name) > where.after][
        : page_size(where.limit)
    ]


def _group(row: MeterRow, run: Run, by: UsageBy) -> str | int:
    match by:
        case UsageBy.TENANT:
            return run.tenant or ""
        case UsageBy.AGENT:
            return run.agent
        case UsageBy.RUN:
            return run.id
        case UsageBy.DAY:
            return row.at // DAY_US
        case _:
            assert_never(by)


def _matches(row: MeterRow, run: Run, where: UsageFilter) -> bool:
    return (
        (where.name is None or row.name == where.name)
        and (where.tenant is None or run.tenant == where.tenant)
        and (where.agent is None or run.agent == where.agent)
        and (where.run is None or run.id == where.run)
        and (where.since is None or row.at >= where.since)
        and (where.until is None or row.at < where.until)
        and (where.after_fence is None or row.fence > where.after_fence)
        and (where.fence is None or row.fence <= where.fence)
    )
