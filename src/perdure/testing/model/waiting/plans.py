"""The plan of each transaction: its stages, in order, each a statement with a snapshot of its own.

This page is the specification of who locks what before it looks at what. The order of locks is the same for all: the
worker's row, rows of runs by id, the mailbox's row, and last the parked runs that are woken. A wrong variant has a
stage too few, or one too early.

- A worker's commit holds its worker's row in share mode, locks what it changes, and compares fences in a later snapshot
  (`JUDGE`). Then it looks, and writes.
- `WAITERS` locks the run's row where the look before has found that it waits. What is done to it then depends on its
  state under that lock, not on what was seen: Postgres looks at a row that it had to wait for once more.
- A claim takes the row with SKIP LOCKED: it passes over one that somebody holds.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import Rules

SHARE: Final = "locks its worker's row"
ALONE: Final = "locks the worker's row against all"
JUDGE: Final = "compares the fence"
RUN: Final = "locks the run's row"
CHILD: Final = "locks the child's row"
BOX: Final = "locks the mailbox's row"
LOOK: Final = "looks"
PEEK: Final = "looks before its lock"
WAITERS: Final = "locks the row of whoever waits"
FIND: Final = "looks for a run"
SKIP: Final = "takes the run's row, if it is free"
WRITE: Final = "commits"

LOCKS: Final = {RUN: s.RUN_ROW, CHILD: s.CHILD_ROW, BOX: s.BOX_ROW, WAITERS: s.RUN_ROW}
"""The row that a stage locks."""


@cache
def plan(rules: Rules, kind: str, what: tuple[str, ...], *, child_row_first: bool) -> tuple[str, ...]:
    """The stages of a transaction of this kind, to do with this."""
    by_id = (CHILD, RUN) if child_row_first else (RUN, CHILD)
    match kind:
        case s.CLAIM:
            return SHARE, FIND, SKIP, WRITE
        case s.TAKE_OVER:
            return ALONE, RUN, WRITE
        case s.OPEN_WAITS | s.PARK | s.CLOSE | s.RECORD_LATE | s.START | s.POST | s.END | s.HAND_BACK:
            return _commit(rules, kind, what, by_id)
        case s.CHILD_ENDS | s.CHILD_HELD:
            again = (LOOK, WAITERS) if rules.end_looks_again else ()
            first = (CHILD, WAITERS) if child_row_first else (WAITERS, CHILD)
            return LOOK, *first, *again, WRITE
        case s.CHILD_RELEASED:
            return CHILD, WRITE
        case s.GIVE_ANSWER:
            return _late_look(rules, RUN, (LOOK,) if rules.answer_looks_last else (), early=not rules.answer_looks_last)
        case s.CANCEL:
            early = not rules.tree_is_read_last
            return (LOOK, *by_id, WRITE) if early else _late_look(rules, RUN, (LOOK, CHILD), early=False)
        case _:  # a message's transaction, or the taking of one
            return (BOX, LOOK, WAITERS, WRITE) if rules.sender_looks_last else (LOOK, BOX, WAITERS, WRITE)


def _late_look(rules: Rules, lock: str, after: tuple[str, ...], *, early: bool) -> tuple[str, ...]:
    """First the lock, then the look."""
    before = (LOOK,) if early else () if rules.waker_looks_last else (PEEK,)
    return *before, lock, *after, WRITE


def _commit(rules: Rules, kind: str, what: tuple[str, ...], by_id: tuple[str, ...]) -> tuple[str, ...]:
    """A worker's commit."""
    locks = [each for each in by_id if (_locks_run if each == RUN else _locks_child)(rules, kind, what)]
    sends = kind == s.POST or (kind == s.CLOSE and what[1] in s.MESSAGES)
    if sends or (kind == s.PARK and rules.park_locks_mailbox):
        locks.append(BOX)
    judge = (JUDGE,) if (rules.start_compares_fences if kind == s.START else rules.commit_compares_fences) else ()
    look = () if kind in (s.OPEN_WAITS, s.HAND_BACK, s.RECORD_LATE) else (LOOK,)
    early = (kind == s.PARK and not rules.park_looks_last) or (kind == s.END and not rules.end_looks_last)
    if not rules.fence_follows_locks:
        return (SHARE, *judge, *locks, *look, WRITE)
    return (SHARE, *look, *locks, *judge, WRITE) if early else (SHARE, *locks, *judge, *look, WRITE)


def _locks_run(rules: Rules, kind: str, what: tuple[str, ...]) -> bool:
    """Whether it locks its own run's row: as whatever changes the run, its waits or its question does."""
    match kind:
        case s.RECORD_LATE:
            return False
        case s.POST:
            return rules.post_locks_run
        case s.START:
            return rules.start_locks_parent
        case _:
            return True


def _locks_child(rules: Rules, kind: str, what: tuple[str, ...]) -> bool:
    """Whether it locks the row of the run that is waited for."""
    return kind in (s.OPEN_WAITS, s.PARK) and s.CHILD in what and rules.open_locks_target
