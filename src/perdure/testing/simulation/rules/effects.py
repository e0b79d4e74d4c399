"""The ledger says what was done: a row moves along its table, keeps its key, and only its run's owner or a person
writes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from perdure.core.changes import IntendEffect, SettleEffect
from perdure.core.effects import INTENDABLE, RESOLVED, SETTLED, UNDOABLE, Effect, EffectEvent, EffectState
from perdure.core.records import RunState
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Write

COMPENSATION: Final = frozenset({EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED})

KEPT: Final = (
    "id", "run", "thread", "thread_id", "agent", "tenant", "super_step", "key", "name", "code", "idempotency_key",
    "policy", "undoable", "digest", "arguments",
)  # fmt: skip
"""What of a row stays as it was when it was made."""


def of_effects(write: Write, annals: Annals) -> Iterator[str]:
    """What each row of the ledger may have become."""
    before, now = write.before.effects, write.now.effects
    for id in before.keys() - now.keys():
        yield f"effect e{id} has vanished from the ledger"
    for id, row in now.items():
        was = before.get(id)
        if was is None:
            yield from _of_first(write, row)
        elif row.rev != was.rev:
            yield from _of_write(write, was, row)
        elif row != was:
            yield from _of_reading(write, was, row)
    places = {(row.run, row.super_step, row.key) for row in now.values()}
    keys = {row.idempotency_key for row in now.values()}
    for id, events in write.now.audits.items():
        known = write.before.audits.get(id, ())
        if known is not events:
            yield from _of_audit(now[id], known, events)
            annals.intended.update((id, event.fence, event.state, event.attempt) for event in events if event.fence)
    for id in write.touched:
        yield from _of_end(write, id)
    if len(places) < len(now) or len(keys) < len(now):
        yield "two effects have one place, or one key"


def _of_first(write: Write, row: Effect) -> Iterator[str]:
    made = [each for each in _of_changes(write, row) if isinstance(each, IntendEffect) and not each.undo]
    if not made:
        yield f"effect e{row.id} came into being by {write.verb}, {row.state}"
    yield from _of_owner(write, row)


def _of_write(write: Write, was: Effect, row: Effect) -> Iterator[str]:
    name = f"effect e{row.id} of run r{row.run}"
    if wrong := [field for field in KEPT if getattr(was, field) != getattr(row, field)]:
        yield f"{name}: {', '.join(wrong)} changed by {write.verb}"
    if row.rev < was.rev:
        yield f"{name}: its revision fell from {was.rev} to {row.rev}"
    if not _is_reachable(was.state, row.state):
        yield f"{name} went from {was.state} to {row.state}"
    if row.attempt < was.attempt:
        yield f"{name}: its attempt fell from {was.attempt} to {row.attempt}"
    if write.verb == "resolve":
        yield from _of_resolution(write, was, row)
    elif not list(_of_changes(write, row)):
        yield f"{name} was {was.state} and is {row.state} by {write.verb}"
    else:
        yield from _of_owner(write, row)


def _of_audit(row: Effect, known: tuple[EffectEvent, ...], events: tuple[EffectEvent, ...]) -> Iterator[str]:
    """What is on record of the writes to a row, and the row: the same story."""
    name = f"effect e{row.id} of run r{row.run}"
    if [event.rev for event in events] != list(range(1, row.rev + 1)) or events[: len(known)] != known:
        yield f"{name} was written {row.rev} times, and its audit has {[event.rev for event in events]}"
        return
    last = events[-1]
    if row.state is not last.state and (row.state, last.state) != (EffectState.UNKNOWN, EffectState.INTENDED):
        yield f"{name} is {row.state}, and its audit ends with {last.state}"
    counted = row.undo_attempt if last.state in COMPENSATION else row.attempt
    if last.attempt != counted and (counted or last.state is not EffectState.UNDO_FAILED):
        yield f"{name} is at try {counted}, and its audit ends with {last.attempt}"
    for before, event in pairwise(events):
        said, again = ((each.state, each.attempt, each.fence, each.note) for each in (before, event))
        if said == again and event.fence is not None:
            yield f"{name}: {event.state} of try {event.attempt} was recorded twice under fence {event.fence}"


def _of_end(write: Write, id: int) -> Iterator[str]:
    """What a run leaves that has ended now: nothing that goes on, and, if it ended badly, nothing to be undone."""
    was, run = write.before.runs.get(id), write.now.runs[id]
    if run.state not in TERMINAL or was is None or was.state in TERMINAL:
        return
    for row in write.now.effects.values():
        if row.run != id:
            continue
        left = row.undoable and row.state is EffectState.DONE and run.state is not RunState.COMPLETED
        if left or row.state in (EffectState.INTENDED, EffectState.UNDOING):
            yield f"run r{id} has ended as {run.state}, and its effect e{row.id} ({row.key!r}) is {row.state}"


def _of_owner(write: Write, row: Effect) -> Iterator[str]:
    was = write.before.runs.get(row.run)
    changes = list(_of_changes(write, row))
    if was is not None and was.cancel is not None:
        if changes and all(isinstance(each, IntendEffect) and not each.cancelled for each in changes):
            yield f"effect e{row.id} was intended though run r{row.run} is cancelled, and does not know it"
    fences = {each.fence for each in changes}
    if was is None or was.worker != write.args[0] or was.fence not in fences:
        yield f"w{write.args[0]} wrote effect e{row.id} of run r{row.run}, and was not its owner"


def _of_resolution(write: Write, was: Effect, row: Effect) -> Iterator[str]:
    run = write.before.runs[row.run]
    if run.state not in TERMINAL and run.state is not RunState.HELD:
        yield f"effect e{row.id} was resolved while run r{run.id} is {run.state}"
    if row.id != write.args[0].effect or row.state not in RESOLVED.get(was.state, ()):
        yield f"effect e{row.id} was {was.state}, and was resolved as {row.state}"


def _of_reading(write: Write, was: Effect, row: Effect) -> Iterator[str]:
    """A row that nobody wrote is read otherwise only where its claim is over, or its worker's lease was renewed, or its
    undo begins again."""
    run = write.now.runs[row.run]
    if row.state is not was.state:
        lost = run.state is not RunState.RUNNING or run.fence != row.fence
        if (was.state, row.state) != (EffectState.INTENDED, EffectState.UNKNOWN) or not lost:
            yield f"effect e{row.id} was {was.state}, and is read as {row.state} after {write.verb}"
    if row.undo_attempt != was.undo_attempt and (write.verb != "retry" or row.state is not EffectState.UNDO_FAILED):
        yield f"effect e{row.id}: {was.undo_attempt} undos became {row.undo_attempt} by {write.verb}"


def _of_changes(write: Write, row: Effect) -> Iterator[IntendEffect | SettleEffect]:
    """A commit's changes of this effect."""
    for change in write.changes:
        match change:
            case IntendEffect():
                if (change.run, change.super_step, change.key) == (row.run, row.super_step, row.key):
                    yield change
            case SettleEffect():
                if change.effect == row.id:
                    yield change
            case _:
                """Of something else."""


def _is_reachable(was: EffectState, now: EffectState) -> bool:
    """Whether a row can have come from there to here, in one write or several."""
    known, todo = {was}, [was]
    while todo:
        state = todo.pop()
        moves = [*SETTLED.get(state, ()), *RESOLVED.get(state, ())]
        moves += [EffectState.INTENDED] if state in INTENDABLE else []
        moves += [EffectState.UNDOING] if state in UNDOABLE else []
        todo += [each for each in moves if each not in known]
        known.update(moves)
    return now in known


def is_there(write: Write, change: IntendEffect | SettleEffect) -> bool:
    """Whether what a commit says of an effect has been written, or something after it."""
    undo = change.undo if isinstance(change, IntendEffect) else change.state in COMPENSATION
    row = next((row for row in write.now.effects.values() if change in list(_of_changes(write, row))), None)
    if row is None:
        return False
    attempt = row.undo_attempt if undo else row.attempt
    if isinstance(change, IntendEffect) or attempt != change.attempt:
        return attempt >= change.attempt
    beyond = change.state is EffectState.UNKNOWN or (not undo and row.state in COMPENSATION)
    return row.state is change.state or beyond
