"""Mailboxes: messages in the order of their arrival, those that were received, and the dead letters."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.core import limits
from perdure.core.changes import BuryMessage
from perdure.core.records import Message, Wait, WaitKind
from perdure.core.requests import Bounce, NewMessage, NotSent, SendOutcome, Sent
from perdure.store.memory.tables import Tables
from perdure.store.pages import page_size


def fits(message: Message, wait: Wait) -> bool:
    """Whether the message is one that is waited for."""
    return not wait.labels or message.label in wait.labels


def is_full(tables: Tables, thread: int) -> bool:
    return len(tables.mail.get(thread, {})) >= limits.MAILBOX_MAX


def bounce(tables: Tables, message: NewMessage) -> Bounce | None:
    """Why the message cannot arrive; None where it can, or has."""
    thread = tables.thread_by_name.get(message.thread_id)
    if _known(tables, message) is not None:
        return None
    if thread is None:
        return Bounce.NO_THREAD
    return Bounce.FULL if is_full(tables, thread) else None


def _known(tables: Tables, message: NewMessage) -> Sent | None:
    """Where it has arrived, by its number or by its key."""
    if message.id in tables.arrived:
        return Sent(*tables.arrived[message.id])
    thread = tables.thread_by_name.get(message.thread_id)
    if thread is None or message.key is None or (thread, message.key) not in tables.message_keys:
        return None
    seq, first = tables.message_keys[thread, message.key]
    return Sent(thread, seq, None if first == message.id else first)


def send(tables: Tables, message: NewMessage, *, now: int) -> SendOutcome:
    """Put a message into its mailbox, once."""
    if (why := bounce(tables, message)) is not None:
        return NotSent(why)
    if (known := _known(tables, message)) is not None:
        return known
    thread = tables.thread_by_name[message.thread_id]
    row = Message(
        id=message.id,
        thread=thread,
        seq=0,
        sender=message.sender,
        label=message.label,
        payload=message.payload,
        sent_at=now,
        dead=None,
    )
    tables.put_blobs(thread, message.blobs)
    seq = _arrive(tables, row).seq
    if message.key is not None:
        tables.message_keys[thread, message.key] = seq, message.id
    return Sent(thread, seq)


def _arrive(tables: Tables, message: Message) -> Message:
    """Put a message at the end of its mailbox, and wake who waits for it."""
    thread = message.thread
    tables.last_message[thread] += 1
    message = msgspec.structs.replace(message, seq=tables.last_message[thread])
    tables.mail[thread][message.seq] = message
    tables.arrived[message.id] = thread, message.seq
    waiters = tables.waiters.get((WaitKind.MESSAGE, thread), set())
    for run in sorted({run for run, at in waiters if fits(message, tables.waits[run][at])}):
        tables.wake(run)
    return message


def take(tables: Tables, thread: int, seq: int, *, now: int) -> None:
    """Let a message be received: it leaves the mailbox, and is known by its id for a while."""
    message = tables.mail[thread].pop(seq)
    tables.received.append((now, message.id))
    while tables.received[0][0] + limits.MESSAGE_MEMORY_US < now:
        del tables.arrived[tables.received.popleft()[1]]
    _offer_room(tables, thread)


def bury(tables: Tables, change: BuryMessage) -> None:
    message = tables.mail[change.thread].pop(change.seq, None)
    if message is not None:
        tables.dead_letters[message.id] = msgspec.structs.replace(message, dead=change.reason)
        _offer_room(tables, change.thread)


def _offer_room(tables: Tables, thread: int) -> None:
    if not is_full(tables, thread):
        tables.wake_all(WaitKind.ROOM, thread)


def revive(tables: Tables, message: int) -> Message | None:
    """Put a dead letter back, at the end; no mailbox is too full for it."""
    dead = tables.dead_letters.pop(message, None)
    return None if dead is None else _arrive(tables, msgspec.structs.replace(dead, dead=None))


# -- reading -------------------------------------------------------------------------------------------------


def mailbox(tables: Tables, thread: int, *, limit: int, after: int) -> list[Message]:
    """A mailbox in order, from after that `seq`."""
    return _page(((seq, row) for seq, row in tables.mail.get(thread, {}).items()), limit=limit, after=after)


def dead_letters(tables: Tables, thread: int | None, *, limit: int, after: int) -> list[Message]:
    """Dead letters by id, from after that one."""
    dead = ((row.id, row) for row in tables.dead_letters.values() if thread is None or row.thread == thread)
    return _page(dead, limit=limit, after=after)


def _page(numbered: Iterable[tuple[int, Message]], *, limit: int, after: int) -> list[Message]:
    return [row for number, row in sorted(numbered, key=lambda each: each[0]) if number > after][: page_size(limit)]
