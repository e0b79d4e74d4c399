"""Changes of effects, as a worker might send them, and as it had better not; and what people have found out."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from perdure.core.changes import AppendCheckpoint, BeginUndo, Change, IntendEffect, SettleEffect
from perdure.core.effects import SETTLED, UNDOABLE, Effect, EffectFilter, EffectState, Resolution
from perdure.core.records import Claimed, RunState
from perdure.testing.differential.operations import Call, Operation
from perdure.testing.differential.pauses import BEYOND
from perdure.testing.differential.sight import Sight

KEYS: Final = ("p", "q")
"""Of effects; few, so that they are met again, and none of a step's or a wait's."""

UNKNOWN: Final = 10**15

Record = Callable[[Claimed, int, str], AppendCheckpoint]


class Deeds:
    """Draws changes of effects, and operations about them."""

    def __init__(self, source: random.Random, sight: Sight, *, new_id: Callable[[], int], record: Record) -> None:
        self.random = source
        self.sight = sight
        self._new_id = new_id
        self._record = record

    def any_kind(self, claimed: Claimed, super_step: int) -> Change:
        """What a run says of its effects."""
        known = self.sight.effects_of(claimed.run)
        draw = self.random.random()
        if draw < 0.06:
            return self._begin(claimed)
        if known and draw < 0.85:
            undoing = [row for row in known if row.state is EffectState.UNDOING]
            row = self.random.choice(undoing if undoing and self.random.random() < 0.7 else known)
            undoes = row.state in UNDOABLE and row.state not in SETTLED
            return self._undo(claimed, row) if undoes == (draw < 0.7) else self._settle(claimed, row)
        return self._intend(claimed, super_step, self.random.choice(KEYS))

    def _intend(self, claimed: Claimed, super_step: int, key: str) -> IntendEffect:
        choose = self.random.choice
        known = self.sight.effect_at(claimed.run, super_step, key)
        attempt = 1 if known is None else known.attempt + choose([0, 1, 1, 1])
        number = self._new_id() if known is None else known.id
        return IntendEffect(
            claimed.run, claimed.fence, claimed.thread, super_step, key, number, choose(["pay", "mail"]), "shop:pay",
            f"key {number}", choose(["retry", "ask"]), choose([True, True, False]), attempt, choose([0, 7]), b"args",
            blobs=BEYOND, cancelled=self._knows(claimed.run),
        )  # fmt: skip

    def _undo(self, claimed: Claimed, row: Effect) -> IntendEffect:
        attempt = row.undo_attempt + self.random.choice([0, 1, 1, 1])
        return IntendEffect(
            claimed.run, claimed.fence, claimed.thread, row.super_step, row.key, row.id, row.name, row.code,
            row.idempotency_key, row.policy, row.undoable, attempt, row.digest, row.arguments, undo=True,
            cancelled=self._knows(claimed.run),
        )  # fmt: skip

    def _settle(self, claimed: Claimed, row: Effect) -> SettleEffect:
        choose, draw = self.random.choice, self.random.random()
        state = choose(SETTLED[row.state] if draw < 0.9 and row.state in SETTLED else list(EffectState))
        undo = state in (EffectState.UNDONE, EffectState.UNDO_FAILED)
        attempt = (row.undo_attempt if undo else row.attempt) + choose([*[0] * 15, 1])
        recorded = not undo and self.random.random() < 0.4
        return SettleEffect(
            claimed.run, claimed.fence, claimed.thread, row.id, attempt, state, choose([None, b"receipt", b"error"]),
            choose([None, "why"]), choose([None, "ann"]),
            record=self._record(claimed, row.super_step, row.key) if recorded else None, blobs=BEYOND,
        )  # fmt: skip

    def _begin(self, claimed: Claimed) -> BeginUndo:
        outcome = self.random.choice([RunState.FAILED, RunState.CANCELLED])
        return BeginUndo(claimed.run, claimed.fence, claimed.thread, outcome, outcome.value.encode())

    def _knows(self, run: int) -> bool:
        """Whether a worker knows of the cancellation, most often as it is."""
        row = self.sight.run(run)
        knows = row is not None and row.cancel is not None
        return knows if self.random.random() < 0.8 else not knows

    # -- what no worker sends --------------------------------------------------------------------------------

    @staticmethod
    def plain(changes: Sequence[Change]) -> list[Change]:
        """The batch without what is said of an effect after its intent: whoever intends waits until that is there."""
        intended: set[Hashable] = set()
        found: list[Change] = []
        for change in changes:
            said: set[Hashable] = {change.effect} if isinstance(change, IntendEffect | SettleEffect) else set()
            if isinstance(change, IntendEffect):
                said.add((change.run, change.super_step, change.key))
            if said.isdisjoint(intended):
                found.append(change)
            if isinstance(change, IntendEffect):
                intended |= said
        return found

    # -- people ----------------------------------------------------------------------------------------------

    def resolve(self, by: str) -> Sequence[Operation]:
        """Say what became of something that nobody knows, or that everybody does."""
        choose = self.random.choice
        at_rest = (RunState.HELD, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED)
        known = [row for run in self.sight.runs(*at_rest) for row in self.sight.effects_of(run)]
        open_ = [row for row in known if row.state in (EffectState.INTENDED, EffectState.UNKNOWN)]
        pool = open_ if open_ and self.random.random() < 0.7 else known
        if not pool and self.random.random() < 0.95:
            return []
        number = choose(pool).id if pool else UNKNOWN
        state = choose([EffectState.DONE, EffectState.ABSENT, EffectState.FAILED, EffectState.UNDONE])
        found = Resolution(number, state, choose([None, b"receipt"]), choose([None, "ann"]), choose([None, "looked"]))
        return [Call("resolve", (found, BEYOND), by=by)]

    def retry(self, by: str) -> Sequence[Operation]:
        """Let what is left of an ended run be undone."""
        over = self.sight.runs(RunState.FAILED, RunState.CANCELLED)
        left = [run for run in over if any(row.state in UNDOABLE for row in self.sight.effects_of(run))]
        if not left:
            return []
        return [Call("retry", (self.random.choice(left), ()), {"undo": True}, by=by)]

    def read(self, run: int, limit: int, by: str) -> Operation:
        """Look at the ledger."""
        choose = self.random.choice
        numbers = [row.id for each in self.sight.runs() for row in self.sight.effects_of(each)] or [UNKNOWN]
        where = EffectFilter(
            state=choose([None, *EffectState]),
            run=choose([None, None, run]),
            thread_id=choose([None, None, "ann-1", "bob-1"]),
            agent=choose([None, None, "ann"]),
            name=choose([None, None, "pay"]),
            tenant=choose([None, None, "acme"]),
            undoable=choose([None, None, True, False]),
            limit=limit,
            after=choose([None, None, choose(numbers)]),
        )
        pair = choose(numbers), choose(numbers)
        verb, args = choose([("effects", (where,)), ("get_effects", (pair,)), ("effect_events", (choose(numbers),))])
        return Call(verb, args, by=by)
