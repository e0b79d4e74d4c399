"""What the model's world consists of: rows, requests, processes, a provider, and a few notes for the invariants.

Everything is a flat tuple of words and small numbers, because states are hashed by the hundred thousand. A *claim
number* counts claims; it stands beside each fence, and no rule of the protocol may look at it. It lets the invariants
say "by an older claim" even where a wrong variant lets two claims have the same fence.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NAMES: Final = ("W1", "W2", "W3", "W4")
"""What stories call the workers."""

# -- a worker's row -------------------------------------------------------------------------------------------------

ABSENT: Final = "absent"
ALIVE: Final = "alive"
DEAD: Final = "dead"
STOPPED: Final = "stopped"

# -- a run's row ----------------------------------------------------------------------------------------------------

QUEUED: Final = "queued"
RUNNING: Final = "running"
HELD: Final = "held"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
TERMINAL: Final = frozenset({COMPLETED, FAILED})

SETTLED: Final = TERMINAL | {HELD}
"""Nothing new goes wrong here: after an end it does not matter, and while a run is held it may as well wait."""

POISON: Final = "poison"
"""Held: it kept losing its workers."""
UNSETTLED: Final = "unknown"
"""Held: an effect's outcome is unknown, and a person has to say."""

# -- where a worker is ----------------------------------------------------------------------------------------------

IDLE: Final = "idle"
UNSURE: Final = "unsure"
"""It may own a run that it does not execute: a claim was not answered, or an execution broke off."""
STEP: Final = "before the step"
IN_STEP: Final = "in the step's body"
EFFECT: Final = "before the effect"
INTENDED: Final = "about to dispatch"
CALLED: Final = "waiting for the provider"
ANSWERED: Final = "holding the provider's answer"
UNANSWERED: Final = "without the provider's answer"
FOUND: Final = "at an intent without an outcome"
UNKNOWN: Final = "at an unknown outcome"
END: Final = "at the end"
FAIL: Final = "failing"
GONE: Final = "gone"

HANDS_BACK: Final = frozenset({STEP, IN_STEP, EFFECT, INTENDED, CALLED, FOUND, UNKNOWN})
"""Where a draining worker gives its run back; elsewhere it writes first what it has in its hands."""

NEEDS_TRUST: Final = frozenset({STEP, EFFECT, INTENDED})
"""Where it matters whether a worker trusts its lease. (An idle one would only claim less.)"""

# -- the effect's ledger --------------------------------------------------------------------------------------------

NONE: Final = "none"
INTENT: Final = "intent"
OUTCOME_UNKNOWN: Final = "unknown"
NOT_DONE: Final = "did not happen"
OUTCOME: Final = "outcome"

# -- requests to the database ---------------------------------------------------------------------------------------

CLAIM: Final = "claim"
RECORD: Final = "record"
ENDING: Final = "end"
FAILURE: Final = "failure"
REQUEUE: Final = "hand back"
HOLD: Final = "hold"
LEDGER: Final = frozenset({INTENT, OUTCOME_UNKNOWN, NOT_DONE, OUTCOME})
"""The other kinds of request: what the ledger is to say."""

BROKEN: Final = "broken"
"""Its answer was lost; its worker will send it again."""
SENT: Final = "sent"
LOOKED: Final = "looked"
"""It has read what it needs, and holds no lock (only wrong variants come here)."""
LOCKED: Final = "locked"
"""It holds its worker's row in share mode and has seen it alive."""
CHECKED: Final = "checked"
"""It has compared the run's row too; next it writes."""

TAKE_OVER: Final = "take over"
GIVE_BACK: Final = "give back"
RETIRE: Final = "retire"
REQUEUE_LATER: Final = "re-queue"
"""The second half of a take-over in two transactions (a wrong variant)."""


class Row(NamedTuple):
    """A record: who wrote it."""

    fence: int
    claim: int


class Request(NamedTuple):
    """A transaction of a worker, on its way or under way."""

    kind: str
    worker: int
    fence: int = 0
    claim: int = 0
    version: int = 0
    """Of the ledger, as it will be."""
    stage: str = SENT
    ready: bool = False
    """Whether what it looked at allows it to write."""
    seen: tuple[tuple[Row, ...], Ledger] | None = None
    """The log as it looked at it."""


class Worker(NamedTuple):
    """One identity: its row, and the process behind it."""

    row: str
    up: bool
    expired: bool = False
    """Its lease has run out, on the store's clock."""
    trust: bool = True
    """It believes in its lease, on its own clock."""
    draining: bool = False
    at: str = IDLE
    fence: int = 0
    claim: int = 0
    version: int = 0
    """Of the ledger, as it knows it."""
    request: Request | None = None
    """The one whose answer it waits for."""


class Run(NamedTuple):
    """The run's row."""

    state: str = QUEUED
    reason: str = ""
    owner: int = -1
    fence: int = 0
    claim: int = 0
    strikes: int = 0
    deaths: int = 0
    """Deaths in a row without anything new, counted for the invariants."""


class Ledger(NamedTuple):
    """The effect's row."""

    status: str = NONE
    worker: int = -1
    fence: int = 0
    claim: int = 0
    version: int = 0


class Provider(NamedTuple):
    """The world outside."""

    wire: tuple[int, ...] = ()
    """Calls on their way, by the worker that made them."""
    done: int = 0
    """How often it has done the thing."""
    dispatched: int = 0
    """Calls made since the ledger last said `unknown`, counted for the invariants."""


class Lock(NamedTuple):
    """Somebody holds a worker's row exclusively, for this."""

    kind: str
    worker: int


class Budget(NamedTuple):
    """What may still go wrong."""

    losses: int
    """A crash, a lease that is not renewed, a death that is none; and orders to drain."""
    glitches: int
    """An answer that does not come, an execution that breaks off."""
    operator: int
    """What a person will still do."""


class State(NamedTuple):
    """Everything."""

    workers: tuple[Worker, ...]
    left: Budget
    run: Run = Run()
    step: tuple[Row, ...] = ()
    """The step's records: one, if all is well."""
    effect: Ledger = Ledger()
    provider: Provider = Provider()
    late: tuple[Request, ...] = ()
    """Requests that nobody waits for, and that may still arrive."""
    lock: Lock | None = None
    told: str = ""
    """The end that a client was told."""
    stale: bool = False
    """An older claim's request has just written, noted for the invariants."""


def put(state: State, i: int, worker: Worker) -> State:
    """The state with that worker in it."""
    workers = state.workers
    return state._replace(workers=(*workers[:i], worker, *workers[i + 1 :]))
