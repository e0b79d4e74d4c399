"""What the world of waits consists of: rows, transactions under way, two workers, and those outside who wake.

Flat tuples of words and small numbers, as in the model of ownership. What is on disk is what is committed: a
transaction keeps what it has seen and what it holds, and writes all at once in its last step, which nobody can tell
from writing earlier, since nobody sees a row that is not committed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NAMES: Final = ("W1", "W2")
MESSAGES: Final = ("m1", "m2")
"""The ids of messages, as their senders chose them."""

# -- what is waited for -----------------------------------------------------------------------------------------------

ANSWER: Final = "answer"
MESSAGE: Final = "message"
CHILD: Final = "child"
ROOM: Final = "room"
TIMER: Final = "timer"

# -- a run's row, the child's row, a question -------------------------------------------------------------------------

NONE: Final = "none"
QUEUED: Final = "queued"
RUNNING: Final = "running"
WAITING: Final = "waiting"
HELD: Final = "held"
COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
TERMINAL: Final = frozenset({COMPLETED, CANCELLED})

ACTIVE: Final = "active"
"""The child has begun and not ended; who executes it is not modelled."""
ENDED: Final = "ended"

OPEN: Final = "open"
ANSWERED: Final = "answered"
EXPIRED: Final = "expired"
WITHDRAWN: Final = "withdrawn"

# -- a worker ---------------------------------------------------------------------------------------------------------

ALIVE: Final = "alive"
DEAD: Final = "dead"

IDLE: Final = "idle"
EXECUTING: Final = "executing"
UNWINDING: Final = "unwinding"
"""It has parked the run, and its code is still on its way out."""
GONE: Final = "gone"

# -- what an execution knows of a branch ------------------------------------------------------------------------------

NEW: Final = "new"
"""Something comes before the wait: the child's start, a first try to send."""
UNOPENED: Final = "unopened"
PENDING: Final = "pending"
"""It has, as far as the execution knows, a row in `waits`."""
READY: Final = "ready"
DUE: Final = "due"
"""Nothing has come, but the time has."""
DONE: Final = "done"

# -- transactions -----------------------------------------------------------------------------------------------------

CLAIM: Final = "claim"
OPEN_WAITS: Final = "opening"
PARK: Final = "parking"
CLOSE: Final = "closing"
RECORD_LATE: Final = "late record"
"""The second half of a wait's end in two commits (a wrong variant)."""
START: Final = "start of the child"
POST: Final = "post"
END: Final = "end"
HAND_BACK: Final = "hand-back"

GIVE_ANSWER: Final = "answer"
SEND: Final = "message"
TAKE: Final = "taking of a message"
CHILD_ENDS: Final = "last commit"
CHILD_HELD: Final = "hold"
CHILD_RELEASED: Final = "release"
CANCEL: Final = "request"
TAKE_OVER: Final = "take-over"

# -- what a transaction is answered -----------------------------------------------------------------------------------

OK: Final = "done"
LOST: Final = "lost"
NOT_ALIVE: Final = "not alive"
NOTHING: Final = "nothing"
AWAKE: Final = "awake"
"""The run was not parked: something has come."""
REFUSED: Final = "its cancellation was requested"
BOUNCED: Final = "bounced"

# -- rows that are locked ---------------------------------------------------------------------------------------------

RUN_ROW: Final = "the run's row"
CHILD_ROW: Final = "the child's row"
BOX_ROW: Final = "the mailbox's row"


class Run(NamedTuple):
    """The row of the run that waits."""

    state: str = QUEUED
    owner: int = -1
    fence: int = 0
    times: tuple[str, ...] = ()
    """Parked: the waits whose time makes it claimable (in life their earliest, as `ready_at`)."""
    cancel: bool = False
    """Its cancellation was requested."""
    knew: bool = False
    """It was parked by code that knew of that."""


class Child(NamedTuple):
    """The row of the child."""

    state: str = NONE
    starter: int = 0
    """The fence it was started under; part of its id, which the starter chose."""
    cancel: bool = False
    spared: bool = False
    """Started by code that knew of its own cancellation."""


class Question(NamedTuple):
    """The interrupt."""

    state: str = NONE
    answer: str = ""


class Record(NamedTuple):
    """A branch's record: what came."""

    branch: str
    what: str
    fence: int


class Transaction(NamedTuple):
    """One transaction, from its sending to its commit."""

    kind: str
    by: str
    to: str
    """Who waits for its answer; empty: nobody any more."""
    fence: int = 0
    what: tuple[str, ...] = ()
    knows: bool = False
    """Its code knows of the cancellation."""
    again: bool = False
    """It is sent a second time: its answer was lost."""
    stage: int = 0
    share: bool = False
    """It holds its worker's row in share mode."""
    locks: tuple[str, ...] = ()
    """Rows that it holds exclusively."""
    seen: tuple[str, ...] = ()
    """What it has looked at."""


class Worker(NamedTuple):
    """One worker: its row, its process, and the execution in it."""

    row: str = ALIVE
    at: str = IDLE
    fence: int = 0
    minds: tuple[str, ...] = ()
    """What it knows of each branch, in the order of the branches."""
    knows: bool = False
    """It knows of the cancellation."""
    request: Transaction | None = None
    """What it waits for the answer of, as it was sent."""
    unanswered: bool = False
    """The answer was lost."""
    awake: bool = False
    """Its run was not parked, since something had come: it looks before it tries again."""


class Actor(NamedTuple):
    """Somebody outside, with one thing to do."""

    name: str
    kind: str
    at: str = NEW
    """`NEW`, `PENDING` while its transaction is under way, `DUE` where its answer was lost, `DONE`."""
    told: str = ""


class Budget(NamedTuple):
    """What may still go wrong."""

    losses: int = 0
    """A crash, or a death that is none."""
    glitches: int = 0
    """An answer that is lost, a run that is handed back, a hint that is lost."""


class State(NamedTuple):
    """Everything."""

    workers: tuple[Worker, ...]
    actors: tuple[Actor, ...]
    left: Budget
    run: Run = Run()
    child: Child = Child()
    question: Question = Question()
    waits: tuple[str, ...] = ()
    """The branches that have a row in `waits`."""
    records: tuple[Record, ...] = ()
    due: tuple[str, ...] = ()
    """The branches whose time has come."""
    mail: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    """The ids of messages that have left the mailbox, remembered."""
    room: bool = False
    """Whether the mailbox that the run sends to has room."""
    started: bool = False
    """The start of the child is on record."""
    hint: bool = True
    """Somebody has told idle workers to look. (Only a wrong variant cares.)"""
    open: tuple[Transaction, ...] = ()
    stale: bool = False
    """An older claim has just written, noted for the invariants."""
    starts: int = 0
    """Children that were started, counted for the invariants."""
    overdue: bool = False
    """An answer was taken that was sent when the time had come, noted for the invariants."""


def put(state: State, i: int, worker: Worker) -> State:
    """The state with that worker in it."""
    workers = state.workers
    return state._replace(workers=(*workers[:i], worker, *workers[i + 1 :]))


def put_actor(state: State, actor: Actor) -> State:
    """The state with that actor in it."""
    return state._replace(actors=tuple(actor if each.name == actor.name else each for each in state.actors))


def add(state: State, transaction: Transaction) -> State:
    """The state with one more transaction under way."""
    return state._replace(open=tuple(sorted((*state.open, transaction))))


def drop(state: State, transaction: Transaction) -> State:
    """The state without it."""
    left = list(state.open)
    left.remove(transaction)
    return state._replace(open=tuple(left))


def record_of(state: State, branch: str) -> Record | None:
    """The branch's record."""
    return next((each for each in state.records if each.branch == branch), None)


def with_record(state: State, record: Record) -> State:
    """The state with that record, in place of one that is there."""
    others = (each for each in state.records if each.branch != record.branch)
    return state._replace(records=tuple(sorted((*others, record))))
