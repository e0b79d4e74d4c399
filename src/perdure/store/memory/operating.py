"""What operators ask of a run that has ended or is held: to go on."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.effects import Undoing
from perdure.core.records import Kind, Run, RunState
from perdure.store.memory import effects
from perdure.store.memory.tables import Tables


def retry(tables: Tables, run: int, drop_keys: Sequence[str], *, undo: bool, now: int) -> Run | None:
    """Send an ended run on, with its work or, with `undo`, only to undo what it has done."""
    row = tables.runs.get(run)
    if row is None or row.state not in (RunState.FAILED, RunState.CANCELLED):
        return row
    log = tables.checkpoints[run]
    (ended,) = [at for at, checkpoint in log.items() if checkpoint.kind is Kind.ENDED]
    if undo:
        if not effects.begin_again_to_undo(tables, run):
            return row
        tables.undoing[run] = Undoing(row.state, log[ended].payload)
    elif row.undoing or tables.would_undo(row):
        return row
    del log[ended]
    tables.drop_failures(row, drop_keys)
    tables.forget_unfinished_tries(row)
    fresh = {"strikes": 0, **dict.fromkeys(("reason", "detail", "ended_at", "deadline_at"))}
    end = {"undoing": True} if undo else {"cancel": None, "rollback": False}
    tables.enter(tables.move(run, state=RunState.QUEUED, ready=False, ready_at=now, **fresh, **end))
    return tables.runs[run]


def release(tables: Tables, run: int, *, now: int) -> Run | None:
    """Send a held run on."""
    row = tables.runs.get(run)
    if row is None or row.state is not RunState.HELD:
        return row
    tables.forget_unfinished_tries(row)
    return tables.move(run, state=RunState.QUEUED, ready_at=now, strikes=0, reason=None, detail=None)
