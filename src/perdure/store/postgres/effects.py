"""From changes of the ledger to the arguments of `commit_effects` (`functions/effects.sql`), beyond those of `commit`.

The function takes a batch as a set, with one change of each effect. So a batch that has more is cut; and so is one that
has to do with waiting too, which another function writes. The parts are one transaction, the ledger's first: it is
written before the slice of any run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from perdure.core.changes import (
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    Change,
    CloseWait,
    EndRun,
    IntendEffect,
    OpenWait,
    SettleEffect,
)
from perdure.core.effects import EffectState, effect_id
from perdure.core.records import WaitKind
from perdure.store import reasons
from perdure.store.postgres.batches import Arguments, columns

_KINDS: Final = frozenset({IntendEffect, SettleEffect, BeginUndo})


def has_effects(changes: Sequence[Change]) -> bool:
    """Whether the batch writes to the ledger."""
    return not _KINDS.isdisjoint(map(type, changes))


def parts(changes: Sequence[Change]) -> tuple[list[list[Change]], list[Change]]:
    """What the batch says of effects, in parts that can each be taken as a set (nearly always one), and the rest."""
    found: list[list[Change]] = [[]]
    rest: list[Change] = []
    seen: set[tuple[Any, ...]] = set()
    for change in changes:
        if type(change) not in _KINDS:
            rest.append(change)
            continue
        effects = _effects(change)
        if not seen.isdisjoint(effects):
            found.append([])
            seen = set()
        seen.update(effects)
        found[-1].append(change)
    return found, rest


def _effects(change: Change) -> list[tuple[Any, ...]]:
    """What the change names an effect by."""
    match change:
        case IntendEffect():
            return [(change.effect,), (change.run, change.super_step, change.key)]
        case SettleEffect():
            return [(change.effect,)]
        case _:
            return []


def unfit(part: Sequence[Change], row: Any) -> list[tuple[Change, str]]:
    """The changes of a part that its answer says their effects do not allow, and why."""
    if not row.get("unfit"):
        return []
    said = zip(*(row[name] for name in ("unfit", "keys", "states", "attempts")), strict=True)
    return [(part[at], _why(part[at], key, state, attempt)) for at, key, state, attempt in said]


def _why(change: Change, key: str | None, state: str | None, attempt: int) -> str:
    assert isinstance(change, IntendEffect | SettleEffect)
    if key is None or state is None:
        return reasons.no_such_effect(change.key if isinstance(change, IntendEffect) else effect_id(change.effect))
    if isinstance(change, SettleEffect):
        asked = change.state
    else:
        asked = EffectState.UNDOING if change.undo else EffectState.INTENDED
    return reasons.does_not_fit(key, state, attempt=attempt, asked=asked.value)


def threads(changes: Iterable[Change]) -> list[int]:
    """The threads that these changes lock, as far as it shows."""
    found: set[int] = set()
    for change in changes:
        match change:
            case BeginSuperStep() | EndRun() | CloseWait() | BuryMessage() | OpenWait(kind=WaitKind.MESSAGE):
                found.add(change.thread)
            case OpenWait(kind=WaitKind.ROOM, target=target) if target is not None:
                found.add(target)
            case _:
                """None, or one that only the database knows."""
    return list(found)


def arguments(changes: Sequence[Change], later: Sequence[Change] = ()) -> Arguments:
    """What `commit_effects` takes after the arguments of `commit`, where others follow in the same transaction."""
    numbered = list(enumerate(changes))
    intents = [(at, each) for at, each in numbered if isinstance(each, IntendEffect)]
    outcomes = [(at, each) for at, each in numbered if isinstance(each, SettleEffect)]
    decided: dict[int, BeginUndo] = {}
    for change in changes:
        if isinstance(change, BeginUndo):
            decided.setdefault(change.run, change)
    return [
        threads(later),
        *columns((_intent(each, at) for at, each in intents), 15),
        *columns((_outcome(each, at) for at, each in outcomes), 11),
        *columns(((each.run, each.outcome.value, each.payload) for each in decided.values()), 3),
        [each.run for _, each in intents if not each.cancelled],
    ]


def _intent(i: IntendEffect, position: int) -> tuple[Any, ...]:
    kept = (i.effect, i.name, i.code, i.idempotency_key, i.policy, i.undoable)
    return (i.run, i.fence, i.super_step, i.key, *kept, i.attempt, i.digest, i.arguments, i.undo, position)


def _outcome(s: SettleEffect, position: int) -> tuple[Any, ...]:
    step = (None, None) if s.record is None else (s.record.super_step, s.record.key)
    return (s.run, s.fence, s.effect, s.attempt, s.state.value, s.outcome, s.note, s.by, *step, position)
