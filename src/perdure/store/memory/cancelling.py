"""Cancellations: a request that stays, down the tree of runs, and the end at once of what has nothing to clean up."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.effects import Undoing
from perdure.core.records import Checkpoint, Kind, Run, RunState
from perdure.core.states import TERMINAL
from perdure.store.memory import effects, waits
from perdure.store.memory.tables import Tables


def cancel(tables: Tables, run: int, reason: str, payload: bytes, *, now: int) -> Run | None:
    """Request the cancellation of a run and of what it has started; the row afterwards."""
    row = tables.runs.get(run)
    if row is None or not _may_be_asked(row):
        return row
    for each in sorted(_tree(tables, run)):
        if _may_be_asked(tables.runs[each]):
            _request(tables, tables.runs[each], reason, payload, now=now)
    return tables.runs[run]


def _may_be_asked(run: Run) -> bool:
    return run.state not in TERMINAL and (run.cancel is None or run.state is RunState.HELD)


def _tree(tables: Tables, run: int) -> Iterator[int]:
    """The run and its descendants, without the detached ones and what is below them."""
    below = [run]
    while below:
        each = below.pop()
        yield each
        below += [child for child in tables.children.get(each, ()) if not tables.runs[child].detached]


def _request(tables: Tables, run: Run, reason: str, payload: bytes, *, now: int) -> None:
    if run.state is RunState.HELD and effects.has_undoable(tables, run.id):
        _send_on(tables, run, reason, payload, now=now)
        return
    if run.attempt == 0 or run.state is RunState.HELD:
        _end(tables, run, reason, payload, now=now)
        return
    soon = {"ready_at": min(run.ready_at, now)} if run.state is RunState.QUEUED else {}
    tables.move(run.id, cancel=reason, **soon)
    tables.wake(run.id)


def _send_on(tables: Tables, run: Run, reason: str, payload: bytes, *, now: int) -> None:
    """Let a worker undo what a held run has done, and end it then."""
    tables.begin_undo(run.id, Undoing(RunState.CANCELLED, payload))
    words = {"cancel": reason, "reason": None, "detail": None}
    tables.move(run.id, state=RunState.QUEUED, ready_at=now, strikes=0, **words)


def _end(tables: Tables, run: Run, reason: str, payload: bytes, *, now: int) -> None:
    """End a run that no worker has to clean up after."""
    tables.checkpoints[run.id][run.super_step + 1, ""] = Checkpoint(
        run=run.id,
        super_step=run.super_step + 1,
        key="",
        kind=Kind.ENDED,
        seq=0,
        fence=run.fence,
        worker=0,
        attempt=0,
        digest=0,
        failed=True,
        payload=payload,
        state=None,
        started_at=now,
        ended_at=now,
    )
    waits.close_all(tables, run.id)
    words = {"cancel": reason, "reason": reason, "detail": None}
    ended = tables.move(run.id, state=RunState.CANCELLED, ready=False, ended_at=now, **words)
    take_back(tables, ended)
    tables.leave(ended)


def take_back(tables: Tables, run: Run) -> None:
    """Let the thread's newest state be the one before this run again, where it is this run's and is not to stay."""
    if run.rollback and tables.threads[run.thread].snapshot_run == run.id and run.id in tables.bases:
        tables.point(run.thread, *tables.bases[run.id])
