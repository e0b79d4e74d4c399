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

from enum import StrEnum
from typing import assert_never

import msgspec

from perdure.core.records import (
    Blob,
    Checkpoint,
    HeldReason,
    IfBusy,
    Interrupt,
    InterruptState,
    RunState,
    WaitKind,
)


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


class OpenWait(msgspec.Struct, frozen=True, gc=False):
    """Begin to wait for something under a step's key. Where the run waits under that key already, nothing changes; its
    time, above all, stays the one of the first time.

    `delay_us` counts from now on the store's clock, `due_at` is a time on it; the earlier one is the wait's `due_at`.
    `interrupt` is for `ANSWER`, and becomes the `target`: a question that was asked under this key before is that one,
    open again if it was withdrawn. `target` is given for `RUN` and `ROOM`.
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


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way. `id` is a fresh number from `reserve_ids`: one that has arrived does not arrive again.
    `blobs` are the receiving thread's."""

    id: int
    thread_id: str
    sender: str
    label: str
    payload: bytes
    blobs: tuple[Blob, ...] = ()


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

    Not where one of its waits is ready: then it stays `running`, and `CommitOutcome.awake` says so. Nor where its
    cancellation was requested and it does not know of it (`cancelled`): then `CommitOutcome.cancelled` does.
    """

    run: int
    fence: int
    thread: int
    cancelled: bool = False


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
)

Place = tuple[int, int, str]
"""A run, a super-step and a key."""


class Bounce(StrEnum):
    """Why one change was not written, though its run is in order."""

    NO_THREAD = "no_thread"
    FULL = "full"
    """The mailbox."""
    ANSWERED = "answered"
    GONE = "gone"
    """The message."""


class CommitOutcome(msgspec.Struct, frozen=True):
    """What became of a batch. A change is durable unless it is named here.

    `alive` is False when the worker's own row says it is dead or stopped: then nothing was written. `lost` holds
    runs whose fence has moved on: none of their changes were written. `refused` maps a run to the store's reason for
    refusing one of its changes: none of that run's changes in this batch were written. `bounced` maps the place of a
    `CloseWait` or a `SendMessage` to why that change alone was not written. `awake` holds runs that were not parked,
    since they need not wait. All others were.

    `cancelled` holds the runs of the batch whose cancellation was requested: their `EndRun`s of another outcome, and
    their `ParkRun`s that did not know of it, were not written.
    """

    alive: bool = True
    lost: frozenset[int] = frozenset()
    refused: dict[int, str] = {}
    bounced: dict[Place, Bounce] = {}
    awake: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()


class StartRun(msgspec.Struct, frozen=True, gc=False):
    """Ask for a run. `id` and `thread` are fresh numbers from `reserve_ids`; a known thread keeps its own."""

    id: int
    thread: int
    thread_id: str
    agent: str
    queue: str
    priority: int
    delay_us: int
    key: str | None
    digest: bytes
    """Of agent and arguments: the same key must come with the same digest."""
    payload: bytes
    if_busy: IfBusy
    tenant: str | None = None
    tags: tuple[str, ...] = ()
    blobs: tuple[Blob, ...] = ()
    deadline_us: int | None = None
    """From now on the store's clock; `deadline_at` is a time on it. The earlier one counts."""
    deadline_at: int | None = None
    parent: Parent | None = None
    displaced: bytes = b""
    """With `if_busy` interrupt or rollback: the encoded error of runs that it cancels at once."""


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The run whose agent starts another: it must be `running`, this worker's, under this fence."""

    run: int
    fence: int
    worker: int
    cancelled: bool = False
    """It knows that its cancellation was requested, and starts this all the same."""
    detached: bool = False


class Started(msgspec.Struct, frozen=True):
    """The run is on disk. `created` is False where it was there before (same key, or joined)."""

    run: int
    thread_id: str
    created: bool


class KeyTaken(msgspec.Struct, frozen=True):
    """The key started another run, with another agent or other input."""

    run: int


class ThreadHeld(msgspec.Struct, frozen=True):
    """`if_busy=reject` and the thread is busy with this run, or `depth` unfinished runs fill its queue."""

    run: int
    depth: int


class OtherAgent(msgspec.Struct, frozen=True):
    """The thread belongs to another agent."""

    agent: str


class QuestionOpen(msgspec.Struct, frozen=True):
    """`if_busy=unless_asked` and the thread's head, this run, has this open interrupt."""

    run: int
    interrupt: int


class ParentGone(msgspec.Struct, frozen=True):
    """The parent is not that worker's any more under that fence (`cancelled` False), or its cancellation was requested
    and it does not know of it."""

    run: int
    cancelled: bool


StartOutcome = Started | KeyTaken | ThreadHeld | OtherAgent | QuestionOpen | ParentGone


class ForkRun(msgspec.Struct, frozen=True):
    """Ask for a run on a new thread that goes on from a checkpoint of another: at super-step `super_step`, with this
    state before it and these records in it. `start` says the rest (its payload: the arguments of that super-step; its
    blobs: all that arguments, state and records need). A thread that exists is refused, with its own agent's
    `OtherAgent` or with `ThreadHeld`."""

    start: StartRun
    super_step: int
    state: bytes | None
    records: tuple[Checkpoint, ...]
    """Their `run` is the new one's; `fence` and `worker` are as they were recorded."""


class NewAnswer(msgspec.Struct, frozen=True):
    """An answer to an interrupt, encoded in canonical form: equal answers have equal bytes. `blobs` are the asking
    run's thread's."""

    interrupt: int
    answer: bytes
    by: str | None
    blobs: tuple[Blob, ...] = ()


class Answered(msgspec.Struct, frozen=True):
    """It has this answer. `created` is False where it had it before."""

    interrupt: Interrupt
    created: bool


class NotAnswered(msgspec.Struct, frozen=True):
    """It has another answer, or is expired or withdrawn: `interrupt.state` says which."""

    interrupt: Interrupt


AnswerOutcome = Answered | NotAnswered


class Sent(msgspec.Struct, frozen=True):
    """The message is in the mailbox, at this place."""

    thread: int
    seq: int


class NotSent(msgspec.Struct, frozen=True):
    """It is not: there is no such thread, or its mailbox is full."""

    why: Bounce


SendOutcome = Sent | NotSent


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
        case RequeueRun() | HoldRun() | BuryMessage() | ParkRun():
            return 0
        case _:
            assert_never(item)


def record_of(change: Change) -> AppendCheckpoint | None:
    """The step's record that the change files, if it files one."""
    match change:
        case AppendCheckpoint():
            return change
        case CloseWait() | SendMessage():
            return change.record
        case _:
            return None


def place_of(change: Change) -> Place | None:
    """The checkpoint that the change files; None if it files none."""
    match change:
        case BeginSuperStep() | EndRun():
            return change.run, change.super_step, ""
        case AppendCheckpoint() | SendMessage():
            return change.run, change.super_step, change.key
        case CloseWait():
            return None if change.record is None else (change.run, change.super_step, change.key)
        case RecordAttempt() | RequeueRun() | HoldRun() | OpenWait() | BuryMessage() | ParkRun():
            return None
        case _:
            assert_never(change)


def _bytes(blobs: tuple[Blob, ...]) -> int:
    return sum(len(blob.data) for blob in blobs) if blobs else 0


class NewWorker(msgspec.Struct, frozen=True):
    """A worker's row at its start. `id` is a fresh number from `reserve_ids`."""

    id: int
    name: str
    host: str
    pid: int
    deployment: str
    lease_us: int


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a worker is ready to execute now."""

    worker: int
    agents: tuple[str, ...]
    queues: tuple[str, ...]
    deployment: str
    limit: int
    suspects: int = 1
    """At most this many runs with `strikes >= SUSPECT_STRIKES` among them."""
    ticket: int = 0
    """The worker's last `give_back`, counted: a claim that was sent before it and comes after it takes nothing."""


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs to list, newest first. None means any; `after` is the last id of the page before."""

    state: RunState | None = None
    agent: str | None = None
    thread_id: str | None = None
    tenant: str | None = None
    tags: tuple[str, ...] = ()
    limit: int = 100
    after: int | None = None
    parent: int | None = None


class InterruptFilter(msgspec.Struct, frozen=True):
    """Which interrupts to list, oldest first. None means any; `after` is the last id of the page before."""

    state: InterruptState | None = InterruptState.OPEN
    agent: str | None = None
    thread_id: str | None = None
    run: int | None = None
    assignee: str | None = None
    tenant: str | None = None
    limit: int = 100
    after: int | None = None
