"""Effects as JSON documents. The names are a contract: they are `EffectInfo`'s. Pure."""

from __future__ import annotations

from typing import Any

from perdure.cli.waiting_documents import Document, jsonable, utc
from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.core.display import render
from perdure.core.effects import Effect, effect_id


def effect_document(info: EffectInfo) -> Document:
    """An effect; `events` is empty in a listing."""
    error = info.error
    return {
        "id": info.id,
        "run_id": info.run_id,
        "thread_id": info.thread_id,
        "agent": info.agent,
        "name": info.name,
        "key": info.key,
        "super_step": info.super_step,
        "state": info.state.value,
        "arguments": jsonable(info.arguments),
        "result": jsonable(info.result),
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "traceback": error.traceback},
        "idempotency_key": info.idempotency_key,
        "policy": info.policy,
        "undoable": info.undoable,
        "attempt": info.attempt,
        "undo_attempt": info.undo_attempt,
        "note": info.note,
        "by": info.by,
        "worker": info.worker,
        "intended_at": utc(info.intended_at),
        "settled_at": utc(info.settled_at),
        "tenant": info.tenant,
        "events": [_event(event) for event in info.events],
    }


def _event(event: EffectEventInfo) -> Document:
    return {
        "at": utc(event.at),
        "state": event.state.value,
        "attempt": event.attempt,
        "worker": event.worker,
        "by": event.by,
        "note": event.note,
    }


def open_effect_document(row: Effect) -> dict[str, Any]:
    """An effect that waits for a person, as its run's page lists it: `effects show` has all of it."""
    return {
        "id": effect_id(row.id),
        "key": row.key,
        "super_step": row.super_step,
        "name": row.name,
        "state": row.state.value,
        "arguments": render(row.arguments),
        "idempotency_key": row.idempotency_key,
        "note": row.note,
    }
