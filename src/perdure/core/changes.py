"""Each write to a run is a value: a `Change`, guarded by the fence its worker holds.

Imperatives, in the order a run meets them. A worker sends them in batches (`Store.commit`); a store applies each
kind with one set-shaped statement. Two rules hold for all of them:

- **Guarded.** A change takes hold only while its run is `running`, owned by the committing worker, under exactly
  this fence.
- **Repeatable.** A batch whose answer was lost is sent again whole. A change that finds its own work done (same
  fence, slice ended or row present) is a no-op, and is not reported as lost.

Adding a kind: a struct here, a statement of that name in each store, a case in the conformance suite.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from perdure.core.budgets import Amounts, Spent
from perdure.core.deliveries import NewDelivery
from perdure.core.effects import EffectState
from perdure.core.meters import Meter
from perdure.core.records import (
    Blob,
    HeldReason,
    RunState,
    WaitKind,
)
from perdure.core.requests import Bounce, NewMessage, StartRun


class AppendCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Record a step: its result, or its final error."""

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    seq: int
    attempt: int
    digest: int
    failed: bool
    payload: bytes
    started_at: int
    ended_at: int
    blobs: tuple[Blob, ...] = ()
    meters: tuple[Meter, ...] = ()
    """What it has used: filed with it, under its fence and attempt."""
    spent: Spent | None = None
    """Counts against these budgets, once, with it; what its step has reserved is released."""


class RecordAttempt(msgspec.Struct, frozen=True, gc=False):
    """Record a try that is not the step's record; a later one with the same number replaces it. Only a try that has
    ended is never unfinished again: that would be an old request that comes late."""

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    attempt: int
    error: bytes | None
    started_at: int
    ended_at: int | None
    meters: tuple[Meter, ...] = ()
    """What the try has used, though it is not the step's record; filed once for its attempt and this fence."""
    spent: Spent | None = None
    """Counts against these budgets where its step has a reservation by this fence, which is released; else it has been
    counted, and this is a batch sent again. So is one of a try whose end is on record under this fence: then the
    reservation is the next try's."""


class BeginSuperStep(msgspec.Struct, frozen=True, gc=False):
    """End the super-step before `super_step` and file the boundary: the next arguments and the state.

    The run's `super_step` becomes this one, and the thread's snapshot pointer moves to this boundary.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    payload: bytes
    state: bytes | None
    ended_at: int
    blobs: tuple[Blob, ...] = ()
    waited: bool = False
    """The super-step before has opened waits: they are closed, and open interrupts withdrawn."""


class EndRun(msgspec.Struct, frozen=True, gc=False):
    """Make the run terminal and hand the thread to its next run.

    Files the `ENDED` checkpoint under `super_step` (one past the last executed); `state` of a completed run moves
    the thread's snapshot pointer there (a failed run leaves the thread's state as it was). The next unfinished run
    of the thread, by ordinal, becomes its head and `ready`. Runs that wait for this one's end are woken in the same
    transaction. A run whose cancellation was requested can end only as `cancelled`: any other outcome is not written,
    and `CommitOutcome.cancelled` says so. The end of a cancelled run with `rollback` moves the thread's snapshot
    pointer back to where it was before the run.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    outcome: RunState
    payload: bytes
    state: bytes | None
    ended_at: int
    blobs: tuple[Blob, ...] = ()
    waited: bool = False
    """It has opened waits: they are closed, and open interrupts withdrawn."""
    reserves: bool = False
    """It counts against budgets: what was reserved for tries of it, and not settled, is spent for good."""


class RequeueRun(msgspec.Struct, frozen=True, gc=False):
    """Give the run back: `queued`, ready `delay_us` from now on the store's clock, at the same super-step. Without a
    delay, or where its cancellation was requested, it keeps its `ready_at`, and so its place in the queue.

    Tries that were cut short in it are forgotten: they were ended in good order, and do not count.
    `drop_keys` names failed step records of the current super-step to delete (with their attempts), so that those
    steps run again.
    """

    run: int
    fence: int
    thread: int
    delay_us: int
    drop_keys: tuple[str, ...] = ()


class HoldRun(msgspec.Struct, frozen=True, gc=False):
    """Keep the run for a person. It stays the head of its thread: what is queued behind it waits."""

    run: int
    fence: int
    thread: int
    reason: HeldReason
    detail: str


class NewInterrupt(msgspec.Struct, frozen=True, gc=False):
    """A question as it is asked. `id` is a fresh number from `reserve_ids`; one that is there keeps its own."""

    id: int
    name: str
    payload: bytes
    schema: bytes | None
    digest: str
    on_timeout: str
    assignee: str | None
    budget: tuple[int, int] | None = None
    """It asks about this budget, as it was set so often (`rev`). One that has been set since it was read is not to be
    asked about any more: then the question is `withdrawn` from the start, and its wait is ready."""


class OpenWait(msgspec.Struct, frozen=True, gc=False):
    """Begin to wait for something under a step's key. Where the run waits under that key already, nothing changes; its
    time, above all, stays the one of the first time.

    `delay_us` counts from now on the store's clock, `due_at` is a time on it; the earlier one is the wait's `due_at`.
    `interrupt` is for `ANSWER`, and becomes the `target`: a question that was asked under this key before is that one,
    open again if it was withdrawn or has expired. `target` is given for `RUN` and `ROOM`.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    kind: WaitKind
    delay_us: int | None = None
    due_at: int | None = None
    target: int | None = None
    labels: tuple[str, ...] = ()
    interrupt: NewInterrupt | None = None
    blobs: tuple[Blob, ...] = ()


class CloseWait(msgspec.Struct, frozen=True, gc=False):
    """End the wait under this key, if there is one. `record` is the step's record, filed with it; without one nobody
    waits any more, and an open interrupt is withdrawn.

    `take` is the `seq` of a message of the run's own mailbox, which leaves it. `expired` says that its time has come:
    an open interrupt is then expired. It bounces (nothing of it is written) where the message is not there, or where
    the interrupt that it calls expired has been answered.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    record: AppendCheckpoint | None = None
    take: int | None = None
    expired: bool = False


class SendMessage(msgspec.Struct, frozen=True, gc=False):
    """Put a message into a mailbox, with the record of the step that sent it. It bounces (neither is written) where
    there is no such thread, or its mailbox is full."""

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    record: AppendCheckpoint
    message: NewMessage


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Put a delivery into the outbox, with the record of the step that asked for it. It goes to the end of its lane, at
    once claimable where that is empty. Where its sink has had one with this key it is that one: then only the record is
    written. It bounces (neither is written) where its lane is full (`LANE_MAX`)."""

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    record: AppendCheckpoint
    delivery: NewDelivery


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Reserve what a try of this step may cost, in every one of these budgets. It bounces, and nothing is reserved,
    where one of them has not enough for it (`budgets.lacking`, counting all that is reserved).

    What another claim had reserved under this key is spent from then on. A reservation under this key by this fence is
    this one, sent again; so is one for a step that is on record. The changes of a batch reserve and settle in their
    order.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    budgets: tuple[int, ...]
    amounts: Amounts


class BuryMessage(msgspec.Struct, frozen=True, gc=False):
    """Put a message of the run's own mailbox, which nobody can receive as it is, among the dead letters."""

    run: int
    fence: int
    thread: int
    seq: int
    reason: str


class ParkRun(msgspec.Struct, frozen=True, gc=False):
    """Let go of a run that only waits: `waiting`, no worker, claimable from the earliest `due_at` of its waits or its
    deadline on (`NEVER_US` if there is none); `strikes = 0`, since its worker has lived through it. It comes after all
    that its batch says of the run, and not at all beside an end of it.

    Not where one of its waits is ready, or where it has none (they may have been closed since): then it stays
    `running`, and `CommitOutcome.awake` says so. Nor where its cancellation was requested and it does not know of it
    (`cancelled`): then `CommitOutcome.cancelled` does.
    """

    run: int
    fence: int
    thread: int
    cancelled: bool = False


class IntendEffect(msgspec.Struct, frozen=True, gc=False):
    """Put on disk that an effect, or its undo, is about to be dispatched: `intended` (`undoing`), by this worker under
    this fence, at the store's time. Its first makes the row, with `effect` as its id; of a later one only `attempt`
    counts (the row keeps its key, arguments and policy), and for an undo it is the row's `undo_attempt`.

    Not where the run's cancellation was requested and it does not know of it (`cancelled`): then
    `CommitOutcome.cancelled` says so, and nothing may be dispatched. A row with this fence and this attempt, or a later
    one, has been written: that is a batch sent again.
    """

    run: int
    fence: int
    thread: int
    super_step: int
    key: str
    effect: int
    name: str
    code: str
    idempotency_key: str
    policy: str
    undoable: bool
    attempt: int
    digest: int
    arguments: bytes
    blobs: tuple[Blob, ...] = ()
    undo: bool = False
    cancelled: bool = False


class SettleEffect(msgspec.Struct, frozen=True, gc=False):
    """Say what became of an effect, or of its undo (see `effects.SETTLED`), with the record of its step, if it has one
    now. Only of the attempt that the row has; a row that is `state` already, by this fence, is one sent again. `by`
    names the person who said so; `blobs` are what `outcome` refers to."""

    run: int
    fence: int
    thread: int
    effect: int
    attempt: int
    state: EffectState
    outcome: bytes | None
    note: str | None = None
    by: str | None = None
    record: AppendCheckpoint | None = None
    blobs: tuple[Blob, ...] = ()


class BeginUndo(msgspec.Struct, frozen=True, gc=False):
    """Decide how a run will end (`failed` or `cancelled`, with the payload of its `ENDED` checkpoint) once its effects
    have been undone. From then on none of its code runs but undos; its claims say so (`Claimed.undoing`). The first
    decision stands."""

    run: int
    fence: int
    thread: int
    outcome: RunState
    payload: bytes
    blobs: tuple[Blob, ...] = ()


Change = (
    AppendCheckpoint
    | RecordAttempt
    | BeginSuperStep
    | EndRun
    | RequeueRun
    | HoldRun
    | OpenWait
    | CloseWait
    | SendMessage
    | BuryMessage
    | ParkRun
    | IntendEffect
    | SettleEffect
    | BeginUndo
    | Deliver
    | Reserve
)

Place = tuple[int, int, str]
"""A run, a super-step and a key."""


class CommitOutcome(msgspec.Struct, frozen=True):
    """What became of a batch. A change is durable unless it is named here.

    `alive` is False when the worker's own row says it is dead or stopped: then nothing was written. `lost` holds
    runs whose fence has moved on: none of their changes were written. `refused` maps a run to the store's reason for
    refusing one of its changes: none of that run's changes in this batch were written. `bounced` maps the place of a
    `CloseWait`, a `SendMessage`, a `Deliver` or a `Reserve` to why that change alone was not written. `awake` holds
    runs that were not parked, since they need not wait. All others were.

    `cancelled` holds the runs of the batch whose cancellation was requested: their `EndRun`s of another outcome, and
    their `ParkRun`s and `IntendEffect`s that did not know of it, were not written.
    """

    alive: bool = True
    lost: frozenset[int] = frozenset()
    refused: dict[int, str] = {}
    bounced: dict[Place, Bounce] = {}
    awake: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()


def bytes_of(item: Change | StartRun) -> int:
    """The bytes of payload that a change or a start carries: what bounds a batch and the queue before it."""
    match item:
        case AppendCheckpoint():
            return len(item.payload) + _bytes(item.blobs)
        case BeginSuperStep() | EndRun():
            return len(item.payload) + len(item.state or b"") + _bytes(item.blobs)
        case StartRun():
            return len(item.payload) + _bytes(item.blobs)
        case RecordAttempt():
            return len(item.error or b"")
        case OpenWait():
            return _bytes(item.blobs) + (len(item.interrupt.payload) if item.interrupt is not None else 0)
        case CloseWait():
            return 0 if item.record is None else bytes_of(item.record)
        case SendMessage():
            return bytes_of(item.record) + len(item.message.payload) + _bytes(item.message.blobs)
        case Deliver():
            return bytes_of(item.record) + len(item.delivery.payload) + _bytes(item.delivery.blobs)
        case IntendEffect():
            return len(item.arguments) + _bytes(item.blobs)
        case SettleEffect():
            own = len(item.outcome or b"") + _bytes(item.blobs)
            return own if item.record is None else own + bytes_of(item.record)
        case BeginUndo():
            return len(item.payload) + _bytes(item.blobs)
        case RequeueRun() | HoldRun() | BuryMessage() | ParkRun() | Reserve():
            return 0
        case _:
            assert_never(item)


def record_of(change: Change) -> AppendCheckpoint | None:
    """The step's record that the change files, if it files one."""
    match change:
        case AppendCheckpoint():
            return change
        case CloseWait() | SendMessage() | SettleEffect() | Deliver():
            return change.record
        case _:
            return None


def place_of(change: Change) -> Place | None:
    """The checkpoint that the change files; None if it files none."""
    match change:
        case BeginSuperStep() | EndRun():
            return change.run, change.super_step, ""
        case AppendCheckpoint() | SendMessage() | Deliver():
            return change.run, change.super_step, change.key
        case CloseWait():
            return None if change.record is None else (change.run, change.super_step, change.key)
        case SettleEffect(record=record):
            return None if record is None else (record.run, record.super_step, record.key)
        case RecordAttempt() | RequeueRun() | HoldRun() | OpenWait() | BuryMessage() | ParkRun():
            return None
        case IntendEffect() | BeginUndo() | Reserve():
            return None
        case _:
            assert_never(change)


def _bytes(blobs: tuple[Blob, ...]) -> int:
    return sum(len(blob.data) for blob in blobs) if blobs else 0
