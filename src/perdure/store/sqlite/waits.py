"""What runs wait for: opened and closed by batches, looked at before a run is parked.

A batch's changes of waits are decided in their order on what is there, read as sets, and are then written as sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core import limits
from perdure.core.changes import CloseWait, NewInterrupt, OpenWait, ParkRun, Place
from perdure.core.limits import NEVER_US
from perdure.core.records import InterruptState, Wait
from perdure.core.requests import Bounce
from perdure.core.times import earliest
from perdure.store.protocol import Hint
from perdure.store.sqlite import rows
from perdure.store.sqlite.clock import MachineClock, look
from perdure.store.sqlite.transaction import Reader, Transaction, decode, encode

STEP_MAX = 2**62
"""Past every super-step."""


def waits(reader: Reader, runs: Sequence[int], *, clock: MachineClock, only_ready: bool) -> list[Wait]:
    return read_waits(reader, runs, now=look(reader, clock).now, only_ready=only_ready)


def read_waits(reader: Reader, runs: Sequence[int], *, now: int, only_ready: bool = False) -> list[Wait]:
    """What these runs wait for, by run and key; or only what is ready."""
    values = {"now": now, "mailbox_max": limits.MAILBOX_MAX, "ready_min": int(only_ready)}
    return reader.records("waits", rows.WAIT, runs=encode(list(runs)), **values)


def next_due(reader: Reader, *, clock: MachineClock) -> int | None:
    """How long until the next parked run's time comes."""
    now = look(reader, clock).now
    due = reader.value("next_due", now=now, never=NEVER_US)
    return None if due is None else due - now


def end_waits(tx: Transaction, steps: Sequence[tuple[int, int]]) -> None:
    """Close the waits of these runs' super-steps before the given ones; nobody answers their questions any more."""
    if steps:
        before = encode(list(steps))
        tx.run("close_all_waits", steps=before)
        tx.run("withdraw_all_interrupts", steps=before)


def park(tx: Transaction, changes: Sequence[ParkRun]) -> frozenset[int]:
    """Let go of runs that only wait; those that need not wait, or wait for nothing, stay."""
    if not changes:
        return frozenset()
    runs = {each.run for each in changes}
    waits = read_waits(tx, sorted(runs), now=tx.now)
    awake = (runs - {wait.run for wait in waits}).union(wait.run for wait in waits if wait.ready)
    if parked := sorted(runs - awake):
        tx.run("park_runs", runs=encode(parked), never=NEVER_US)
        if due(tx, parked):  # a deadline has passed
            tx.hints.add(Hint.WORK)
    return frozenset(awake)


def due(tx: Transaction, runs: Sequence[int]) -> bool:
    """Whether one of these runs, which were let go of, may be claimed at once."""
    return bool(tx.value("due_already", runs=encode(list(runs)), now=tx.now))


class Question(msgspec.Struct):
    """An interrupt's state while a batch is decided."""

    id: int
    state: InterruptState
    expires_at: int | None = None
    budget: int | None = None
    """What it is about, where that is a budget."""
    row: tuple[Any, ...] | None = None
    """What to insert, of a new one."""
    changed: bool = False

    def move(self, state: InterruptState, expires_at: int | None) -> None:
        self.state, self.expires_at, self.changed = state, expires_at, True


class Waits:
    """The waits that a batch opens and closes."""

    def __init__(self, tx: Transaction, changes: Sequence[OpenWait | CloseWait]) -> None:
        self.tx = tx
        self.super_steps: dict[int, int] = {}
        """Where each run is, by now."""
        self.here: set[Place] = set()
        self.questions: dict[Place, Question] = {}
        self.revs: dict[int, int] = {}
        """How often budgets were set that are asked about."""
        self.opened: dict[Place, tuple[Any, ...]] = {}
        self.closed: set[Place] = set()
        if changes:
            self._read(sorted({_place(each) for each in changes}))
        if about := {asked.budget[0] for each in changes if (asked := _asked(each)) is not None and asked.budget}:
            self.revs = dict(tx.array("budget_revs", ids=encode(sorted(about))))

    def _read(self, places: Sequence[Place]) -> None:
        runs = encode(sorted({run for run, _, _ in places}))
        self.super_steps = dict(self.tx.array("super_steps", runs=runs))
        for cursor in self.tx.spread("waits_at", places):
            self.here |= {(run, super_step, key) for run, super_step, key in decode(cursor.fetchone()[0])}
        for cursor in self.tx.spread("interrupts_at", places):
            for run, super_step, key, id, state, expires_at, budget in decode(cursor.fetchone()[0]):
                self.questions[run, super_step, key] = Question(id, InterruptState(state), expires_at, budget)

    def open(self, change: OpenWait) -> bool:
        """Begin to wait; not where the run does so already, or its super-step has ended."""
        at = _place(change)
        if at in self.here or self.super_steps[change.run] != change.super_step:
            return False
        due_at = earliest(None if change.delay_us is None else self.tx.now + change.delay_us, change.due_at)
        target = change.target if change.interrupt is None else self._ask(at, change.interrupt, due_at)
        labels = msgspec.json.encode(change.labels).decode() if change.labels else None
        self.here.add(at)
        self.opened[at] = (*at, int(change.kind), self.tx.now, due_at, target, labels)
        return True

    def _ask(self, at: Place, asked: NewInterrupt, due_at: int | None) -> int:
        """The interrupt at this place: a new one, or the one that was asked there before, open again where nobody
        answered it."""
        question = self.questions.get(at)
        state = InterruptState.OPEN if self._stands(asked) else InterruptState.WITHDRAWN
        budget = None if asked.budget is None else asked.budget[0]
        if question is None:
            a = asked
            what = (a.name, a.payload, a.schema, a.digest, a.on_timeout, a.assignee)
            row = (a.id, *at, *what, self.tx.now)
            self.questions[at] = question = Question(a.id, state, due_at, budget, row)
        elif question.state in (InterruptState.WITHDRAWN, InterruptState.EXPIRED):
            question.move(state, due_at)
            question.budget = budget
        return question.id

    def _stands(self, asked: NewInterrupt) -> bool:
        """Whether a question is still to be asked: not one about a budget that was set since it was read."""
        return asked.budget is None or self.revs.get(asked.budget[0]) == asked.budget[1]

    def why_not(self, change: CloseWait) -> Bounce | None:
        """Why this end of a wait cannot be written."""
        question = self.questions.get(_place(change))
        answered = question is not None and question.state is InterruptState.ANSWERED
        return Bounce.ANSWERED if change.expired and answered else None

    def close(self, change: CloseWait) -> None:
        """End the wait, and what it was asking."""
        at = _place(change)
        waited = at in self.here
        if self.opened.pop(at, None) is None and waited:
            self.closed.add(at)
        self.here.discard(at)
        question = self.questions.get(at)
        if question is None or question.state is not InterruptState.OPEN:
            return
        if change.expired:
            question.move(InterruptState.EXPIRED, question.expires_at)
        elif change.record is None and waited:
            question.move(InterruptState.WITHDRAWN, question.expires_at)

    def write(self) -> None:
        """The rows of what has changed."""
        tx = self.tx
        tx.write("close_waits", sorted(self.closed))
        tx.write("open_waits", list(self.opened.values()))
        new = [each for each in self.questions.values() if each.row is not None]
        tx.write("insert_interrupts", [(*_row(each), each.expires_at, each.budget, each.state) for each in new])
        if moved := [each for each in self.questions.values() if each.row is None and each.changed]:
            moves = [(each.id, each.state, each.expires_at, each.budget) for each in moved]
            tx.run("move_interrupts", moves=encode(moves))


def _place(change: OpenWait | CloseWait) -> Place:
    return change.run, change.super_step, change.key


def _asked(change: OpenWait | CloseWait) -> NewInterrupt | None:
    return change.interrupt if isinstance(change, OpenWait) else None


def _row(question: Question) -> tuple[Any, ...]:
    assert question.row is not None
    return question.row
