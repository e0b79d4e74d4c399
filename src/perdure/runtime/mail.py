"""Messages: `send` puts one into a thread's mailbox, `receive` takes the next.

A message leaves its mailbox in the commit that records it as received, and it is there from the commit that records it
as sent: none is lost, none is received twice, and those of one sender to one thread keep their order. The mailbox is
the thread's, so what one run leaves unread the next one finds.
"""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec

from perdure.core.changes import CommitOutcome, SendMessage
from perdure.core.codec import codec_for
from perdure.core.declared import annotation_name
from perdure.core.durations import microseconds
from perdure.core.endings import Lost
from perdure.core.labels import label_of, labels_of, member_of, message_bytes
from perdure.core.limits import MAILBOX_MAX
from perdure.core.records import Message, WaitKind, run_id
from perdure.core.requests import Bounce, NewMessage
from perdure.core.shown import shown
from perdure.core.snapshot import spill
from perdure.errors import MailboxFull, NotFound, NotSerializable, PerdureError, TimedOut, UsageError
from perdure.runtime.patience import outlast
from perdure.runtime.payloads import load_payload
from perdure.runtime.recording import NOTHING, Call
from perdure.runtime.starting import checked_id

_LABELLED: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


async def send(thread_id: str, message: Any, *, on_full: Literal["block", "reject"] = "block") -> None:
    """Put a message into a thread's mailbox; on disk, in one commit with this step, when it returns.

    `message`: JSON-shaped data, or a value of a type that can be recorded; the name of its type is its label. Raises
    `NotFound` where there is no such thread. Where the mailbox is full it waits for room, parked, or raises
    `MailboxFull` with `on_full="reject"`.
    """
    thread_id = checked_id("a thread id", thread_id)
    if on_full not in ("block", "reject"):
        raise UsageError(f'on_full is {shown(on_full)}; give "block" or "reject"')
    payload, blobs = spill(message_bytes(message))
    call = await Call.of("send", "send", (thread_id, payload))
    at = call.at
    if call.record is not None:
        await at.replay(call.record, lambda _: None)
        return
    claimed = at.claimed
    number = await at.host.ids.take(1)
    new = NewMessage(number, thread_id, run_id(claimed.run), label_of(message), payload, blobs)
    with call.waiting():
        while True:
            at.check()
            change = SendMessage(
                claimed.run, claimed.fence, claimed.thread, at.number, call.key, call.result(NOTHING), new
            )  # fmt: skip
            bounce = await call.done(change)
            if bounce is None:
                return
            if bounce is Bounce.NO_THREAD:
                raise _failed(call, no_thread(thread_id))
            if on_full == "reject":
                raise _failed(call, full(thread_id))
            await _room(call, thread_id)


def no_thread(thread_id: str) -> NotFound:
    """The error of a message to nobody."""
    return NotFound(
        f"there is no thread {thread_id!r} to send to; a thread begins with its first run: start one on it before",
        thread_id=thread_id,
    )


def full(thread_id: str) -> MailboxFull:
    """The error of a message to somebody who does not read."""
    return MailboxFull(
        f"the mailbox of thread {thread_id!r} holds {MAILBOX_MAX:,} messages, as many as it may; wait until its agent "
        'has received some, or send with on_full="block"',
        thread_id=thread_id, limit=MAILBOX_MAX,
    )  # fmt: skip


def _failed(call: Call, error: PerdureError) -> Exception:
    """Record a failure; it is raised as its replay will raise it."""
    record = call.failed(error)
    call.at.submit(call.at.waiting.close(call.key, record))
    return call.raised(record)


async def _room(call: Call, thread_id: str) -> None:
    """Wait until the mailbox has room."""
    at = call.at
    thread = await outlast("thread", lambda: at.host.store.get_thread(thread_id))
    at.check()
    assert thread is not None, "threads stay"
    await at.waiting.until(call.key, WaitKind.ROOM, target=thread.id)
    at.submit(at.waiting.close(call.key))


async def receive(type: Any = None, *, timeout: float | str | timedelta | None = None) -> Any:
    """Take the oldest message of this thread's mailbox, and wait for one where there is none, parked.

    `type`: only messages of this type, or of these (`A | B`), or with this label where it is text; they are returned as
    that type. `timeout`: raises `TimedOut` when it is over. A message that does not load as its type is put among the
    dead letters, and the next one is taken.
    """
    labels = labels_of(type)
    delay_us = None if timeout is None else microseconds(timeout)
    call = await Call.of("receive", "receive")
    at = call.at
    if call.record is not None:
        return await at.replay(call.record, lambda recorded: _received(type, recorded))
    with call.waiting():
        while True:
            found = await at.mail.next(labels)
            at.check()
            if found is not None:
                taken = await _take(call, found, type)
                if taken is not None:
                    return taken[0]
                continue
            if not await at.mail.quiet():
                continue
            wait = await at.waiting.until(call.key, WaitKind.MESSAGE, delay_us=delay_us, labels=labels)
            if wait.due and not await _anything(call, labels):
                raise _failed(call, TimedOut("no message came in time"))


async def _take(call: Call, found: Message, type: Any) -> tuple[Any] | None:
    """Receive this message: its value in a tuple; None if that cannot be. Nothing is waited for once it is taken: a
    branch that is cancelled then would have lost it."""
    at = call.at
    try:
        payload = await load_payload(at.host.store, found.thread, found.payload)
        at.check()
        record = msgspec.msgpack.encode((found.label, msgspec.Raw(payload)))
        value = _received(type, record)
    except NotSerializable as error:
        why = str(error).removesuffix(" Give what is declared, or declare what is given.")
        at.mail.bury(found, f"received as {annotation_name(type)}: {why}")
        return None
    except BaseException:
        at.mail.put_back(found)
        raise
    batch = at.submit(at.waiting.close(call.key, call.result(record), take=found.seq))
    batch.done.add_done_callback(functools.partial(_taken, call, found))
    return (value,)


def _taken(call: Call, message: Message, done: asyncio.Future[CommitOutcome]) -> None:
    """A message that was not there to be taken (an operator has removed it, say) was not received: begin again from
    what is on record."""
    at = call.at
    at.mail.gone(message)
    if done.cancelled() or done.exception() is not None:
        return
    if (at.claimed.run, at.number, call.key) in done.result().bounced:
        at.close(Lost("the message that it received is not in its mailbox any more"))


def _received(type: Any, record: bytes) -> Any:
    """The message from its record: its label, which says by which of the types it is read, and itself."""
    label, payload = _LABELLED.decode(record)
    return codec_for(member_of(type, label)).decode(bytes(payload))


async def _anything(call: Call, labels: tuple[str, ...]) -> bool:
    """Whether a message has come after all."""
    found = await call.at.mail.next(labels)
    call.at.check()
    if found is not None:
        call.at.mail.put_back(found)
    return found is not None
