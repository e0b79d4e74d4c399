"""Questions: `interrupt` asks, and waits for however long it takes.

A question is a row of its own, which stays: who asked what, who may answer and until when, what the answer was and
whose. The digest of its payload says what is being approved. Code that asks something else under the same key when it
is replayed does not get that answer: the run is held.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn

from msgspec.structs import replace

from perdure.core.answers import canonical_bytes, check_answer, decode_answer, payload_digest, schema_bytes
from perdure.core.changes import AppendCheckpoint, NewInterrupt
from perdure.core.codec import codec_for
from perdure.core.durations import seconds
from perdure.core.endings import Held
from perdure.core.failures import cancellation
from perdure.core.records import HeldReason, Interrupt, InterruptState, WaitKind, interrupt_id
from perdure.core.shown import shown
from perdure.core.snapshot import spill
from perdure.errors import InvalidAnswer, NotSerializable, TimedOut, UsageError
from perdure.runtime.interruption import Cancelled
from perdure.runtime.patience import outlast
from perdure.runtime.recording import Call
from perdure.runtime.settings import check_name


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
    delay_us = None if timeout is None else int(seconds(timeout) * 1_000_000)
    call = await Call.of("interrupt", asked.name, (payload,))
    try:
        if call.record is not None:
            return await call.at.replay(call.record, lambda recorded: decode_answer(schema, recorded))
        record = await _answer(call, asked, delay_us, _fallback(on_timeout, schema))
        return await call.made(record, lambda recorded: decode_answer(schema, recorded))
    except TimedOut:
        if on_timeout != "cancel":
            raise
        return await _cancel(call)


async def _answer(call: Call, asked: NewInterrupt, delay_us: int | None, fallback: bytes | None) -> AppendCheckpoint:
    """Ask, and wait for the answer or the end of the time; returns the record that was filed."""
    at = call.at
    shown, blobs = spill(asked.payload)
    with call.waiting():
        question = replace(asked, id=await at.host.ids.take(1), payload=shown)
        while True:
            wait = await at.waiting.until(
                call.key, WaitKind.ANSWER, delay_us=delay_us, interrupt=question, blobs=blobs
            )  # fmt: skip
            assert wait.target is not None
            found = await at.host.reads.interrupts.one(wait.target)
            at.check()
            assert found is not None, f"{interrupt_id(wait.target)} is waited for, and not there"
            _must_be(asked, found, call)
            if found.state is InterruptState.ANSWERED:
                assert found.answer is not None
                record = call.result(found.answer)
                at.submit(at.waiting.close(call.key, record))
                return record
            if wait.due:
                expired = TimedOut(f"nobody answered {interrupt_id(found.id)} in time")
                record = call.failed(expired) if fallback is None else call.result(fallback)
                if await call.done(at.waiting.close(call.key, record, expired=True)) is None:
                    return record


def _must_be(asked: NewInterrupt, found: Interrupt, call: Call) -> None:
    """What was answered must be what is asked now."""
    if found.digest == asked.digest:
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
        return canonical_bytes(value)
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
