"""One write of the database: what was asked and answered, and the rows before it and after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure.core import limits
from perdure.core.budgets import BudgetRow
from perdure.core.changes import Change, RequeueRun
from perdure.core.deliveries import Delivery
from perdure.core.effects import UNDOABLE, Effect, EffectEvent, EffectState
from perdure.core.meters import MeterRow
from perdure.core.records import (
    Attempt,
    Checkpoint,
    Interrupt,
    InterruptState,
    Message,
    Run,
    RunState,
    Thread,
    Wait,
    WaitKind,
    Worker,
    WorkerState,
)
from perdure.core.states import TERMINAL

Log = dict[tuple[int, str], Checkpoint]
"""A run's checkpoints by super-step and key."""

Waits = dict[str, Wait]
"""What a run waits for, by key."""

Tries = dict[tuple[int, str, int], Attempt]
"""A run's unfinished tries by super-step, key and number."""

Deliveries = dict[int, Delivery]
"""The outbox, by id."""

Meters = dict[tuple[int, str, int, int, int], MeterRow]
"""A run's meters by super-step, key, attempt, fence and number."""


@dataclass(slots=True)
class Look:
    """The rows at one moment."""

    runs: dict[int, Run] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    threads: dict[int, Thread] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=dict)
    tries: dict[int, Tries] = field(default_factory=dict)
    waits: dict[int, Waits] = field(default_factory=dict)
    """By run; only those that wait."""
    interrupts: dict[int, Interrupt] = field(default_factory=dict)
    mail: dict[int, dict[int, Message]] = field(default_factory=dict)
    """By thread, in the order of arrival, by `seq`."""
    dead: dict[int, Message] = field(default_factory=dict)
    effects: dict[int, Effect] = field(default_factory=dict)
    """The ledger, as it is read."""
    audits: dict[int, tuple[EffectEvent, ...]] = field(default_factory=dict)
    """By effect: what was written of it."""
    deliveries: Deliveries = field(default_factory=dict)
    meters: dict[int, Meters] = field(default_factory=dict)
    """By run."""
    budgets: dict[int, BudgetRow] = field(default_factory=dict)
    absent: dict[int, int] = field(default_factory=dict)
    """By run, how many of the blobs that this write's changes brought are not there."""

    def alive(self, worker: int | None) -> bool:
        row = self.workers.get(worker or 0)
        return row is not None and row.state is WorkerState.ALIVE

    def held_by(self, worker: int) -> list[Run]:
        """The runs in a worker's hands."""
        return [run for run in self.runs.values() if run.worker == worker]

    def has_recorded(self, run: Run) -> bool:
        """Whether the claim that has this run now has recorded anything."""
        return any(row.fence == run.fence for row in self.logs.get(run.id, {}).values())

    def thread_named(self, thread_id: str) -> Thread | None:
        return next((row for row in self.threads.values() if row.thread_id == thread_id), None)

    def is_full(self, thread: int) -> bool:
        """Whether a mailbox takes no more."""
        return len(self.mail.get(thread, {})) >= limits.MAILBOX_MAX

    def has_come(self, wait: Wait) -> bool:
        """Whether what is waited for is there, whatever the time."""
        target = wait.target or 0
        match wait.kind:
            case WaitKind.TIMER:
                return False
            case WaitKind.ANSWER:
                asked = self.interrupts.get(target)
                return asked is not None and asked.state is not InterruptState.OPEN
            case WaitKind.MESSAGE:
                box = self.mail.get(self.runs[wait.run].thread, {})
                return any(not wait.labels or message.label in wait.labels for message in box.values())
            case WaitKind.RUN:
                run = self.runs.get(target)
                return run is not None and (run.state in TERMINAL or run.state is RunState.HELD)
            case WaitKind.ROOM:
                return not self.is_full(target)

    def oldest_question(self, run: int, now_us: int) -> int | None:
        """The oldest open question of a run."""
        asked = (each for each in self.interrupts.values() if each.run == run and is_open(each))
        return min((each.id for each in asked if each.expires_at is None or each.expires_at > now_us), default=None)

    def left_to_undo(self, run: int) -> list[Effect]:
        """The effects of a run that can be undone, and are not."""
        return [row for row in self.effects.values() if row.run == run and row.undoable and row.state in UNDOABLE]

    def has_undoable(self, run: int) -> bool:
        """Whether a run has done what can be undone, or was about to undo it."""
        return any(row.state is not EffectState.UNDO_FAILED for row in self.left_to_undo(run))

    def effect_at(self, run: int, super_step: int, key: str) -> Effect | None:
        """The effect that is called there."""
        at = run, super_step, key
        return next((row for row in self.effects.values() if (row.run, row.super_step, row.key) == at), None)

    def tree(self, run: int) -> list[int]:
        """A run and its descendants, without the detached ones and what is below them."""
        found = [run]
        for each in found:
            found += [row.id for row in self.runs.values() if row.parent == each and not row.detached]
        return found


def is_open(interrupt: Interrupt) -> bool:
    return interrupt.state is InterruptState.OPEN


@dataclass(frozen=True, slots=True)
class Write:
    """One write."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: Any
    """What it gave; an exception if the store refused it."""
    before: Look
    now: Look
    touched: tuple[int, ...]
    """The runs whose rows, logs or tries may differ."""
    now_us: int
    """On the database's clock."""

    @property
    def done(self) -> bool:
        """Whether the store has answered it, not refused it."""
        return not isinstance(self.answer, Exception)

    @property
    def changes(self) -> tuple[Change, ...]:
        """A commit's changes."""
        return tuple(self.args[1]) if self.verb == "commit" else ()

    def dropped_keys(self, run: int) -> set[str]:
        """The keys of a run whose failed records, and the tries before them, this may delete."""
        if self.verb == "retry":
            return set(self.args[1]) if self.args[0] == run else set()
        requeues = [each for each in self.changes if isinstance(each, RequeueRun) and each.run == run]
        return {key for each in requeues for key in each.drop_keys}

    def sends_on(self, run: int) -> bool:
        """Whether this puts a run back into the queue in good order, so that tries that were cut short are
        forgotten."""
        if self.verb in ("retry", "release"):
            return bool(self.args[0] == run)
        return any(isinstance(each, RequeueRun) and each.run == run for each in self.changes)
