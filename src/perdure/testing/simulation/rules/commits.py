"""A commit writes for the rightful owner only, and what it says it wrote is there, or was when it came before."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    Change,
    CommitOutcome,
    EndRun,
    HoldRun,
    RecordAttempt,
    RequeueRun,
)
from perdure.core.records import Run, RunState
from perdure.testing.simulation.rules.look import Look, Write


def of_commit(write: Write, written: set[Change]) -> Iterator[str]:
    """The owner wrote, and only the owner. `written` is what earlier commits wrote; this one adds to it."""
    if write.verb != "commit":
        return
    worker: int = write.args[0]
    mine = {change.run: change.fence for change in write.changes}
    yield from _of_strangers(write, worker, mine)
    if not write.done:
        return
    outcome: CommitOutcome = write.answer
    if not write.before.alive(worker) and (outcome.alive or write.before.runs != write.now.runs):
        yield f"w{worker} is not alive, and its commit was taken"
    if outcome.alive:
        yield from _of_answer(write, worker, outcome, mine)
        yield from _of_changes(write, worker, outcome, written)


def _owns(was: Run | None, worker: int, fence: int | None) -> bool:
    return was is not None and was.worker == worker and was.fence == fence


def _of_strangers(write: Write, worker: int, mine: dict[int, int]) -> Iterator[str]:
    """Nothing of a run was written that this worker did not own."""
    before, now = write.before, write.now
    ended = {now.runs[change.run].thread for change in write.changes if isinstance(change, EndRun)}
    for id in write.touched:
        was, run = before.runs.get(id), now.runs[id]
        added = now.logs.get(id, {}).keys() - before.logs.get(id, {}).keys()
        changed = run != was or bool(added) or now.tries.get(id) != before.tries.get(id)
        if not changed or _owns(was, worker, mine.get(id)):
            continue
        promoted = was is not None and run == _ready(was) and run.thread in ended and not added
        if not promoted:
            yield f"w{worker} wrote {sorted(added) or 'the row'} of run r{id} and was not its owner"
    for id in write.touched:
        for at in sorted(now.logs.get(id, {}).keys() - before.logs.get(id, {}).keys()):
            if now.logs[id][at].fence != mine.get(id):
                yield f"w{worker} wrote {at} of run r{id} under fence {now.logs[id][at].fence}, not {mine.get(id)}"


def _ready(run: Run) -> Run:
    return Run(**{field: getattr(run, field) for field in run.__struct_fields__} | {"ready": True})


def _of_answer(write: Write, worker: int, outcome: CommitOutcome, mine: dict[int, int]) -> Iterator[str]:
    """Nobody is told that it has lost what it owns, and nothing is refused that these agents write."""
    for id in sorted(outcome.lost):
        if _owns(write.before.runs.get(id), worker, mine.get(id)):
            yield f"w{worker} was told that it has lost run r{id}, which it owns"
    for id, why in sorted(outcome.refused.items()):
        yield f"w{worker} was refused a write of run r{id}: {why}"


def _of_changes(write: Write, worker: int, outcome: CommitOutcome, written: set[Change]) -> Iterator[str]:
    for change in write.changes:
        if change.run in outcome.lost or change.run in outcome.refused:
            continue
        was = write.before.runs.get(change.run)
        owns = _owns(was, worker, change.fence)
        if owns:
            written.add(change)
        what = f"{type(change).__name__} of run r{change.run}"
        if change not in written or (owns and not _is_there(change, write)):
            yield f"w{worker} was told that {what} is on disk; it is not"
        if owns and write.now.absent.get(change.run):
            yield f"w{worker} was told that {what} is on disk; {write.now.absent[change.run]} of its blobs are not"


def _is_there(change: Change, write: Write) -> bool:
    now: Look = write.now
    run = now.runs[change.run]
    log = now.logs.get(change.run, {})
    match change:
        case AppendCheckpoint():
            row = log.get((change.super_step, change.key))
            dropped = change.failed and change.key in write.dropped_keys(change.run)
            return dropped or (row is not None and row.fence == change.fence and row.payload == change.payload)
        case BeginSuperStep():
            row = log.get((change.super_step, ""))
            return row is not None and row.fence == change.fence and row.state == change.state
        case EndRun():
            return run.state is change.outcome and run.ended_at is not None
        case RequeueRun():
            return run.state is RunState.QUEUED
        case HoldRun():
            return run.state is RunState.HELD and run.reason == change.reason
        case RecordAttempt():
            at = (change.super_step, change.key, change.attempt)
            tried = now.tries.get(change.run, {}).get(at)
            forgotten = write.sends_on(change.run) and (
                change.error is None or change.key in write.dropped_keys(change.run)
            )
            return forgotten or (tried is not None and (change.error is None or tried.error is not None))
