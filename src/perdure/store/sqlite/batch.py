"""A batch's rows, by the statement that takes them.

Each kind of change is written as one set, in the order in which a run meets the kinds. What becomes of waits, mail,
effects, deliveries and budgets depends on what is there, so their changes are decided in their own order first
(`waits.py`, `mail.py`, `effects.py`, `outbox.py`, `budgets.py`); a batch without them does not pay for that. Parkings
come last, after all that might wake the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, assert_never

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    Change,
    CloseWait,
    Deliver,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    Place,
    RecordAttempt,
    RequeueRun,
    Reserve,
    SendMessage,
    SettleEffect,
    place_of,
)
from perdure.core.records import Blob, Kind, RunState
from perdure.core.requests import Bounce
from perdure.store.protocol import Hint
from perdure.store.sqlite.budgets import Spendings
from perdure.store.sqlite.effects import Effects
from perdure.store.sqlite.mail import Mail
from perdure.store.sqlite.meters import meter_rows
from perdure.store.sqlite.outbox import Outbox
from perdure.store.sqlite.transaction import Transaction, encode
from perdure.store.sqlite.waiters import after_end
from perdure.store.sqlite.waits import STEP_MAX, Waits, due, end_waits, park

_STEP, _BOUNDARY, _ENDED = int(Kind.STEP), int(Kind.BOUNDARY), int(Kind.ENDED)

_DECIDED: Final = frozenset(
    {OpenWait, CloseWait, SendMessage, BuryMessage, IntendEffect, SettleEffect, Deliver, Reserve}
)


def step_of(change: OpenWait | Reserve) -> Place:
    """The step that a change is about; once that is on record, the change is an old one."""
    return change.run, change.super_step, change.key


def needs_deciding(changes: Iterable[Change]) -> bool:
    """Whether some of these changes depend on what is there."""
    return not _DECIDED.isdisjoint(map(type, changes))


class Batch:
    """Changes on their way to the tables. Where they were `sifted`, what was on record before is not among them, and of
    two checkpoints with one address the first is the record. With `misfits`, runs whose changes cannot come from a
    correct worker, and why, it is not to be written."""

    def __init__(self, tx: Transaction, worker: int, changes: Sequence[Change], *, sifted: bool = False) -> None:
        self.tx = tx
        self.worker = worker
        self.changes = changes
        self.bounced: dict[Place, Bounce] = {}
        self.awake: frozenset[int] = frozenset()
        self.misfits: dict[int, str] = {}
        self.checkpoints: list[tuple[Any, ...]] = []
        self.attempts: list[tuple[Any, ...]] = []
        self.meters: list[tuple[Any, ...]] = []
        self.blobs: list[tuple[int, bytes, bytes]] = []
        self.steps: dict[int, BeginSuperStep] = {}
        self.snapshots: dict[int, tuple[int, int, int]] = {}
        self.waited: dict[int, int] = {}
        self.ends: dict[int, EndRun] = {}
        self.requeues: list[RequeueRun] = []
        self.holds: list[HoldRun] = []
        self.parks: list[ParkRun] = []
        self.waits: Waits | None = None
        self.mail: Mail | None = None
        self.effects: Effects | None = None
        self.outbox: Outbox | None = None
        self.spendings: Spendings | None = None
        self.undoings: list[BeginUndo] = []
        if sifted:
            self._decide(changes)
        else:
            for change in changes:
                self._add(change)

    def _decide(self, changes: Sequence[Change]) -> None:
        """Add the changes one after the other, each on what those before it have made of what is there."""
        self.waits = Waits(self.tx, [each for each in changes if isinstance(each, OpenWait | CloseWait)])
        taken = [(each.thread, each.take) for each in changes if isinstance(each, CloseWait) and each.take is not None]
        buried = [(each.thread, each.seq) for each in changes if isinstance(each, BuryMessage)]
        messages = [each.message for each in changes if isinstance(each, SendMessage)]
        self.mail = Mail(self.tx, messages, [*taken, *buried])
        effects = [each for each in changes if isinstance(each, IntendEffect | SettleEffect)]
        self.effects = Effects(self.tx, self.worker, effects)
        self.outbox = Outbox(self.tx, [each.delivery for each in changes if isinstance(each, Deliver)])
        self.spendings = Spendings(self.tx, changes)
        filed: set[Place] = set()
        for change in changes:
            at = place_of(change)
            if at in filed or (isinstance(change, OpenWait | Reserve) and step_of(change) in filed):
                continue
            if why := self._bounce(change):
                assert isinstance(change, CloseWait | SendMessage | Deliver | Reserve)
                self.bounced[change.run, change.super_step, change.key] = why
                continue
            if isinstance(change, IntendEffect | SettleEffect) and (reason := self.effects.why_not(change)):
                self.misfits.setdefault(change.run, reason)
                continue
            if at is not None:
                filed.add(at)
            self._add(change)

    def _bounce(self, change: Change) -> Bounce | None:
        assert self.waits is not None and self.mail is not None
        assert self.outbox is not None and self.spendings is not None
        match change:
            case CloseWait():
                gone = change.take is not None and not self.mail.has(change.thread, change.take)
                return self.waits.why_not(change) or (Bounce.GONE if gone else None)
            case SendMessage():
                return self.mail.why_not(change.message)
            case Deliver():
                return self.outbox.why_not(change.delivery)
            case Reserve():
                return self.spendings.why_not(change)
            case _:
                return None

    def _add(self, change: Change) -> None:
        match change:
            case AppendCheckpoint():
                self._add_step(change)
            case RecordAttempt():
                a = change
                this = (a.run, a.super_step, a.key, a.attempt, a.fence)
                self.attempts.append((*this, a.error, a.started_at, a.ended_at))
                self._add_used(change)
            case BeginSuperStep():
                self._add_boundary(change, _BOUNDARY, failed=False)
                self.steps[change.run] = change
                self._move_snapshot(change)
                if change.waited:
                    self.waited[change.run] = change.super_step
                if self.waits is not None:
                    self.waits.super_steps[change.run] = change.super_step
            case EndRun():
                self._add_boundary(change, _ENDED, failed=change.outcome is not RunState.COMPLETED)
                self.ends[change.run] = change
                if change.outcome is RunState.COMPLETED and change.state is not None:
                    self._move_snapshot(change)
                if change.waited:
                    self.waited[change.run] = STEP_MAX
            case RequeueRun():
                self.requeues.append(change)
            case HoldRun():
                self.holds.append(change)
            case ParkRun():
                self.parks.append(change)
            case BeginUndo():
                self.undoings.append(change)
            case OpenWait() | CloseWait() | SendMessage() | BuryMessage():
                self._add_decided(change)
            case IntendEffect() | SettleEffect():
                self._add_effect(change)
            case Deliver() | Reserve():
                self._add_handed(change)
            case _:
                assert_never(change)

    def _add_decided(self, change: OpenWait | CloseWait | SendMessage | BuryMessage) -> None:
        assert self.waits is not None and self.mail is not None
        match change:
            case OpenWait():
                if self.waits.open(change):
                    self._add_blobs(change.thread, change.blobs)
            case CloseWait():
                self.waits.close(change)
                if change.take is not None:
                    self.mail.take(change.thread, change.take)
                if change.record is not None:
                    self._add_step(change.record)
            case SendMessage():
                self.mail.send(change.message)
                self._add_step(change.record)
            case BuryMessage():
                self.mail.bury(change)
            case _:
                assert_never(change)

    def _add_effect(self, change: IntendEffect | SettleEffect) -> None:
        assert self.effects is not None
        match change:
            case IntendEffect():
                news = self.effects.intend(change)
            case SettleEffect():
                news = self.effects.settle(change)
                if change.record is not None:
                    self._add_step(change.record)
            case _:
                assert_never(change)
        if news:
            self._add_blobs(change.thread, change.blobs)

    def _add_handed(self, change: Deliver | Reserve) -> None:
        assert self.outbox is not None and self.spendings is not None
        match change:
            case Deliver():
                self.outbox.deliver(change)
                self._add_step(change.record)
            case Reserve():
                self.spendings.reserve(change)
            case _:
                assert_never(change)

    def _add_step(self, c: AppendCheckpoint) -> None:
        at = (c.run, c.super_step, c.key, _STEP, c.seq, c.fence, self.worker, c.attempt, c.digest, c.failed)
        self.checkpoints.append((*at, c.payload, None, c.started_at, c.ended_at))
        if c.blobs:
            self._add_blobs(c.thread, c.blobs)
        self._add_used(c)

    def _add_used(self, change: AppendCheckpoint | RecordAttempt) -> None:
        """What a try has used, and what it has spent."""
        if change.meters:
            self.meters += meter_rows(self.tx, change)
        if change.spent is not None:
            if self.spendings is None:
                self.spendings = Spendings(self.tx, self.changes)
            self.spendings.settle(change)

    def _add_boundary(self, c: BeginSuperStep | EndRun, kind: int, *, failed: bool) -> None:
        at = (c.run, c.super_step, "", kind, 0, c.fence, self.worker, 0, 0, failed)
        self.checkpoints.append((*at, c.payload, c.state, c.ended_at, c.ended_at))
        self._add_blobs(c.thread, c.blobs)

    def _add_blobs(self, thread: int, blobs: Iterable[Blob]) -> None:
        self.blobs += [(thread, blob.digest, blob.data) for blob in blobs]

    def _move_snapshot(self, change: BeginSuperStep | EndRun) -> None:
        self.snapshots[change.thread] = (change.thread, change.run, change.super_step)

    def write(self) -> bool:
        """Every kind in the order in which a run meets it. False, and then only half of it, where some of the
        checkpoints are there already: from the same batch, or under another fence."""
        tx = self.tx
        if self.checkpoints and tx.write("append_checkpoints", self.checkpoints) < len(self.checkpoints):
            return False
        if self.attempts:
            tx.write("record_attempts", self.attempts)
        if self.meters:
            tx.write("insert_meters", self.meters)
        for undoing in self.undoings:
            if tx.run("begin_undo", run=undoing.run, outcome=undoing.outcome, payload=undoing.payload):
                self._add_blobs(undoing.thread, undoing.blobs)
        if self.blobs:
            tx.write("put_blobs", self.blobs)
        if self.waits is not None and self.mail is not None:
            self.waits.write()
            self.mail.write()
        if self.effects is not None:
            self.effects.write()
        if self.outbox is not None:
            self.outbox.write()
        if self.spendings is not None:
            self.spendings.write()
        if self.waited:
            end_waits(tx, list(self.waited.items()))
        if self.steps:
            self._begin_super_steps()
        if self.snapshots:
            tx.run("move_snapshots", snapshots=encode(list(self.snapshots.values())))
        if self.requeues:
            self._requeue()
        for hold in self.holds:
            tx.run("hold_run", run=hold.run, reason=hold.reason, detail=hold.detail)
        if self.ends:
            self._end()
        after_end(tx, [*self.ends, *(hold.run for hold in self.holds)])
        if self.mail is not None:
            self.mail.wake()
        self.awake = park(tx, self.parks)
        return True

    def _begin_super_steps(self) -> None:
        steps = [(each.run, each.super_step, each.thread) for each in self.steps.values()]
        self.tx.run("begin_super_steps", steps=encode(steps))

    def _requeue(self) -> None:
        tx = self.tx
        for change in self.requeues:
            tx.run("forget_unfinished_tries", run=change.run)
            for key in change.drop_keys:
                tx.run("forget_attempts", run=change.run, key=key)
                tx.run("forget_failure", run=change.run, key=key)
        tx.run("requeue_runs", now=tx.now, requeues=encode([(each.run, each.delay_us) for each in self.requeues]))
        if any(each.delay_us <= 0 for each in self.requeues) or due(tx, [each.run for each in self.requeues]):
            tx.hints.add(Hint.WORK)

    def _end(self) -> None:
        tx = self.tx
        tx.run("end_runs", now=tx.now, ends=encode([(run, end.outcome) for run, end in self.ends.items()]))
        if cancelled := [run for run, end in self.ends.items() if end.outcome is RunState.CANCELLED]:
            tx.run("roll_back", runs=encode(cancelled))
        threads = encode([end.thread for end in self.ends.values()])
        tx.run("advance_threads", threads=threads)
        if tx.run("promote_heads", threads=threads):
            tx.hints.add(Hint.WORK)
