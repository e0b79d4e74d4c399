"""The rules of waiting, each a sentence that can be broken, and the world they are tried in.

`RIGHT` keeps them all. A wrong variant breaks one, and the model must refute it: so each rule is shown to be needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.testing.model.waiting.state import Budget


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What workers, wakers and the store do. Every rule is true. (Compared by identity, since plans are looked up by
    it at every stage.)"""

    # Parking.
    park_looks_last: bool = True
    """A parking looks whether something has come in a later snapshot than its last lock."""
    park_locks_mailbox: bool = True
    """A parking that waits for mail (or for room) holds the mailbox's thread's row, as whoever sends (or takes)."""
    park_heeds_cancel: bool = True
    """A run whose cancellation was requested is not parked by code that does not know of it."""
    park_keeps_times: bool = True
    """A parked run is claimable when the first time of its waits comes."""
    park_before_unwinding: bool = True
    """The code is unwound when the run is parked, and not before: its unwinding withdraws no wait."""
    commit_compares_fences: bool = True
    """A commit writes only where the run is running under the fence that its worker holds."""
    fence_follows_locks: bool = True
    """It compares fences in a later snapshot than its locks."""
    doubt_hands_back: bool = True
    """A worker that was told, of a commit that it had sent again, that the run was not parked, or that something
    bounced, hands the run back: the first copy may be on its way still, and park it yet."""

    post_locks_run: bool = True
    """A commit that sends a message holds its run's row, as one that changes waits does. (A plain record need not: sent
    again, it is on disk, and a late copy finds it there. A message may have bounced.)"""

    # Waking.
    waker_looks_last: bool = True
    """Whoever wakes looks at the run's state when it holds the run's row."""
    waker_wakes_at_once: bool = True
    """What makes a wait ready and the wake-up are one commit."""
    sender_looks_last: bool = True
    """A sender looks for parked receivers in a later snapshot than its lock on the mailbox's thread's row."""
    end_locks_waiters: bool = True
    """The child's end locks the rows of all that wait for it, whatever their state."""
    end_looks_again: bool = True
    """Under the child's lock it looks for waiters once more."""
    latecomers_are_locked: bool = True
    """Those that it finds then are locked too, whatever their state, before it looks whether they are parked."""
    open_locks_target: bool = True
    """Who begins to wait for a child locks the child's row."""
    claim_heeds_times: bool = True
    """A claim takes waiting runs whose time has come."""
    claim_reads_waits_last: bool = True
    """A claim reads the waits when it holds the run's row, in a later snapshot than the one that found it."""
    idle_workers_poll: bool = True
    """An idle worker asks for runs from time to time even if no hint tells it to."""

    # What came.
    answer_is_conditional: bool = True
    """An answer is written only where the question is open."""
    answer_looks_last: bool = True
    """An answer looks at the question when it holds the run's row."""
    answer_looks_at_time: bool = True
    """A question whose time has come takes no answer."""
    expiry_is_conditional: bool = True
    """A question is not recorded as expired where it has an answer."""
    close_is_one_commit: bool = True
    """A wait is deleted, and its message taken, in the commit that files the record."""
    close_deletes_wait: bool = True
    """The record's commit deletes the wait."""
    reads_before_recording: bool = True
    """A ready wait is not yet a record: what has come is read, and where it has gone again, the wait goes on."""
    message_is_known: bool = True
    """A message that is sent again is known by its id."""
    received_is_known: bool = True
    """It is still known when it has been received."""

    # Cancellation, children.
    end_heeds_cancel: bool = True
    """A run whose cancellation was requested ends as cancelled only."""
    end_looks_last: bool = True
    """Its end looks for a cancellation when it holds the run's row."""
    start_locks_parent: bool = True
    """The start of a child holds its parent's row when it looks at the parent's cancellation, and until it commits."""
    tree_is_read_last: bool = True
    """A cancellation looks for children when it holds the parent's row."""
    start_has_key: bool = True
    """A child's start is known by the place in the code where it is made."""
    start_compares_fences: bool = True
    """A child is started only by the worker that owns its parent, under its fence."""


RIGHT: Final = Rules()

BUDGET: Final = Budget()


@dataclass(frozen=True, slots=True)
class Setup:
    """One world."""

    waits: tuple[str, ...]
    """The branches of the run: each waits for one thing, all at once."""
    actors: tuple[str, ...] = ()
    """Who is outside; see `outside.py`."""
    timed: tuple[str, ...] = ()
    """The branches that wait until a time at most."""
    rules: Rules = RIGHT
    budget: Budget = BUDGET
    race: bool = False
    """The code goes on, and ends, with the first branch that has its record; the others are given up."""
    shielded: bool = False
    """The code waits for its branches even when it knows of a cancellation, as one that cleans up may."""
    statements_apart: bool = False
    """Whether anything may come between the sending of a transaction and its arrival, too, and while a parked run's
    code unwinds. Otherwise orders of events that no one could tell apart are taken as one."""
    child_row_first: bool = False
    """The child's id is smaller than the run's (ids say nothing about age): rows are locked by id."""
