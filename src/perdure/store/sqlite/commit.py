"""Applying a batch of changes: guard, write each kind as a set, hint.

The transaction holds the database's one write lock from its first statement on. So what the guard sees holds until
the commit, and a worker's row needs no lock of its own. The batch is written whole first; only where the database
refuses it is it halved by run until the culprits are alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

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
from perdure.core.records import Kind, RunState
from perdure.store import reasons
from perdure.store.protocol import Hint
from perdure.store.slices import within_slices
from perdure.store.sqlite.errors import SUSPECT_ERRORS, is_refusal
from perdure.store.sqlite.transaction import Transaction, decode, encode

_STEP, _BOUNDARY, _ENDED = int(Kind.STEP), int(Kind.BOUNDARY), int(Kind.ENDED)

_Address = tuple[int, int, str]
"""Run, super-step and key: what a checkpoint is unique by."""


def commit(tx: Transaction, worker: int, changes: Sequence[Change]) -> CommitOutcome:
    """Write what this worker may write of the batch."""
    changes = within_slices(changes)
    alive, unheld = tx.row("guard", worker=worker, pairs=encode(list({(each.run, each.fence) for each in changes})))
    if not alive:
        return CommitOutcome(alive=False)
    lost: frozenset[int] = frozenset()
    if pairs := {(run, fence) for run, fence in decode(unheld)}:
        lost = frozenset(run for run, fence in pairs if _is_lost(tx, run, fence, changes))
        changes = [each for each in changes if (each.run, each.fence) not in pairs and each.run not in lost]
    return CommitOutcome(lost=lost, refused=_write(tx, worker, changes))


def _is_lost(tx: Transaction, run: int, fence: int, changes: Sequence[Change]) -> bool:
    """Whether changes under a fence that is not held are news: a batch sent again finds its own work instead."""
    if tx.value("slice_ended", run=run, fence=fence):
        return False
    return not all(_is_done(tx, each) for each in changes if (each.run, each.fence) == (run, fence))


def _is_done(tx: Transaction, change: Change) -> bool:
    at = _address(change)
    if at is None:
        return False
    run, super_step, key = at
    return bool(tx.value("own_checkpoint", run=run, super_step=super_step, key=key, fence=change.fence))


def _write(tx: Transaction, worker: int, changes: Sequence[Change]) -> dict[int, str]:
    """Write the changes whole; where that fails, undo it and write them in parts. What was refused, by run."""
    refused: dict[int, str] = {}
    try:
        if Batch(worker, changes).write(tx):
            return refused
    except SUSPECT_ERRORS as error:
        if not is_refusal(error):
            raise
    tx.undo()
    _write_parts(tx, worker, changes, refused)
    return refused


def _write_parts(tx: Transaction, worker: int, changes: Sequence[Change], refused: dict[int, str]) -> None:
    """Write what is not there yet; where a value is refused, halve by run until it is alone with its run's others."""
    try:
        with tx.savepoint("part"):
            written = Batch(worker, _news(tx, changes, refused)).write(tx)
            assert written, "what is there was left out"
        return
    except SUSPECT_ERRORS as error:
        if not is_refusal(error):
            raise
        runs = sorted({each.run for each in changes})
        if len(runs) == 1:
            refused[runs[0]] = str(error)
            return
    lower = set(runs[: len(runs) // 2])
    _write_parts(tx, worker, [each for each in changes if each.run in lower], refused)
    _write_parts(tx, worker, [each for each in changes if each.run not in lower], refused)


def _news(tx: Transaction, changes: Sequence[Change], refused: dict[int, str]) -> list[Change]:
    """The changes whose checkpoints are not there yet. One that is there under another fence refuses its run."""
    addresses = [_address(each) for each in changes]
    fences: dict[_Address, int] = {}
    for cursor in tx.spread("recorded", [at for at in addresses if at is not None]):
        fences |= {(run, super_step, key): fence for run, super_step, key, fence in decode(cursor.fetchone()[0])}
    for each, at in zip(changes, addresses, strict=True):
        if at is not None and fences.get(at, each.fence) != each.fence:
            _, super_step, key = at
            reason = reasons.recorded_before(key, super_step, under=fences[at], fence=each.fence)
            refused.setdefault(each.run, reason)
    news: dict[_Address | int, Change] = {}
    for number, (each, at) in enumerate(zip(changes, addresses, strict=True)):
        if each.run not in refused and at not in fences:
            news.setdefault(number if at is None else at, each)
    return list(news.values())


def _address(change: Change) -> _Address | None:
    """The checkpoint that the change files, or None if it files none."""
    match change:
        case AppendCheckpoint():
            return change.run, change.super_step, change.key
        case BeginSuperStep() | EndRun():
            return change.run, change.super_step, ""
        case RecordAttempt() | RequeueRun() | HoldRun():
            return None
        case _:
            assert_never(change)


class Batch:
    """The rows of a batch, by the statement that takes them."""

    def __init__(self, worker: int, changes: Iterable[Change]) -> None:
        self.checkpoints: list[tuple[Any, ...]] = []
        self.attempts: list[tuple[Any, ...]] = []
        self.blobs: list[tuple[Any, ...]] = []
        self.steps: dict[int, int] = {}
        self.snapshots: dict[int, tuple[int, int, int]] = {}
        self.ends: dict[int, EndRun] = {}
        self.requeues: list[RequeueRun] = []
        self.holds: list[HoldRun] = []
        for change in changes:
            self._add(worker, change)

    def _add(self, worker: int, change: Change) -> None:
        match change:
            case AppendCheckpoint():
                c = change
                at = (c.run, c.super_step, c.key, _STEP, c.seq, c.fence, worker, c.attempt, c.digest, c.failed)
                self.checkpoints.append((*at, c.payload, None, c.started_at, c.ended_at))
                if c.blobs:
                    self._add_blobs(c)
            case RecordAttempt():
                a = change
                this = (a.run, a.super_step, a.key, a.attempt, a.fence)
                self.attempts.append((*this, a.error, a.started_at, a.ended_at))
            case BeginSuperStep():
                self._add_boundary(worker, change, _BOUNDARY, failed=False)
                self.steps[change.run] = change.super_step
                self._move_snapshot(change)
            case EndRun():
                self._add_boundary(worker, change, _ENDED, failed=change.outcome is not RunState.COMPLETED)
                self.ends[change.run] = change
                if change.outcome is RunState.COMPLETED and change.state is not None:
                    self._move_snapshot(change)
            case RequeueRun():
                self.requeues.append(change)
            case HoldRun():
                self.holds.append(change)
            case _:
                assert_never(change)

    def _add_boundary(self, worker: int, change: BeginSuperStep | EndRun, kind: int, *, failed: bool) -> None:
        c = change
        at = (c.run, c.super_step, "", kind, 0, c.fence, worker, 0, 0, failed)
        self.checkpoints.append((*at, c.payload, c.state, c.ended_at, c.ended_at))
        self._add_blobs(c)

    def _add_blobs(self, change: AppendCheckpoint | BeginSuperStep | EndRun) -> None:
        self.blobs += [(change.thread, blob.digest, blob.data) for blob in change.blobs]

    def _move_snapshot(self, change: BeginSuperStep | EndRun) -> None:
        self.snapshots[change.thread] = (change.thread, change.run, change.super_step)

    def write(self, tx: Transaction) -> bool:
        """Every kind in the order in which a run meets it. False, and then only half of it, where some of the
        checkpoints are there already: from the same batch, or under another fence."""
        if self.checkpoints and tx.write("append_checkpoints", self.checkpoints) < len(self.checkpoints):
            return False
        if self.attempts:
            tx.write("record_attempts", self.attempts)
        if self.blobs:
            tx.write("put_blobs", self.blobs)
        if self.steps:
            tx.run("begin_super_steps", steps=encode(list(self.steps.items())))
        if self.snapshots:
            tx.run("move_snapshots", snapshots=encode(list(self.snapshots.values())))
        if self.requeues:
            self._requeue(tx)
        for hold in self.holds:
            tx.run("hold_run", run=hold.run, reason=hold.reason, detail=hold.detail)
        if self.ends:
            self._end(tx)
        ended = [*self.ends, *(hold.run for hold in self.holds)]
        if ended and tx.value("anybody_watches", runs=encode(ended)):
            tx.hints.add(Hint.ENDED)
        return True

    def _requeue(self, tx: Transaction) -> None:
        for change in self.requeues:
            tx.run("forget_unfinished_tries", run=change.run)
            for key in change.drop_keys:
                tx.run("forget_attempts", run=change.run, key=key)
                tx.run("forget_failure", run=change.run, key=key)
        tx.run("requeue_runs", now=tx.now, requeues=encode([(each.run, each.delay_us) for each in self.requeues]))
        if any(each.delay_us <= 0 for each in self.requeues):
            tx.hints.add(Hint.WORK)

    def _end(self, tx: Transaction) -> None:
        tx.run("end_runs", now=tx.now, ends=encode([(run, end.outcome) for run, end in self.ends.items()]))
        threads = encode([end.thread for end in self.ends.values()])
        tx.run("advance_threads", threads=threads)
        if tx.run("promote_heads", threads=threads):
            tx.hints.add(Hint.WORK)
