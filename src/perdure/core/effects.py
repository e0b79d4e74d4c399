"""The ledger of effects, as rows: what an agent did, or may have done, to the outside world.

An effect's row is there before its body runs (`IntendEffect`), and says afterwards what became of it (`SettleEffect`).
The states and the moves between them:

    intended -> done | failed | absent | unknown        what its worker saw, or a person found out
    unknown  -> intended (tried again, under the same key) | done | failed | absent
    absent, failed -> intended                          it did not happen; it may be tried again
    done     -> undoing -> undone | undo_failed         compensation
    undo_failed -> undoing | undone

An intent whose claim is over (its run is not `running` under its fence any more) is unknown from then on, without
anybody writing so: readers see it as `unknown`. (The idea of an intent on disk before the act is that of write-ahead
logs; the key that goes with it is Stripe's idempotency key.)
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from perdure.core.records import RunState


class EffectState(StrEnum):
    """What is known of an effect."""

    INTENDED = "intended"
    """About to be dispatched, or in flight."""
    UNKNOWN = "unknown"
    """It was dispatched, or may have been, and nobody knows what became of it."""
    ABSENT = "absent"
    """It is known that it did not happen."""
    FAILED = "failed"
    """It ended with an error that says it did not happen, which is on record."""
    DONE = "done"
    UNDOING = "undoing"
    """Its undo is about to run, or runs."""
    UNDONE = "undone"
    UNDO_FAILED = "undo_failed"


TAKEN_BACK: Final = frozenset({EffectState.UNDONE, EffectState.UNDO_FAILED})
"""Its undo has come to its end."""

SETTLED: Final = {
    EffectState.INTENDED: (EffectState.DONE, EffectState.FAILED, EffectState.ABSENT, EffectState.UNKNOWN),
    EffectState.UNKNOWN: (EffectState.DONE, EffectState.FAILED, EffectState.ABSENT, EffectState.UNKNOWN),
    EffectState.UNDOING: (EffectState.UNDONE, EffectState.UNDO_FAILED),
}
"""From which state an outcome may come, and which it may be."""

INTENDABLE: Final = frozenset({EffectState.INTENDED, EffectState.UNKNOWN, EffectState.ABSENT, EffectState.FAILED})
"""From which an effect may be intended again."""

UNDOABLE: Final = frozenset({EffectState.DONE, EffectState.UNDOING, EffectState.UNDO_FAILED})
"""From which its undo may be intended."""

RESOLVED: Final = {
    EffectState.UNKNOWN: (EffectState.DONE, EffectState.FAILED, EffectState.ABSENT),
    EffectState.UNDO_FAILED: (EffectState.UNDONE,),
}
"""What a person may say of an effect (as it is read), and what it becomes by that."""


class Effect(msgspec.Struct, frozen=True):
    """An effect's row."""

    id: int
    run: int
    thread: int
    thread_id: str
    agent: str
    tenant: str | None
    super_step: int
    key: str
    name: str
    code: str
    """Where its function is: `module:qualname`, by which its undo is found."""
    idempotency_key: str
    """What the provider knows it by. It never changes."""
    policy: str
    """`retry`, `verify`, `ask` or `fail`: what is done where its outcome is unknown."""
    undoable: bool
    state: EffectState
    """As it is read: an intent whose claim is over is `unknown`."""
    attempt: int
    """How often it was dispatched."""
    undo_attempt: int
    digest: int
    """Of its arguments, as in a checkpoint."""
    arguments: bytes
    """Encoded; a large payload is a reference to a blob of the thread, as in a checkpoint."""
    outcome: bytes | None
    """Its result, or its encoded error; None while there is neither."""
    note: str | None
    """Why it is unknown, or how it was found out, for people."""
    by: str | None
    """Who said so, where a person did."""
    worker: int
    """Which intended it last."""
    fence: int
    rev: int
    """How often its row was written."""
    intended_at: int
    settled_at: int | None
    lease_until: int
    """When the lease of that worker ends or ended, as far as its row says; 0 where there is no such row any more. Until
    then a worker that was taken over early may still dispatch what it had intended."""


class EffectEvent(msgspec.Struct, frozen=True):
    """One write to an effect's row: the audit. `rev` counts them from 1."""

    effect: int
    rev: int
    at: int
    state: EffectState
    attempt: int
    worker: int | None
    fence: int | None
    by: str | None
    note: str | None


class Undoing(msgspec.Struct, frozen=True):
    """How a run will end once its effects have been undone: decided, and never decided again."""

    outcome: RunState
    payload: bytes


class EffectFilter(msgspec.Struct, frozen=True):
    """Which effects to list, oldest id first, from after that id."""

    state: EffectState | None = None
    run: int | None = None
    thread_id: str | None = None
    agent: str | None = None
    name: str | None = None
    tenant: str | None = None
    undoable: bool | None = None
    limit: int = 100
    after: int | None = None


class Resolution(msgspec.Struct, frozen=True):
    """What a person has found out about an effect: see `RESOLVED`."""

    effect: int
    state: EffectState
    outcome: bytes | None
    by: str | None
    note: str | None


def effect_id(id: int) -> str:
    """The name of an effect outside: `"e"` and its number."""
    return f"e{id}"
