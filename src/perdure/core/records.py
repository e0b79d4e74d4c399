"""Rows, as the rest of the code sees them: frozen values without behaviour.

Ids are positive 63-bit integers inside and strings outside (`run_id(7)` is `"r7"`). Times are whole microseconds
since the epoch on the *store's* clock, unless a field says otherwise. Payloads are opaque bytes here; `codec` and
`snapshot` know what they mean. The structs are msgspec's because a fan-out makes them by the million: five times
cheaper to build than a frozen dataclass.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from perdure.core.effects import Effect, Undoing


class RunState(StrEnum):
    """Where a run is in its life. `states.py` has the table of moves between them."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AgentState(StrEnum):
    """What a thread is doing, in MegaAgent's words."""

    IDLE = "idle"
    PROCESSING = "processing"
    RESPONSE = "response"


class HeldReason(StrEnum):
    """Why a run waits for a person."""

    POISON = "poison"
    DIVERGED = "diverged"
    SCHEMA = "schema"
    VERSION = "version"
    REFUSED = "refused"
    EXHAUSTED = "exhausted"
    """The last allowed try of a step was cut short by its worker's death; nobody knows how it ended."""


class WorkerState(StrEnum):
    """A worker's row: `alive` may write; the others never write again."""

    ALIVE = "alive"
    STOPPED = "stopped"
    DEAD = "dead"


class IfBusy(StrEnum):
    """What `start` does on a thread that has an unfinished run."""

    UNLESS_ASKED = "unless_asked"
    """Queue behind the others; refused where the thread's head has an open question. What a start that says nothing
    means."""
    ENQUEUE = "enqueue"
    """Queue behind the others, also behind one that has an open question."""
    REJECT = "reject"
    JOIN = "join"
    INTERRUPT = "interrupt"
    """Cancel what is unfinished, keep the state it has saved, and queue behind it."""
    ROLLBACK = "rollback"
    """The same, and the state goes back to what it was before those runs."""


class WaitKind(IntEnum):
    """What a run waits for. `ready` says when the wait is over."""

    TIMER = 0
    """A time. Ready when it has come."""

    ANSWER = 1
    """The answer to the interrupt `target`. Ready when that is not open any more, or its time has come."""

    MESSAGE = 2
    """A message in the mailbox of the run's own thread, with one of `labels` (none: any). Ready when there is one, or
    the time has come."""

    RUN = 3
    """The end of the run `target`. Ready when that is terminal or held."""

    ROOM = 4
    """Room in the mailbox of the thread `target`. Ready when it is not full."""


class InterruptState(StrEnum):
    """An interrupt's life: `open`, then one of the others, for good (but what nobody answered may be asked again)."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    """Nobody waits for an answer any more: the branch that asked was cancelled, or the run has ended."""


class Kind(IntEnum):
    """What a checkpoint records."""

    STEP = 0
    """A step's result or final error. `payload`: the encoded result, or the encoded `ErrorInfo` if `failed`."""

    BOUNDARY = 1
    """The start of a super-step. `payload`: the encoded arguments; `state`: the thread's state at that point
    (None before super-step 1: it is the thread's then)."""

    ENDED = 2
    """The end of a run, filed under the super-step that would have come next. `payload`: the encoded result, or
    the encoded `ErrorInfo` if `failed`; `state`: the thread's state (None if the run failed)."""


class Blob(msgspec.Struct, frozen=True, gc=False):
    """Content-addressed bytes of one thread: stored once, however often it is put."""

    digest: bytes
    data: bytes


class ErrorInfo(msgspec.Struct, frozen=True):
    """An exception as it is recorded: text only, never rebuilt into a class."""

    type: str
    message: str
    traceback: str = ""
    failed_keys: tuple[str, ...] = ()
    """The steps whose failure ended the run: what `retry` runs again."""
    retry_in_s: float = 0.0
    """How long to wait from then on before another try: what the policy said, or, where it allowed no further one, what
    the server had asked for."""
    ids: dict[str, str | int] = {}
    """What an error of perdure's own names, by attribute: a thread, a run, a limit."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """One committed row of a run's log. Unique by `(run, super_step, key)`; boundaries have the key `""`."""

    run: int
    super_step: int
    key: str
    kind: Kind
    seq: int
    """Order of recording within the run's slice; only for display."""
    fence: int
    worker: int
    attempt: int
    digest: int
    """64 bits of the arguments' digest, signed; 0 for boundaries and for steps that ignore theirs."""
    failed: bool
    payload: bytes
    state: bytes | None
    started_at: int
    """On the worker's clock, like `ended_at`: the difference is the duration."""
    ended_at: int


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A try of a step that is not its record: it failed and will be tried again, or it began in a recovered run."""

    run: int
    super_step: int
    key: str
    attempt: int
    fence: int
    error: bytes | None
    """The encoded `ErrorInfo`; None while nobody knows how the try ended."""
    started_at: int
    ended_at: int | None


class Run(msgspec.Struct, frozen=True):
    """One execution of an agent on a thread."""

    id: int
    thread: int
    thread_id: str
    ordinal: int
    agent: str
    queue: str
    deployment: str | None
    state: RunState
    reason: str | None
    """Why it is held or cancelled."""
    detail: str | None
    """The same in a sentence or more, for people."""
    ready: bool
    """Nothing before it on its thread: a claim may take it once `ready_at` has come."""
    ready_at: int
    priority: int
    worker: int | None
    fence: int
    attempt: int
    """Claims so far."""
    recoveries: int
    """How often its worker died."""
    strikes: int
    """Such deaths in a row without a new checkpoint between; `RECOVERIES_MAX` of them hold it."""
    super_step: int
    key: str | None
    tenant: str | None
    tags: tuple[str, ...]
    created_at: int
    started_at: int | None
    ended_at: int | None
    parent: int | None = None
    """The run that started it, if an agent did."""
    detached: bool = False
    """A cancellation of the parent does not go down to it."""
    deadline_at: int | None = None
    """When it is to have ended, on the store's clock; from then on it is claimable, to be failed."""
    cancel: str | None = None
    """Why its cancellation was requested; it cannot complete any more. None where it was not. (A terminal one keeps
    it.)"""
    rollback: bool = False
    """Its cancellation takes back the state that it has saved."""
    undoing: bool = False
    """Its code is over, and its effects are being undone (or were)."""


class Wait(msgspec.Struct, frozen=True):
    """What a run waits for under a step's key, until the step's record is there. At most one under a key."""

    run: int
    super_step: int
    key: str
    kind: WaitKind
    opened_at: int
    due_at: int | None
    """When it is over in any case, on the store's clock."""
    target: int | None
    """An interrupt, a run or a thread, by `kind`."""
    labels: tuple[str, ...]
    ready: bool
    """Whether it was over when it was read; `due` says whether because its time has come."""
    due: bool


class Interrupt(msgspec.Struct, frozen=True):
    """A question that a run has asked, from its asking on for good."""

    id: int
    run: int
    thread: int
    thread_id: str
    agent: str
    super_step: int
    key: str
    name: str
    state: InterruptState
    payload: bytes
    """Encoded; a large one is a reference to a blob of the thread, as in a checkpoint."""
    schema: bytes | None
    """The JSON schema of its answer, as JSON text; None where anything will do."""
    digest: str
    """Of the payload: what is being approved."""
    on_timeout: str
    """`raise`, `cancel` or `default`: what expiry does, for people to know."""
    assignee: str | None
    tenant: str | None
    created_at: int
    expires_at: int | None
    answer: bytes | None
    answered_by: str | None
    answered_at: int | None


class Message(msgspec.Struct, frozen=True):
    """An item of a thread's mailbox. `seq` is the order of arrival in that mailbox."""

    id: int
    thread: int
    seq: int
    sender: str
    """The run (`r42`) that sent it; empty if it came from outside."""
    label: str
    """The name of its type."""
    payload: bytes
    sent_at: int
    dead: str | None
    """Why it could not be received; None while it waits to be."""


class Outcome(msgspec.Struct, frozen=True):
    """What a terminal run ended with: the payload of its `ENDED` checkpoint."""

    run: int
    failed: bool
    payload: bytes


class Thread(msgspec.Struct, frozen=True):
    """An agent's durable identity."""

    id: int
    thread_id: str
    agent: str
    head: int | None
    """The unfinished run whose turn it is; None when idle."""
    depth: int
    """Unfinished runs, the head included."""
    last_ordinal: int
    snapshot_run: int | None
    """The checkpoint `(snapshot_run, snapshot_step, "")` holds the thread's newest state; None before the first."""
    snapshot_step: int | None
    created_at: int


class Worker(msgspec.Struct, frozen=True):
    """A process that executes runs, from its start to its end; a new start is a new row."""

    id: int
    name: str
    host: str
    pid: int
    deployment: str
    state: WorkerState
    idle: bool
    session: bool
    """Its death shows without waiting for the lease."""
    started_at: int
    lease_until: int
    ended_at: int | None
    running: int = 0
    """Runs it holds now."""


class Claimed(msgspec.Struct, frozen=True):
    """A run in a worker's hands, with all that the execution needs: no read per step follows."""

    run: int
    thread: int
    thread_id: str
    agent: str
    fence: int
    super_step: int
    attempt: int
    recoveries: int
    strikes: int
    created_at: int
    arguments: bytes
    """The payload of the boundary before this super-step."""
    state: bytes | None
    """The root of the thread's state at that boundary; None for a thread without one."""
    records: tuple[Checkpoint, ...]
    """This super-step's steps, in `seq` order."""
    attempts: tuple[Attempt, ...]
    """This super-step's unfinished tries, by key and attempt."""
    now: int = 0
    """The store's time of the claim."""
    waits: tuple[Wait, ...] = ()
    """What it waits for, by key."""
    tenant: str | None = None
    priority: int = 0
    deadline_at: int | None = None
    cancel: str | None = None
    """Why it is to be cancelled; None where it is not."""
    effects: tuple[Effect, ...] = ()
    """This super-step's effects, by key."""
    undoing: Undoing | None = None
    """How it will end: its code is over, and its effects are being undone."""
    budgets: tuple[int, ...] = ()
    """What it counts against: its own and its parent's, and, as they are at the claim, those named `agent:` and its
    agent, and `tenant:` and its tenant."""


class TakenOver(msgspec.Struct, frozen=True):
    """What a take-over did to one dead worker's runs."""

    worker: int
    requeued: tuple[int, ...]
    held: tuple[int, ...]


def run_id(id: int) -> str:
    """The name of a run outside: `"r"` and its number."""
    return f"r{id}"


def worker_id(id: int) -> str:
    """The name of a worker outside: `"w"` and its number."""
    return f"w{id}"


def interrupt_id(id: int) -> str:
    """The name of an interrupt outside: `"i"` and its number."""
    return f"i{id}"


def message_id(id: int) -> str:
    """The name of a message outside: `"m"` and its number."""
    return f"m{id}"


def budget_name(run: int) -> str:
    """The name of a run's own budget."""
    return f"run:{run_id(run)}"


def parse_run_id(text: str) -> int | None:
    """The number behind a run's name, or None where the text is no such name."""
    return parse_id("r", text)


def parse_id(letter: str, text: str) -> int | None:
    """The number behind a name of this letter, or None where the text is no such name."""
    digits = text[1:] if text[:1] == letter else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
