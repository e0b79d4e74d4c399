"""Listings: pure functions over the tables. Callers hold the lock."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.records import Attempt, Checkpoint, Claimed, Kind, Run, Thread
from perdure.core.requests import RunFilter
from perdure.store.memory import budgets, effects, waits
from perdure.store.memory.tables import Tables
from perdure.store.pages import page_size


def runs(tables: Tables, where: RunFilter) -> list[Run]:
    found = (tables.runs[run] for run in sorted(tables.runs, reverse=True))
    return [run for run in found if _matches(run, where)][: page_size(where.limit)]


def _matches(run: Run, where: RunFilter) -> bool:
    return (
        (where.after is None or run.id < where.after)
        and (where.state is None or run.state is where.state)
        and (where.agent is None or run.agent == where.agent)
        and (where.thread_id is None or run.thread_id == where.thread_id)
        and (where.tenant is None or run.tenant == where.tenant)
        and set(where.tags) <= set(run.tags)
        and (where.parent is None or run.parent == where.parent)
    )


def threads(tables: Tables, *, agent: str | None, limit: int, after: int | None) -> list[Thread]:
    found = (tables.threads[thread] for thread in sorted(tables.threads, reverse=True))
    matching = (row for row in found if (agent is None or row.agent == agent) and (after is None or row.id < after))
    return list(matching)[: page_size(limit)]


def log(tables: Tables, run: int) -> list[Checkpoint]:
    """A run's checkpoints in the order of recording; a boundary comes before the steps after it."""
    return sorted(tables.checkpoints.get(run, {}).values(), key=lambda row: (row.super_step, row.seq, row.key))


def thread_checkpoints(tables: Tables, thread: int) -> list[Checkpoint]:
    """A thread's boundaries and ends, newest first."""
    of_thread = sorted((run for run in tables.runs.values() if run.thread == thread), key=lambda run: -run.ordinal)
    return [row for run in of_thread for row in reversed(log(tables, run.id)) if row.kind is not Kind.STEP]


def after(tables: Tables, rows: list[Checkpoint], last: tuple[int, int] | None) -> list[Checkpoint]:
    """Those of a thread's checkpoints that are older than the last one of the page before."""
    if last is None:
        return rows
    run = tables.runs.get(last[0])
    bound = (run.ordinal, last[1]) if run is not None else (0, 0)
    return [row for row in rows if (tables.runs[row.run].ordinal, row.super_step) < bound]


def attempts(tables: Tables, run: int) -> list[Attempt]:
    """A run's tries by super-step, key and number."""
    return [row for _, row in sorted(tables.attempts.get(run, {}).items())]


def claimed(tables: Tables, run: Run) -> Claimed:
    """A run with the part of its log that its execution needs."""
    now = tables.now_us()
    return Claimed(
        run=run.id,
        thread=run.thread,
        thread_id=run.thread_id,
        agent=run.agent,
        fence=run.fence,
        super_step=run.super_step,
        attempt=run.attempt,
        recoveries=run.recoveries,
        strikes=run.strikes,
        created_at=run.created_at,
        arguments=tables.checkpoints[run.id][run.super_step, ""].payload,
        state=_state(tables, run),
        records=tuple(_of_step(log(tables, run.id), run.super_step)),
        attempts=tuple(row for row in attempts(tables, run.id) if row.super_step == run.super_step),
        now=now,
        waits=tuple(wait for wait in waits.of_runs(tables, [run.id], now=now) if wait.super_step == run.super_step),
        tenant=run.tenant,
        priority=run.priority,
        deadline_at=run.deadline_at,
        cancel=run.cancel,
        effects=effects.of_super_step(tables, run),
        undoing=tables.undoing.get(run.id),
        budgets=budgets.of_run(tables, run),
    )


def _of_step(rows: Iterable[Checkpoint], super_step: int) -> Iterable[Checkpoint]:
    return (row for row in rows if row.super_step == super_step and row.kind is Kind.STEP)


def _state(tables: Tables, run: Run) -> bytes | None:
    """The state at the boundary before the current super-step: the run's own, or what its thread was left in."""
    if run.super_step > 1:
        return tables.checkpoints[run.id][run.super_step, ""].state
    thread = tables.threads[run.thread]
    if thread.snapshot_run is None or thread.snapshot_step is None:
        return None
    return tables.checkpoints[thread.snapshot_run][thread.snapshot_step, ""].state
