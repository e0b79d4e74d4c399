"""The ledger of effects: their rows as they are written.

A batch's changes of effects are decided in their order on the rows that are there, and are then written as sets; each
write has its event beside it. By its events a change that was written before is known, whatever came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core.changes import IntendEffect, Place, SettleEffect
from perdure.core.effects import INTENDABLE, SETTLED, UNDOABLE, EffectState, effect_id
from perdure.store import reasons
from perdure.store.sqlite.transaction import Transaction, encode

UNDO_STATES: Final = frozenset({EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED})
"""What is said of an undo, whose tries are counted by themselves."""

Mark = tuple[int, int, EffectState, int, str | None]
"""A write to an effect by a worker: the effect, the fence, the state, the attempt of which it was said, the note."""


class Entry(msgspec.Struct, array_like=True):
    """An effect's row while it is decided what becomes of it, as the statements answer."""

    id: int
    run: int
    super_step: int
    key: str
    state: EffectState
    attempt: int
    undo_attempt: int
    worker: int
    fence: int
    rev: int
    intended_at: int
    settled_at: int | None
    note: str | None
    by: str | None
    outcome: bytes | None = None
    """What this batch brings."""
    new: IntendEffect | None = None
    changed: bool = False

    def attempt_of(self, state: EffectState) -> int:
        """The attempt that such a state is said of: the effect's, or its undo's."""
        return self.undo_attempt if state in UNDO_STATES else self.attempt


class Effects:
    """Effects that are written together, by a worker or, without one, by a person."""

    def __init__(self, tx: Transaction, worker: int | None, changes: Sequence[IntendEffect | SettleEffect]) -> None:
        self.tx = tx
        self.worker = worker
        self.entries: dict[int, Entry] = {}
        self.places: dict[Place, Entry] = {}
        self.written: set[Mark] = set()
        self.events: list[tuple[Any, ...]] = []
        if places := sorted({_place(each) for each in changes if isinstance(each, IntendEffect)}):
            for cursor in tx.spread("effects_at", places):
                self._add(cursor.fetchone()[0])
        if settles := [each for each in changes if isinstance(each, SettleEffect)]:
            self._read_settled(settles)

    def _read_settled(self, settles: Sequence[SettleEffect]) -> None:
        effects = sorted({each.effect for each in settles})
        self.read(effects)
        values = {"ids": encode(effects), "fences": encode(sorted({each.fence for each in settles}))}
        for effect, fence, state, attempt, note in self.tx.array("written_of_effects", **values):
            self.written.add((effect, fence, EffectState(state), attempt, note))

    def read(self, effects: Sequence[int]) -> None:
        """Bring along what is there of these."""
        self._add(self.tx.value("effects_by_id", ids=encode(list(effects))))

    def _add(self, packed: str) -> None:
        for entry in _entries(packed):
            known = self.entries.setdefault(entry.id, entry)
            self.places[known.run, known.super_step, known.key] = known

    def why_not(self, change: IntendEffect | SettleEffect) -> str | None:
        """Why a change cannot come from a correct worker; None where it fits its row, or was written before."""
        entry = self._entry(change)
        if isinstance(change, IntendEffect):
            state = _intended(change)
            if entry is None:
                impossible = change.undo or change.effect in self.entries
                return reasons.no_such_effect(change.key) if impossible else None
            fits = entry.state in (UNDOABLE if change.undo else INTENDABLE)
        else:
            state = change.state
            if entry is None:
                return reasons.no_such_effect(effect_id(change.effect))
            fits = state in SETTLED.get(entry.state, ()) and entry.attempt_of(state) == change.attempt
        if fits or self._is_written(change, entry):
            return None
        return reasons.does_not_fit(entry.key, entry.state, attempt=entry.attempt_of(state), asked=state)

    def _entry(self, change: IntendEffect | SettleEffect) -> Entry | None:
        if isinstance(change, IntendEffect):
            return self.places.get(_place(change))
        entry = self.entries.get(change.effect)
        return entry if entry is not None and entry.run == change.run else None

    def _is_written(self, change: IntendEffect | SettleEffect, entry: Entry) -> bool:
        """Whether this claim has said so before, whatever has come since."""
        if isinstance(change, SettleEffect):
            return (entry.id, change.fence, change.state, change.attempt, change.note) in self.written
        return entry.fence == change.fence and entry.attempt_of(_intended(change)) >= change.attempt

    def intend(self, change: IntendEffect) -> bool:
        """Say that an effect, or its undo, is about to be dispatched; whether it is new to the ledger."""
        entry = self._entry(change)
        if new := entry is None:
            at = (change.effect, change.run, change.super_step, change.key)
            entry = Entry(*at, EffectState.INTENDED, 0, 0, 0, 0, 0, 0, None, None, None, new=change)
            self.entries[entry.id] = self.places[_place(change)] = entry
        elif self._is_written(change, entry):
            return False
        entry.state = _intended(change)
        if change.undo:
            entry.undo_attempt = change.attempt
        else:
            entry.attempt = change.attempt
        assert self.worker is not None, "people intend nothing"
        entry.worker, entry.fence, entry.intended_at = self.worker, change.fence, self.tx.now
        self._tell(entry, change.fence, None, None)
        return new

    def settle(self, change: SettleEffect) -> bool:
        """Say what became of an effect, or of its undo; False where that was written before."""
        entry = self.entries[change.effect]
        if self._is_written(change, entry):
            return False
        self.move(entry, change.state, change.outcome, by=change.by, note=change.note, fence=change.fence)
        return True

    def move(
        self, entry: Entry, state: EffectState, outcome: bytes | None, *, by: str | None, note: str | None,
        fence: int | None = None,
    ) -> None:  # fmt: skip
        """Note an outcome. What an effect itself had as its result stays, whatever becomes of its undo."""
        entry.state = state
        entry.settled_at = self.tx.now
        entry.by, entry.note = by, note
        if outcome is not None and state not in UNDO_STATES:
            entry.outcome = outcome
        self._tell(entry, fence, by, note)

    def _tell(self, entry: Entry, fence: int | None, by: str | None, note: str | None) -> None:
        """The event of a write."""
        entry.rev += 1
        entry.changed = True
        attempt = entry.attempt_of(entry.state)
        worker = None if fence is None else self.worker
        self.events.append((entry.id, entry.rev, self.tx.now, entry.state, attempt, worker, fence, by, note))
        if fence is not None:
            self.written.add((entry.id, fence, entry.state, attempt, note))

    def write(self) -> None:
        """The rows of what has changed."""
        changed = [each for each in self.entries.values() if each.changed]
        self.tx.write("insert_effects", [_inserted(each, each.new) for each in changed if each.new is not None])
        self.tx.write("move_effects", [_moved(each) for each in changed if each.new is None])
        self.tx.write("insert_effect_events", self.events)


_entries: Final = msgspec.json.Decoder(list[Entry]).decode


def _place(change: IntendEffect) -> Place:
    return change.run, change.super_step, change.key


def _intended(change: IntendEffect) -> EffectState:
    return EffectState.UNDOING if change.undo else EffectState.INTENDED


def _inserted(e: Entry, n: IntendEffect) -> tuple[Any, ...]:
    what = (n.name, n.code, n.idempotency_key, n.policy, n.undoable, n.digest, n.arguments)
    by = (e.state, e.attempt, e.undo_attempt, e.worker, e.fence, e.rev, e.intended_at)
    return (e.id, e.run, e.super_step, e.key, *what, *by, e.settled_at, e.outcome, e.note, e.by)


def _moved(e: Entry) -> tuple[Any, ...]:
    by = (e.state, e.attempt, e.undo_attempt, e.worker, e.fence, e.rev, e.intended_at)
    return (e.id, *by, e.settled_at, e.outcome, e.note, e.by)
