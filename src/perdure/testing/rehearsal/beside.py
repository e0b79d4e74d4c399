"""What effects have beside their bodies, on a stage: the undos, and what asks a provider.

Faults strike there as at a step's body, by the name of the effect behind a word of their own (`undo:charge`,
`verify:charge`), or by its key (`undo:charge#2`). An undo that was given up is in the ledger, and no run says so: it
fails the test at its end, unless a fault was to make it fail, or the test expects it.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from perdure.core.changes import Change, IntendEffect, OpenWait, Place, SettleEffect
from perdure.core.effects import Effect, EffectState, effect_id
from perdure.core.keys import meant
from perdure.core.records import run_id
from perdure.errors import UsageError
from perdure.runtime.callables import name_of
from perdure.runtime.frames import BesideFrame, StepFrame
from perdure.store.memory.tables import Tables
from perdure.testing.rehearsal.faults import Fault, Moment, striking

UNDO: Final = "undo:"
VERIFY: Final = "verify:"
"""Before an effect's name, or its key, where faults and counts mean what it has beside its body."""

_OVER: Final = (EffectState.UNDONE, EffectState.UNDO_FAILED)


class Beside:
    """What has begun beside effects, and how it ended."""

    def __init__(self, faults: Sequence[Fault], tables: Tables) -> None:
        self.names: dict[str, str] = {}
        """By a function's own name, what faults call it."""
        self._faults = faults
        self._tables = tables
        self._asked: dict[tuple[Place, int], str] = {}
        """By place and fence, what asks a provider, while what it says is not on disk."""
        self._meant_to_fail: set[tuple[Place, int]] = set()
        """By place and try, the undos at which faults struck that may make them fail."""
        self._expected: list[str] = []

    def begins(self, at: BesideFrame, body: Callable[[], Awaitable[Any]]) -> None:
        """It is about to run."""
        assert isinstance(body, functools.partial)
        self.names.setdefault(name_of(body.args[0]), at.name)
        if at.name.startswith(VERIFY):
            self._asked[_place(at), at.super_step.claimed.fence] = at.name

    def struck(self, at: BesideFrame, faults: Iterable[Fault]) -> None:
        """These faults strike it."""
        if at.name.startswith(UNDO) and any(fault.fails for fault in faults):
            self._meant_to_fail.add((_place(at), at.attempt))

    def written(self, change: Change) -> bool:
        """This is on disk; whether who wrote it dies, before it hears so."""
        words = list(self._recorded(change))
        struck = [fault for name, key in words for fault in striking(self._faults, Moment.AFTER, name, key)]
        return any(fault.crashes for fault in struck)

    def _recorded(self, change: Change) -> Iterator[tuple[str, str]]:
        """What has its record by this change, by name and key: an undo that is over, and what a provider has said, by
        whatever follows from it."""
        match change:
            case SettleEffect():
                row = self._tables.effects[change.effect].row
                place = row.run, row.super_step, row.key
                if change.state in _OVER:
                    yield UNDO + row.name, beside(UNDO, row.key)
            case IntendEffect() | OpenWait():
                place = change.run, change.super_step, change.key.partition("~")[0]
            case _:
                return
        if (name := self._asked.pop((place, change.fence), None)) is not None:
            yield name, beside(VERIFY, place[2])

    # -- what was given up -----------------------------------------------------------------------------------

    def expect(self, effect: object) -> None:
        """The undo of this effect is to be given up."""
        if not isinstance(effect, str) or not effect:
            raise UsageError(
                f'expect_undo_failed takes the name or the key of an effect, such as "charge", not {effect!r}'
            )
        self._expected.append(effect)

    def wrong(self) -> str:
        """What to say of the undos that were given up, and of those that were to be and were not; nothing if all is as
        it should be."""
        rows = [entry.row for entry in self._tables.effects.values() if entry.row.state is EffectState.UNDO_FAILED]
        left = [row for row in rows if not self._is_meant(row)]
        if left:
            return "; ".join(map(_given_up, left))
        unmet = [word for word in self._expected if not any(_is(word, row) for row in rows)]
        if unmet:
            return f"these undos were expected to fail, and did not: {', '.join(map(repr, unmet))}"
        return ""

    def _is_meant(self, row: Effect) -> bool:
        last = (row.run, row.super_step, row.key), row.undo_attempt
        return last in self._meant_to_fail or any(_is(word, row) for word in self._expected)


def named(at: StepFrame) -> tuple[str, str]:
    """What faults call this body, by name and by key."""
    if not isinstance(at, BesideFrame):
        return at.name, at.key
    return at.name, beside(UNDO if at.name.startswith(UNDO) else VERIFY, at.key)


def beside(what: str, key: str) -> str:
    """The key of what an effect of this key has beside its body."""
    return f"={what}{key[1:]}" if key.startswith("=") else what + key


def _place(at: BesideFrame) -> Place:
    return at.super_step.claimed.run, at.super_step.number, at.key


def _is(word: str, row: Effect) -> bool:
    return meant((word,), key=row.key, name=row.name) is not None


def _given_up(row: Effect) -> str:
    return (
        f"the undo of {effect_id(row.id)} ({row.key!r}, of {run_id(row.run)}) was given up, and no fault was to make "
        f"it fail: {row.note}. Mend it, or put an answer in its place: answer_step({UNDO + row.name!r}, None); where "
        f"it is to fail, say stage.expect_undo_failed({row.name!r})"
    )
