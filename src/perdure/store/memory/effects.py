"""Effects: the ledger's rows, and what a change or a person may make of one.

An entry is a row with the events that tell how it came to be. `Draft` judges the changes of a batch one after the other
on entries that nobody else sees, and files those of the runs whose batch stands. Nothing here writes that an intent is
unknown: whether its claim is over is a question to its run's row, asked anew each time (`seen`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from perdure.core.changes import IntendEffect, SettleEffect
from perdure.core.effects import (
    INTENDABLE,
    RESOLVED,
    SETTLED,
    TAKEN_BACK,
    UNDOABLE,
    Effect,
    EffectEvent,
    EffectFilter,
    EffectState,
    Resolution,
    effect_id,
)
from perdure.core.records import Blob, Run, RunState
from perdure.core.states import TERMINAL
from perdure.store import reasons
from perdure.store.memory.tables import Entry, StepKey, Tables
from perdure.store.pages import page_size

_COMPENSATION: Final = frozenset({EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED})


class Draft:
    """The ledger as a batch would leave it."""

    def __init__(self, tables: Tables, worker: int, *, now: int) -> None:
        self._tables = tables
        self._worker = worker
        self._now = now
        self._entries: dict[int, Entry] = {}
        self._places: dict[tuple[int, StepKey], Entry] = {}
        self._blobs: list[tuple[int, int, tuple[Blob, ...]]] = []

    def judge(self, change: IntendEffect | SettleEffect) -> str | None:
        """Why the change does not fit its row; else the row becomes what it says, here."""
        before = self._find(change)
        if isinstance(change, IntendEffect):
            after = self._intend(change, before)
        else:
            after = _settle(change, before, self._worker, now=self._now)
        if isinstance(after, str):
            return after
        if after is not None:
            row = after.row
            self._entries[row.id] = self._places[row.run, (row.super_step, row.key)] = after
            if isinstance(change, SettleEffect) or before is None:
                self._blobs.append((change.run, change.thread, change.blobs))
        return None

    def file(self, runs: Collection[int]) -> None:
        """Keep what was judged of these runs."""
        for entry in self._entries.values():
            if entry.row.run in runs:
                self._tables.file(entry)
        for run, thread, blobs in self._blobs:
            if run in runs:
                self._tables.put_blobs(thread, blobs)

    def _find(self, change: IntendEffect | SettleEffect) -> Entry | None:
        if isinstance(change, SettleEffect):
            found = self._entries.get(change.effect) or self._tables.effects.get(change.effect)
            return found if found is not None and found.row.run == change.run else None
        at = change.super_step, change.key
        if (drawn := self._places.get((change.run, at))) is not None:
            return drawn
        known = self._tables.ledger.get(change.run, {}).get(at)
        return None if known is None else self._tables.effects[known]

    def _intend(self, change: IntendEffect, before: Entry | None) -> Entry | str | None:
        if before is not None:
            return _intend_again(change, before, self._worker, now=self._now)
        if change.undo or change.effect in self._tables.effects or change.effect in self._entries:
            return reasons.no_such_effect(change.key)
        return _made(self._tables.runs[change.run], change, self._worker, now=self._now)


def _made(run: Run, change: IntendEffect, worker: int, *, now: int) -> Entry:
    """The first intent's entry."""
    row = Effect(
        id=change.effect,
        run=run.id,
        thread=run.thread,
        thread_id=run.thread_id,
        agent=run.agent,
        tenant=run.tenant,
        super_step=change.super_step,
        key=change.key,
        name=change.name,
        code=change.code,
        idempotency_key=change.idempotency_key,
        policy=change.policy,
        undoable=change.undoable,
        state=EffectState.INTENDED,
        attempt=change.attempt,
        undo_attempt=0,
        digest=change.digest,
        arguments=change.arguments,
        outcome=None,
        note=None,
        by=None,
        worker=worker,
        fence=change.fence,
        rev=1,
        intended_at=now,
        settled_at=None,
        lease_until=0,
    )
    return Entry(row, (_event(row, worker, change.fence, at=now),))


def _intend_again(change: IntendEffect, before: Entry, worker: int, *, now: int) -> Entry | str | None:
    """A later intent; nothing where it, or one after it, is there."""
    row = before.row
    if row.fence == change.fence and _attempt(row, undo=change.undo) >= change.attempt:
        return None
    if row.state not in (UNDOABLE if change.undo else INTENDABLE):
        state = EffectState.UNDOING if change.undo else EffectState.INTENDED
        return reasons.does_not_fit(row.key, row.state, attempt=row.attempt, asked=state)
    counted = "undo_attempt" if change.undo else "attempt"
    after = _moved(
        row,
        state=EffectState.UNDOING if change.undo else EffectState.INTENDED,
        worker=worker,
        fence=change.fence,
        intended_at=now,
        **{counted: change.attempt},
    )
    return Entry(after, (*before.events, _event(after, worker, change.fence, at=now)))


def _settle(change: SettleEffect, before: Entry | None, worker: int, *, now: int) -> Entry | str | None:
    """What became of it; nothing where this claim has said so before, whatever has come of it since."""
    if before is None:
        return reasons.no_such_effect(effect_id(change.effect))
    said = change.fence, change.state, change.attempt, change.note
    if any((event.fence, event.state, event.attempt, event.note) == said for event in before.events):
        return None
    row, undo = before.row, change.state in _COMPENSATION
    attempt = _attempt(row, undo=undo)
    if attempt != change.attempt or change.state not in SETTLED.get(row.state, ()):
        return reasons.does_not_fit(row.key, row.state, attempt=attempt, asked=change.state)
    outcome = row.outcome if undo or change.outcome is None else change.outcome
    after = _moved(row, state=change.state, outcome=outcome, note=change.note, by=change.by, settled_at=now)
    event = _event(after, worker, change.fence, at=now, by=change.by, note=change.note)
    return Entry(after, (*before.events, event))


def _attempt(row: Effect, *, undo: bool) -> int:
    return row.undo_attempt if undo else row.attempt


def _moved(row: Effect, **fields: object) -> Effect:
    return msgspec.structs.replace(row, rev=row.rev + 1, **fields)


def _event(
    row: Effect, worker: int | None, fence: int | None, *, at: int, by: str | None = None, note: str | None = None
) -> EffectEvent:
    """The event beside a write, from the row as it is after it."""
    attempt = _attempt(row, undo=row.state in _COMPENSATION)
    return EffectEvent(row.id, row.rev, at, row.state, attempt, worker, fence, by, note)


# -- people --------------------------------------------------------------------------------------------------


def resolve(tables: Tables, said: Resolution, blobs: Sequence[Blob], *, now: int) -> Effect | None:
    """What a person has found out; the row as it is then."""
    entry = tables.effects.get(said.effect)
    if entry is None:
        return None
    row = seen(tables, entry.row)
    at_rest = tables.runs[row.run].state in (*TERMINAL, RunState.HELD)
    if not at_rest or said.state not in RESOLVED.get(row.state, ()):
        return row
    outcome = row.outcome if said.outcome is None or said.state is EffectState.UNDONE else said.outcome
    after = _moved(entry.row, state=said.state, outcome=outcome, note=said.note, by=said.by, settled_at=now)
    tables.file(Entry(after, (*entry.events, _event(after, None, None, at=now, by=said.by, note=said.note))))
    tables.put_blobs(row.thread, blobs)
    return seen(tables, after)


def has_undoable(tables: Tables, run: int) -> bool:
    """Whether the run has done what can be undone, or was about to undo it when it was held."""
    return any(row.undoable and row.state in (EffectState.DONE, EffectState.UNDOING) for row in _of_run(tables, run))


def begin_again_to_undo(tables: Tables, run: int) -> bool:
    """Let failed undos of the run be tried from the beginning; False where nothing of it is left to be undone."""
    left = [row for row in _of_run(tables, run) if row.undoable and row.state in UNDOABLE]
    for row in left:
        if row.state is EffectState.UNDO_FAILED:
            fresh = msgspec.structs.replace(row, undo_attempt=0)
            tables.file(Entry(fresh, tables.effects[row.id].events))
    return bool(left)


# -- reading -------------------------------------------------------------------------------------------------


def has_undone(tables: Tables, run: Run) -> bool:
    """Whether the run's last claim has come to the end of an undo."""
    return any(row.fence == run.fence and row.state in TAKEN_BACK for row in _of_run(tables, run.id))


def seen(tables: Tables, row: Effect) -> Effect:
    """The row as others see it: an intent whose claim is over is unknown."""
    run, worker = tables.runs[row.run], tables.workers.get(row.worker)
    over = row.state is EffectState.INTENDED and (run.state is not RunState.RUNNING or run.fence != row.fence)
    return msgspec.structs.replace(
        row,
        state=EffectState.UNKNOWN if over else row.state,
        lease_until=0 if worker is None else worker.lease_until,
    )


def page(tables: Tables, where: EffectFilter) -> list[Effect]:
    """Effects, oldest id first."""
    if where.run is not None:
        rows: Iterable[Effect] = sorted(_of_run(tables, where.run), key=lambda row: row.id)
    else:
        rows = (tables.effects[each].row for each in sorted(tables.effects))
    return [row for row in (seen(tables, row) for row in rows) if _matches(row, where)][: page_size(where.limit)]


def of_super_step(tables: Tables, run: Run) -> tuple[Effect, ...]:
    """The effects of a run's current super-step, by key."""
    rows = (seen(tables, row) for row in _of_run(tables, run.id) if row.super_step == run.super_step)
    return tuple(sorted(rows, key=lambda row: row.key))


def _of_run(tables: Tables, run: int) -> list[Effect]:
    return [tables.effects[each].row for each in tables.ledger.get(run, {}).values()]


def _matches(row: Effect, where: EffectFilter) -> bool:
    return (
        (where.after is None or row.id > where.after)
        and (where.state is None or row.state is where.state)
        and (where.run is None or row.run == where.run)
        and (where.thread_id is None or row.thread_id == where.thread_id)
        and (where.agent is None or row.agent == where.agent)
        and (where.name is None or row.name == where.name)
        and (where.tenant is None or row.tenant == where.tenant)
        and (where.undoable is None or row.undoable is where.undoable)
    )
