"""Questions: `interrupt` asks, and waits for however long it takes.

A question is a row of its own, which stays: who asked what, who may answer and until when, what the answer was and
whose. The digest of its payload says what is being approved. Code that asks something else under the same key when it
is replayed does not get that answer: the run is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NoReturn

from msgspec.structs import replace

from perdure.core.answers import canonical_bytes, check_answer, decode_answer, payload_digest, schema_bytes
from perdure.core.changes import AppendCheckpoint, NewInterrupt
from perdure.core.codec import codec_for
from perdure.core.durations import microseconds
from perdure.core.endings import Held
from perdure.core.failures import cancellation
from perdure.core.keys import retry_place
from perdure.core.records import HeldReason, Interrupt, InterruptState, WaitKind, interrupt_id, run_id
from perdure.core.shown import shown
from perdure.core.snapshot import spill, spilled
from perdure.errors import InvalidAnswer, NotSerializable, TimedOut, UsageError
from perdure.runtime.interruption import Cancelled
from perdure.runtime.patience import outlast
from perdure.runtime.recording import Call
from perdure.runtime.settings import check_name
from perdure.runtime.waiting import What
from perdure.telemetry import emit

ANSWERS_MAX: Final = 100
"""Answers to one question that do not load, before the run is held."""


@dataclass(frozen=True, slots=True)
class Default:
    """`on_timeout=Default(value)`: what stands for the answer where none came in time."""

    value: Any


async def interrupt(
    payload: Any = None, *, name: str = "interrupt", schema: Any = None,
    timeout: float | str | timedelta | None = None, on_timeout: Literal["raise", "cancel"] | Default = "raise",
    assignee: str | None = None,
) -> Any:  # fmt: skip
    """Ask, and return the answer that somebody gives with `app.resume` or `perdure resume`; parked until then.

    `payload`: what is asked, for who answers to see. `schema`: what the answer must be, as a type (it is returned as
    that) or a JSON schema; without one any JSON-shaped value will do. `timeout`: how long the question stands; then it
    raises `TimedOut`, or, as `on_timeout` says, the run is cancelled, or the value of `Default(value)` is returned.
    `assignee`: who is to answer, for inboxes to sort by.
    """
    asked = _question(payload, name, schema, on_timeout, assignee)
    delay_us = None if timeout is None else microseconds(timeout)
    call = await Call.of("interrupt", asked.name, (payload,))
    try:
        if call.record is not None:
            return await call.at.replay(call.record, lambda recorded: decode_answer(schema, recorded))
        record = await _answer(call, asked, delay_us, _fallback(on_timeout, schema), schema)
        return await call.made(record, lambda recorded: decode_answer(schema, recorded))
    except TimedOut:
        if on_timeout != "cancel":
            raise
        return await _cancel(call)


async def _answer(
    call: Call, asked: NewInterrupt, delay_us: int | None, fallback: bytes | None, schema: Any
) -> AppendCheckpoint:  # fmt: skip
    """Ask, and wait for the answer or the end of the time; returns the record that was filed. Where an answer does not
    load, which only this side can tell, the same is asked again, as a question of its own beside the first."""
    at = call.at
    shown, blobs = spill(asked.payload)
    asks = What(delay_us=delay_us, blobs=blobs)
    with call.waiting():
        for place in _places(call):
            asks["interrupt"] = replace(asked, id=await at.host.ids.take(1), payload=shown)
            try:
                record, found = await _asked_at(call, place, asks, fallback=fallback, schema=schema)
            except asyncio.CancelledError:
                at.waiting.withdraw(place)
                raise
            if record is not None:
                return record
            at.submit(at.waiting.close(place))
            asks = What(due_at=found.expires_at, blobs=blobs)
    raise at.hold_unreadable(call.key, NotSerializable(f"none of {ANSWERS_MAX} answers is what the code asks for"))


async def _asked_at(
    call: Call, place: str, asks: What, *, fallback: bytes | None, schema: Any
) -> tuple[AppendCheckpoint | None, Interrupt]:  # fmt: skip
    """Wait at one place: the record that was filed, None for an answer that does not load; and the question."""
    at = call.at
    while True:
        wait = await at.waiting.until(place, WaitKind.ANSWER, **asks)
        assert wait.target is not None
        found = await at.host.reads.interrupts.one(wait.target)
        at.check()
        assert found is not None, f"{interrupt_id(wait.target)} is waited for, and not there"
        _must_be(asks["interrupt"], found, call)
        if found.state is InterruptState.ANSWERED:
            return await _answered(call, place, found, schema), found
        if wait.due or found.state is not InterruptState.OPEN:  # nothing comes to one that is closed
            expired = TimedOut(f"nobody answered {interrupt_id(found.id)} in time")
            record = call.failed(expired) if fallback is None else call.result(fallback)
            if await _expired(call, place, record):
                return record, found


def _places(call: Call) -> Iterator[str]:
    """Where the question is asked, the first time and after answers that did not load; from where it was asked last."""
    places = [call.key, *(retry_place(call.key, n) for n in range(1, ANSWERS_MAX))]
    known = [n for n, place in enumerate(places) if call.at.waiting_for(place)]
    return iter(places[max(known, default=0) :])


async def _answered(call: Call, place: str, found: Interrupt, schema: Any) -> AppendCheckpoint | None:
    """File the answer; None where it is none of the type that was asked for. Its own code has the last word on that."""
    at, answer = call.at, found.answer
    assert answer is not None
    whole = answer if spilled(answer) is None else await at.load(answer)
    at.check()
    try:
        decode_answer(schema, whole)
    except NotSerializable as error:
        emit("answer.unreadable", run=run_id(at.claimed.run), interrupt=interrupt_id(found.id), why=str(error))
        return None
    return _filed(call, place, call.result(answer))


def _filed(call: Call, place: str, record: AppendCheckpoint) -> AppendCheckpoint:
    """The wait is over, and this is on record."""
    waiting = call.at.waiting
    if place != call.key:
        call.at.submit(waiting.close(place))
    call.at.submit(waiting.close(call.key, record))
    return record


async def _expired(call: Call, place: str, record: AppendCheckpoint) -> bool:
    """File that nobody has answered; not where somebody has after all."""
    at = call.at
    if place == call.key:
        return await call.done(at.waiting.close(place, record, expired=True)) is None
    batch = at.submit(at.waiting.close(place, expired=True))
    await at.kept(batch)
    if (at.claimed.run, at.number, place) in batch.done.result().bounced:
        return False
    return await call.done(at.waiting.close(call.key, record)) is None


def _must_be(asked: NewInterrupt | None, found: Interrupt, call: Call) -> None:
    """What was answered must be what is asked now."""
    if asked is not None and found.digest == asked.digest:
        return
    detail = (
        f"question {call.key!r} was asked as {interrupt_id(found.id)} with another payload than the code asks with "
        "now: its answer does not belong to this one. Let the payload depend on recorded steps only"
    )
    call.at.close(Held(HeldReason.DIVERGED, detail))
    call.at.check()


async def _cancel(call: Call) -> NoReturn:
    """The question has expired, and the run is to be cancelled for it."""
    at = call.at
    run, reason = at.claimed.run, f"nobody answered {call.key!r} in time"
    await at.flushed()
    await outlast("cancel", lambda: at.host.store.cancel(run, reason, cancellation(reason)))
    at.check()
    if at.interruption is None:
        at.interrupt(Cancelled(reason))
    await at.fresh()
    raise asyncio.CancelledError(reason)


def _question(payload: Any, name: str, schema: Any, on_timeout: Any, assignee: str | None) -> NewInterrupt:
    """The question, checked; without its id."""
    encoded = _payload(payload)
    policy = "default" if isinstance(on_timeout, Default) else on_timeout
    if policy not in ("raise", "cancel", "default") or (policy == "default" and not isinstance(on_timeout, Default)):
        raise UsageError(f'on_timeout is {shown(on_timeout)}; give "raise", "cancel" or perdure.Default(value)')
    return NewInterrupt(
        0, check_name("a question's name", name), encoded, schema_bytes(schema), payload_digest(encoded), policy,
        None if assignee is None else check_name("an assignee", assignee),
    )  # fmt: skip


def _fallback(on_timeout: Any, schema: Any) -> bytes | None:
    """The record of the default answer, which must be one that somebody could give."""
    if not isinstance(on_timeout, Default):
        return None
    value = on_timeout.value
    try:
        check_answer(schema_bytes(schema), value)
        answer = canonical_bytes(value)
        decode_answer(schema, answer)
        return answer
    except InvalidAnswer as error:
        raise InvalidAnswer(
            f"on_timeout=Default({shown(value)}) is no answer to this question: at {error.path} its schema expects "
            f"{shown(error.expected)}. Give one that somebody could give.",
            **error.ids,
        ) from None  # fmt: skip
    except NotSerializable as error:
        raise NotSerializable(f"on_timeout=Default(...): {error}", **error.ids) from None


def _payload(payload: Any) -> bytes:
    """What is asked, as it is recorded."""
    try:
        return codec_for(Any).encode(payload)
    except NotSerializable as error:
        path = error.ids.get("path", "$")
        raise NotSerializable(
            f"The payload of a question must be plain data, for whoever answers to read: {str(error).split('. ')[0]}. "
            "Give dicts, lists, text, numbers (dataclasses.asdict(x), model.model_dump(mode='json'), str(x)).",
            path=path,
        ) from error
