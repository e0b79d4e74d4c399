"""From changes to the arguments of the functions in `functions/commit.sql`: columns, one array each.

A batch of steps alone, the usual one, goes to `append` (a single one to `append_one`); any other to `commit`, which
takes the same columns first. One that has to do with waiting goes to `commit_waits` and one with effects to
`commit_effects`, which take the columns of `commit` first (`waits.py` and `effects.py` make the others). What a
set-shaped statement cannot take twice is made single here: of two tries with one number the later one counts (but one
that has ended stays), of a run's boundaries the newest moves it, of a thread's snapshots the newest stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    Change,
    CloseWait,
    Deliver,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    RecordAttempt,
    RequeueRun,
    Reserve,
    SendMessage,
    SettleEffect,
)
from perdure.core.records import Kind, RunState
from perdure.core.requests import StartRun

Arguments = list[Any]
_Filing = AppendCheckpoint | BeginSuperStep | EndRun | OpenWait | IntendEffect | SettleEffect | BeginUndo


def append_one_arguments(worker: int, step: AppendCheckpoint) -> Arguments:
    """The arguments of `append_one`."""
    return [
        worker,
        step.run,
        step.fence,
        step.super_step,
        step.key,
        step.seq,
        step.attempt,
        step.digest,
        step.failed,
        step.payload,
        step.started_at,
        step.ended_at,
    ]


def append_arguments(worker: int, steps: Sequence[AppendCheckpoint], changes: Sequence[Change]) -> Arguments:
    """The arguments of `append` for the steps of a batch that has nothing else for the log."""
    count = len(steps)
    return [
        *_guard(worker, changes),
        [each.run for each in steps],
        [each.fence for each in steps],
        [each.super_step for each in steps],
        [each.key for each in steps],
        [0] * count,
        [each.seq for each in steps],
        [each.attempt for each in steps],
        [each.digest for each in steps],
        [each.failed for each in steps],
        [each.payload for each in steps],
        [None] * count,
        [each.started_at for each in steps],
        [each.ended_at for each in steps],
        *_blobs(steps),
    ]


class Batch:
    """Changes of any kinds, sorted by what they write. Of `ends`, which follow in the same transaction, the threads are
    locked."""

    def __init__(self, changes: Iterable[Change], ends: Iterable[EndRun] = ()) -> None:
        self.checkpoints: list[tuple[Any, ...]] = []
        self.attempts: dict[tuple[int, int, str, int], RecordAttempt] = {}
        self.steps_begun: dict[int, int] = {}
        self.ended: dict[int, RunState] = {}
        self.threads: dict[int, tuple[int, int | None, int | None]] = {}
        self.requeued: dict[int, int] = {}
        self.dropped: list[tuple[int, str]] = []
        self.held: dict[int, HoldRun] = {}
        self.filed: list[_Filing] = []
        for change in changes:
            self._add(change)
        for end in ends:
            self.threads.setdefault(end.thread, (0, None, None))

    def _add(self, change: Change) -> None:
        match change:
            case AppendCheckpoint():
                self._step(change)
            case RecordAttempt():
                self._try(change)
            case BeginSuperStep():
                self._boundary(change, Kind.BOUNDARY, False)
                self.steps_begun[change.run] = change.super_step
                self.threads[change.thread] = (0, change.run, change.super_step)
            case EndRun():
                self._end(change)
            case RequeueRun():
                self.requeued[change.run] = change.delay_us
                self.dropped += ((change.run, key) for key in change.drop_keys)
            case HoldRun():
                self.held[change.run] = change
            case CloseWait():
                if change.record is not None:
                    self._step(change.record)
            case SendMessage():
                self._step(change.record)
            case SettleEffect():
                self.filed.append(change)
                if change.record is not None:
                    self._step(change.record)
            case OpenWait() | IntendEffect() | BeginUndo():
                self.filed.append(change)
            case BuryMessage() | ParkRun():
                """Nothing but what `waits.py` makes of it."""
            case Deliver() | Reserve():
                """Nothing but what `following.py` makes of it, which leaves a plain batch."""
            case _:
                assert_never(change)

    def _try(self, attempt: RecordAttempt) -> None:
        """The later of two tries with one number counts, but one that has ended stays."""
        at = (attempt.run, attempt.super_step, attempt.key, attempt.attempt)
        before = self.attempts.get(at)
        if before is None or before.error is None or attempt.error is not None:
            self.attempts[at] = attempt

    def _step(self, step: AppendCheckpoint) -> None:
        self.filed.append(step)
        self.checkpoints.append(
            (
                step.run,
                step.fence,
                step.super_step,
                step.key,
                int(Kind.STEP),
                step.seq,
                step.attempt,
                step.digest,
                step.failed,
                step.payload,
                None,
                step.started_at,
                step.ended_at,
            )
        )

    def _boundary(self, change: BeginSuperStep | EndRun, kind: Kind, failed: bool) -> None:
        at = (change.run, change.fence, change.super_step, "", int(kind), 0, 0, 0, failed)
        self.filed.append(change)
        self.checkpoints.append((*at, change.payload, change.state, change.ended_at, change.ended_at))

    def _end(self, end: EndRun) -> None:
        completed = end.outcome is RunState.COMPLETED
        self._boundary(end, Kind.ENDED, not completed)
        self.ended[end.run] = end.outcome
        _, run, step = self.threads.get(end.thread, (0, None, None))
        if completed and end.state is not None:
            run, step = end.run, end.super_step
        self.threads[end.thread] = (1, run, step)

    def arguments(self, worker: int, changes: Sequence[Change]) -> Arguments:
        """The arguments of `commit`."""
        attempts = self.attempts.values()
        return [
            *_guard(worker, changes),
            *columns(self.checkpoints, 13),
            *_blobs(self.filed),
            [each.run for each in attempts],
            [each.fence for each in attempts],
            [each.super_step for each in attempts],
            [each.key for each in attempts],
            [each.attempt for each in attempts],
            [each.error for each in attempts],
            [each.started_at for each in attempts],
            [each.ended_at for each in attempts],
            list(self.steps_begun),
            list(self.steps_begun.values()),
            list(self.ended),
            [state.value for state in self.ended.values()],
            list(self.threads),
            *columns(self.threads.values(), 3),
            list(self.requeued),
            list(self.requeued.values()),
            *columns(self.dropped, 2),
            list(self.held),
            [each.reason.value for each in self.held.values()],
            [each.detail for each in self.held.values()],
        ]


def halves(changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
    """The batch in two, with all changes of a run in the same half; the second is empty if there is one run alone."""
    runs = list(dict.fromkeys(change.run for change in changes))
    first = set(runs[: (len(runs) + 1) // 2])
    return [each for each in changes if each.run in first], [each for each in changes if each.run not in first]


def start_blobs(starts: Sequence[StartRun]) -> tuple[list[int], list[bytes], list[bytes]]:
    """Blobs of starts: the start's position from 1, digest and data."""
    blobs = [(position, blob) for position, start in enumerate(starts, 1) for blob in start.blobs]
    return [at for at, _ in blobs], [blob.digest for _, blob in blobs], [blob.data for _, blob in blobs]


def _guard(worker: int, changes: Sequence[Change]) -> Arguments:
    """The worker, and each run with the fence under which it is written."""
    fences = dict.fromkeys((each.run, each.fence) for each in changes)
    return [worker, [run for run, _ in fences], [fence for _, fence in fences]]


def _blobs(changes: Iterable[_Filing]) -> Arguments:
    blobs = {(each.thread, blob.digest): blob.data for each in changes if each.blobs for blob in each.blobs}
    return [[thread for thread, _ in blobs], [digest for _, digest in blobs], list(blobs.values())]


def columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Rows turned into columns, also where there are none."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]
