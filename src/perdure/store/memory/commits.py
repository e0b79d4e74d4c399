"""Batches: judged run by run first, applied afterwards.

The judgement decides everything that can go wrong, so applying cannot fail half-way. A run's changes stand or fall
together: one lost or refused change takes the run's others of the same batch with it, and nobody else's. What the batch
says before a change may count for it. So those of effects are judged on a draft of the ledger; and two things are seen
only when a change's turn comes: a change that bounces, alone, and a parking, which comes last, after all that might
wake the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import assert_never

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    Change,
    CloseWait,
    CommitOutcome,
    Deliver,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    Place,
    RecordAttempt,
    RequeueRun,
    Reserve,
    SendMessage,
    SettleEffect,
    place_of,
)
from perdure.core.effects import Undoing
from perdure.core.limits import NEVER_US
from perdure.core.records import Attempt, Checkpoint, Kind, RunState
from perdure.core.requests import Bounce
from perdure.store import reasons
from perdure.store.memory import budgets, cancelling, mail, meters, waits
from perdure.store.memory.effects import Draft
from perdure.store.memory.tables import StepKey, Tables
from perdure.store.slices import is_aware, within_slices


class _Verdict(Enum):
    """What is to be done with a change whose run was looked at; one that is refused has the reason instead."""

    WRITE = "write"
    DONE = "done"
    """It is there already: this is the same batch again."""
    LOST = "lost"
    CANCELLED = "cancelled"
    """The run's cancellation was requested, and this does not know of it."""


def apply(tables: Tables, worker: int, changes: Sequence[Change], *, now: int) -> CommitOutcome:
    """Apply a batch; the caller holds the lock."""
    if not tables.is_alive(worker):
        return CommitOutcome(alive=False)
    changes = within_slices(changes)
    draft = Draft(tables, worker, now=now)
    verdicts = _judge_all(tables, draft, worker, changes)
    lost = {change.run for change, verdict in zip(changes, verdicts, strict=True) if verdict is _Verdict.LOST}
    refused = {
        change.run: verdict
        for change, verdict in reversed(list(zip(changes, verdicts, strict=True)))
        if isinstance(verdict, str) and change.run not in lost
    }
    cancelled = {
        change.run for change in changes if change.run not in lost and tables.runs[change.run].cancel is not None
    }
    sound = [
        change
        for change, verdict in zip(changes, verdicts, strict=True)
        if verdict is _Verdict.WRITE and change.run not in lost and change.run not in refused
    ]
    draft.file({change.run for change in sound})
    bounced = _write_all(tables, worker, [change for change in sound if not isinstance(change, ParkRun)], now=now)
    parkings = [change for change in sound if isinstance(change, ParkRun)]
    awake = {change.run for change in parkings if not waits.park(tables, change, now=now)}
    return CommitOutcome(
        lost=frozenset(lost),
        refused=refused,
        bounced=bounced,
        awake=frozenset(awake),
        cancelled=frozenset(cancelled),
    )


def _write_all(tables: Tables, worker: int, changes: Sequence[Change], *, now: int) -> dict[Place, Bounce]:
    """Write what does not bounce; a checkpoint that the batch files twice is the first one."""
    bounced: dict[Place, Bounce] = {}
    for change in changes:
        if (at := _address(change)) is not None and at in tables.checkpoints[change.run]:
            continue
        if (why := _bounce(tables, change)) is not None:
            assert isinstance(change, CloseWait | SendMessage | Deliver | Reserve)
            bounced[change.run, change.super_step, change.key] = why
            continue
        _write(tables, worker, change, now=now)
    return bounced


def _judge_all(tables: Tables, draft: Draft, worker: int, changes: Sequence[Change]) -> list[_Verdict | str]:
    """One verdict for each. A settlement whose record the batch has filed before says nothing new."""
    verdicts: list[_Verdict | str] = []
    filed: set[tuple[int, StepKey]] = set()
    for change in changes:
        verdict = _judge(tables, worker, change)
        place = None if (at := _address(change)) is None else (change.run, at)
        if verdict is _Verdict.WRITE and isinstance(change, IntendEffect | SettleEffect) and place not in filed:
            verdict = draft.judge(change) or verdict
        if (
            verdict is _Verdict.WRITE
            and place is not None
            and not isinstance(change, CloseWait | SendMessage | Deliver)
        ):
            filed.add(place)
        verdicts.append(verdict)
    return verdicts


def _judge(tables: Tables, worker: int, change: Change) -> _Verdict | str:
    """The two rules: guarded by the fence, and repeatable."""
    run = tables.runs.get(change.run)
    if run is None:
        return _Verdict.LOST
    at = _address(change)
    found = tables.checkpoints[run.id].get(at) if at else None
    own = found is not None and found.fence == change.fence
    if run.state is not RunState.RUNNING and run.fence == change.fence:
        return _Verdict.DONE
    if run.state is not RunState.RUNNING or run.worker != worker or run.fence != change.fence:
        return _Verdict.DONE if own else _Verdict.LOST
    if own:
        return _Verdict.DONE
    if found is not None:
        return reasons.recorded_before(found.key, found.super_step, under=found.fence, fence=change.fence)
    return _Verdict.CANCELLED if run.cancel is not None and not is_aware(change) else _Verdict.WRITE


def _bounce(tables: Tables, change: Change) -> Bounce | None:
    """Why this change alone is not written, though its run is in order."""
    match change:
        case CloseWait():
            return waits.bounce(tables, change)
        case SendMessage():
            return mail.bounce(tables, change.message)
        case Deliver():
            return tables.outbox.bounce(change.delivery)
        case Reserve():
            return budgets.bounce(tables, change)
        case _:
            return None


def _address(change: Change) -> StepKey | None:
    """Where in its run the change files a checkpoint, or None if it files none."""
    place = place_of(change)
    return None if place is None else place[1:]


def _write(tables: Tables, worker: int, change: Change, *, now: int) -> None:
    match change:
        case AppendCheckpoint():
            _append(tables, worker, change, now=now)
        case RecordAttempt():
            _count(tables, change, now=now)
            _record_attempt(tables, change)
        case BeginSuperStep():
            _begin_super_step(tables, worker, change)
        case EndRun():
            _end(tables, worker, change, now=now)
        case RequeueRun():
            _requeue(tables, change, now=now)
        case HoldRun():
            _hold(tables, change)
        case OpenWait():
            waits.open_wait(tables, change, now=now)
        case CloseWait():
            waits.close_wait(tables, change, now=now)
            if change.record is not None:
                _append(tables, worker, change.record, now=now)
        case SendMessage():
            mail.send(tables, change.message, now=now)
            _append(tables, worker, change.record, now=now)
        case Deliver():
            if tables.outbox.put(change, tables.runs[change.run], now=now):
                tables.put_blobs(change.thread, change.delivery.blobs)
            _append(tables, worker, change.record, now=now)
        case Reserve():
            budgets.reserve(tables, change)
        case BuryMessage():
            mail.bury(tables, change)
        case SettleEffect():
            if change.record is not None:
                _append(tables, worker, change.record, now=now)
        case IntendEffect():
            """Its row is what it comes to: the draft has filed it."""
        case BeginUndo():
            if tables.begin_undo(change.run, Undoing(change.outcome, change.payload)):
                tables.put_blobs(change.thread, change.blobs)
        case ParkRun():
            raise AssertionError("parkings come last")
        case _:
            assert_never(change)


def _append(tables: Tables, worker: int, change: AppendCheckpoint, *, now: int) -> None:
    tables.checkpoints[change.run][change.super_step, change.key] = Checkpoint(
        run=change.run,
        super_step=change.super_step,
        key=change.key,
        kind=Kind.STEP,
        seq=change.seq,
        fence=change.fence,
        worker=worker,
        attempt=change.attempt,
        digest=change.digest,
        failed=change.failed,
        payload=change.payload,
        state=None,
        started_at=change.started_at,
        ended_at=change.ended_at,
    )
    tables.put_blobs(change.thread, change.blobs)
    _count(tables, change, now=now)


def _count(tables: Tables, change: AppendCheckpoint | RecordAttempt, *, now: int) -> None:
    """What a try has used."""
    meters.file(tables, change, now=now)
    budgets.settle(tables, change)


def _record_attempt(tables: Tables, change: RecordAttempt) -> None:
    before = tables.attempts[change.run].get((change.super_step, change.key, change.attempt))
    if before is not None and before.error is not None and change.error is None:
        return
    tables.attempts[change.run][change.super_step, change.key, change.attempt] = Attempt(
        run=change.run,
        super_step=change.super_step,
        key=change.key,
        attempt=change.attempt,
        fence=change.fence,
        error=change.error,
        started_at=change.started_at,
        ended_at=change.ended_at,
    )


def _boundary(change: BeginSuperStep | EndRun, worker: int, *, kind: Kind, failed: bool) -> Checkpoint:
    """The checkpoint between two super-steps, or at the end."""
    return Checkpoint(
        run=change.run,
        super_step=change.super_step,
        key="",
        kind=kind,
        seq=0,
        fence=change.fence,
        worker=worker,
        attempt=0,
        digest=0,
        failed=failed,
        payload=change.payload,
        state=change.state,
        started_at=change.ended_at,
        ended_at=change.ended_at,
    )


def _begin_super_step(tables: Tables, worker: int, change: BeginSuperStep) -> None:
    row = _boundary(change, worker, kind=Kind.BOUNDARY, failed=False)
    tables.checkpoints[change.run][change.super_step, ""] = row
    tables.put_blobs(change.thread, change.blobs)
    if change.waited:
        waits.close_all(tables, change.run)
    tables.move(change.run, super_step=change.super_step)
    thread = tables.threads[change.thread]
    if thread.snapshot_run != change.run:
        tables.bases[change.run] = thread.snapshot_run, thread.snapshot_step
    tables.point(change.thread, change.run, change.super_step)


def _end(tables: Tables, worker: int, change: EndRun, *, now: int) -> None:
    completed = change.outcome is RunState.COMPLETED
    row = _boundary(change, worker, kind=Kind.ENDED, failed=not completed)
    tables.checkpoints[change.run][change.super_step, ""] = row
    tables.put_blobs(change.thread, change.blobs)
    if change.waited:
        waits.close_all(tables, change.run)
    words = {"reason": tables.runs[change.run].cancel} if change.outcome is RunState.CANCELLED else {}
    run = tables.move(change.run, state=change.outcome, worker=None, ready=False, ended_at=now, **words)
    if completed and change.state is not None:
        tables.point(change.thread, change.run, change.super_step)
    if change.outcome is RunState.CANCELLED:
        cancelling.take_back(tables, run)
    tables.leave(run)


def _requeue(tables: Tables, change: RequeueRun, *, now: int) -> None:
    run = tables.runs[change.run]
    tables.drop_failures(run, change.drop_keys)
    tables.forget_unfinished_tries(run)
    ready_at = run.ready_at
    if change.delay_us and run.cancel is None:
        ready_at = min(now + change.delay_us, NEVER_US if run.deadline_at is None else run.deadline_at)
    tables.move(run.id, state=RunState.QUEUED, worker=None, ready_at=ready_at)


def _hold(tables: Tables, change: HoldRun) -> None:
    tables.move(change.run, state=RunState.HELD, worker=None, reason=change.reason.value, detail=change.detail)
