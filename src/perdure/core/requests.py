"""What is asked of a store from outside of a run, and what it answers: starts, forks, answers, messages, claims, lists.

Every request is a value, checked before it reaches the store, and may be sent again: it is known by its ids.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from perdure.core.budgets import NewBudget
from perdure.core.deliveries import Billing
from perdure.core.records import Blob, Checkpoint, IfBusy, Interrupt, InterruptState, RunState


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message on its way. `id` is a fresh number from `reserve_ids`: one that has arrived does not arrive again.
    `blobs` are the receiving thread's. `key` is the sender's own name for it: where a message with this key has been
    sent to this thread before, ever, it is that one, and nothing is written."""

    id: int
    thread_id: str
    sender: str
    label: str
    payload: bytes
    blobs: tuple[Blob, ...] = ()
    key: str | None = None


class Bounce(StrEnum):
    """Why one change was not written, though its run is in order."""

    NO_THREAD = "no_thread"
    FULL = "full"
    """The mailbox, or the lane of the outbox."""
    BUDGET = "budget"
    """A budget has not enough left."""
    ANSWERED = "answered"
    GONE = "gone"
    """The message."""


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
    budget: NewBudget | None = None
    """The run's own, named `run:` and its name; beside it the run counts against all that its parent counts against
    then."""
    billing: Billing | None = None
    """Where its bill goes, whenever it ends."""


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
    message: int | None = None
    """Of one that its key stands for, sent before under another id: that id."""


class NotSent(msgspec.Struct, frozen=True):
    """It is not: there is no such thread, or its mailbox is full."""

    why: Bounce


SendOutcome = Sent | NotSent


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
