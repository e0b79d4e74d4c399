"""Changes of a claimed run, made short: what a scenario does not say has a usual value."""

from __future__ import annotations

import hashlib
from typing import Any

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    CloseWait,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    RecordAttempt,
    RequeueRun,
    SendMessage,
    SettleEffect,
)
from perdure.core.effects import EffectState, Resolution
from perdure.core.records import Blob, Claimed, HeldReason, RunState, WaitKind
from perdure.core.requests import NewAnswer, NewMessage, Parent


def at(claimed: Claimed) -> dict[str, int]:
    """Where a change of this claim takes place."""
    return {"run": claimed.run, "fence": claimed.fence, "thread": claimed.thread}


def step(claimed: Claimed, key: str, payload: bytes = b"result", **fields: Any) -> AppendCheckpoint:
    """The record of a step of this claim."""
    default: dict[str, Any] = {
        "super_step": claimed.super_step,
        "seq": 1,
        "attempt": 1,
        "digest": 7,
        "failed": False,
        "started_at": 1_000,
        "ended_at": 2_000,
    }
    return AppendCheckpoint(key=key, payload=payload, **(at(claimed) | default | fields))


def attempt(claimed: Claimed, key: str, number: int = 1, **fields: Any) -> RecordAttempt:
    """A try of a step of this claim."""
    default: dict[str, Any] = {"super_step": claimed.super_step, "error": None, "started_at": 1_000, "ended_at": None}
    return RecordAttempt(key=key, attempt=number, **(at(claimed) | default | fields))


def again(claimed: Claimed, super_step: int, payload: bytes = b"again", **fields: Any) -> BeginSuperStep:
    """The boundary that begins `super_step`."""
    default: dict[str, Any] = {"state": None, "ended_at": 3_000}
    return BeginSuperStep(super_step=super_step, payload=payload, **(at(claimed) | default | fields))


def end(claimed: Claimed, payload: bytes = b"done", **fields: Any) -> EndRun:
    """The end of this claim's run, after its current super-step."""
    default: dict[str, Any] = {
        "super_step": claimed.super_step + 1,
        "outcome": RunState.COMPLETED,
        "state": None,
        "ended_at": 4_000,
    }
    return EndRun(payload=payload, **(at(claimed) | default | fields))


def fail(claimed: Claimed, payload: bytes = b"error", **fields: Any) -> EndRun:
    """The failure of this claim's run in its current super-step."""
    return end(claimed, payload, outcome=RunState.FAILED, **fields)


def requeue(claimed: Claimed, delay_s: float = 0, drop_keys: tuple[str, ...] = ()) -> RequeueRun:
    """This claim's run, given back."""
    return RequeueRun(claimed.run, claimed.fence, claimed.thread, int(delay_s * 1_000_000), drop_keys)


def hold(claimed: Claimed, reason: HeldReason = HeldReason.DIVERGED, detail: str = "look at it") -> HoldRun:
    """This claim's run, kept for a person."""
    return HoldRun(claimed.run, claimed.fence, claimed.thread, reason, detail)


def wait(claimed: Claimed | None = None, key: str = "w", kind: WaitKind = WaitKind.TIMER, **fields: Any) -> OpenWait:
    """The beginning of a wait in this claim's run; without a claim, `Bench.parked` says whose it is. `delay_s` is its
    time from now."""
    if "delay_s" in fields:
        fields["delay_us"] = int(fields.pop("delay_s") * 1_000_000)
    place = at(claimed) if claimed else {"run": 0, "fence": 0, "thread": 0}
    default = {"super_step": claimed.super_step if claimed else 0}
    return OpenWait(key=key, kind=kind, **(place | default | fields))


def close(claimed: Claimed, key: str = "w", payload: bytes | None = b"came", **fields: Any) -> CloseWait:
    """The end of a wait, with its record; without one where the payload is None. `record` gives other fields of it."""
    place = at(claimed) | {"super_step": fields.pop("super_step", claimed.super_step)}
    more = fields.pop("record", {})
    record = None if payload is None else step(claimed, key, payload, **({"super_step": place["super_step"]} | more))
    return CloseWait(key=key, record=record, **place, **fields)


def send(claimed: Claimed, key: str, message: NewMessage, **record: Any) -> SendMessage:
    """A message sent by a step of this claim, with its record."""
    sent = step(claimed, key, b"sent", **record)
    return SendMessage(key=key, record=sent, message=message, super_step=sent.super_step, **at(claimed))


def bury(claimed: Claimed, seq: int, reason: str = "of no known type") -> BuryMessage:
    """A message of this claim's mailbox, among the dead letters."""
    return BuryMessage(seq=seq, reason=reason, **at(claimed))


def park(claimed: Claimed, *, cancelled: bool = False) -> ParkRun:
    """This claim's run, let go of while it waits."""
    return ParkRun(**at(claimed), cancelled=cancelled)


def intend(claimed: Claimed, effect: int, key: str = "e", attempt: int = 1, **fields: Any) -> IntendEffect:
    """An effect of this claim, about to be dispatched; with `undo`, its undo."""
    default: dict[str, Any] = {
        "super_step": claimed.super_step,
        "name": "pay",
        "code": "shop:pay",
        "idempotency_key": f"key of {effect}",
        "policy": "retry",
        "undoable": True,
        "digest": 7,
        "arguments": b"arguments",
    }
    return IntendEffect(key=key, effect=effect, attempt=attempt, **(at(claimed) | default | fields))


def settle(
    claimed: Claimed, effect: int, state: EffectState = EffectState.DONE, attempt: int = 1, **fields: Any
) -> SettleEffect:
    """What became of an effect of this claim. `key` files its record with it, with the outcome as its payload; `seq` is
    the record's."""
    outcome = fields.pop("outcome", b"receipt" if state is EffectState.DONE else None)
    key, seq = fields.pop("key", None), fields.pop("seq", 1)
    failed = state is not EffectState.DONE
    record = None if key is None else step(claimed, key, outcome or b"", seq=seq, attempt=attempt, failed=failed)
    default: dict[str, Any] = {"effect": effect, "attempt": attempt, "record": record}
    return SettleEffect(state=state, outcome=outcome, **(at(claimed) | default | fields))


def undo(claimed: Claimed, outcome: RunState = RunState.FAILED, payload: bytes = b"why", **fields: Any) -> BeginUndo:
    """The decision how this claim's run will end."""
    return BeginUndo(outcome=outcome, payload=payload, **(at(claimed) | fields))


def found_out(effect: int, state: EffectState, outcome: bytes | None = None, **fields: Any) -> Resolution:
    """What a person has found out about an effect."""
    return Resolution(effect, state, outcome, **({"by": "ann", "note": "looked"} | fields))


def cancelled(claimed: Claimed, payload: bytes = b"cancelled", **fields: Any) -> EndRun:
    """The end of this claim's run as a cancelled one."""
    return end(claimed, payload, outcome=RunState.CANCELLED, **fields)


def parent(claimed: Claimed, worker: int, **fields: Any) -> Parent:
    """This claim's run, as the one that starts another."""
    return Parent(claimed.run, claimed.fence, worker, **fields)


def answer(interrupt: int, data: bytes = b"yes", by: str | None = None, **fields: Any) -> NewAnswer:
    """An answer to an interrupt."""
    return NewAnswer(interrupt, data, by, **fields)


def blob(data: bytes) -> Blob:
    """Bytes under their digest."""
    return Blob(hashlib.blake2b(data, digest_size=32).digest(), data)
