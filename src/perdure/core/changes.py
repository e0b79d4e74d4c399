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

from perdure.core.records import Blob, HeldReason, IfBusy, RunState


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


class EndRun(msgspec.Struct, frozen=True, gc=False):
    """Make the run terminal and hand the thread to its next run.

    Files the `ENDED` checkpoint under `super_step` (one past the last executed); `state` of a completed run moves
    the thread's snapshot pointer there (a failed run leaves the thread's state as it was). The next unfinished run
    of the thread, by ordinal, becomes its head and `ready`.
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


class RequeueRun(msgspec.Struct, frozen=True, gc=False):
    """Give the run back: `queued`, ready `delay_us` from now on the store's clock, at the same super-step. Without a
    delay it keeps its `ready_at`, and so its place in the queue.

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


Change = AppendCheckpoint | RecordAttempt | BeginSuperStep | EndRun | RequeueRun | HoldRun


class CommitOutcome(msgspec.Struct, frozen=True):
    """What became of a batch. A change is durable unless it is named here.

    `alive` is False when the worker's own row says it is dead or stopped: then nothing was written. `lost` holds
    runs whose fence has moved on: none of their changes were written. `refused` maps a run to the store's reason for
    refusing one of its changes: none of that run's changes in this batch were written. All others were.
    """

    alive: bool = True
    lost: frozenset[int] = frozenset()
    refused: dict[int, str] = {}


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


StartOutcome = Started | KeyTaken | ThreadHeld | OtherAgent


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
        case RequeueRun() | HoldRun():
            return 0
        case _:
            assert_never(item)


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
