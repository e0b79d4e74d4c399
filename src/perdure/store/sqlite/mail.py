"""Mailboxes: messages that arrive, leave, or end among the dead letters.

A set of messages, or a batch's changes of mail, is decided in its order on what is there, read as sets, and is then
written as sets. A received message is kept without its payload for `MESSAGE_MEMORY_US`, so that a repeat of its sending
is known for what it is; what is older is forgotten as its thread gets more mail. Only keys stay for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.core import limits
from perdure.core.changes import BuryMessage
from perdure.core.records import Message
from perdure.core.requests import Bounce, NewMessage, NotSent, SendOutcome, Sent
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.transaction import Reader, Transaction, decode, encode
from perdure.store.sqlite.waiters import after_mail, after_room


class Mailbox(msgspec.Struct):
    """A thread's mailbox while messages are decided."""

    thread: int
    mail: int
    last_message: int
    changed: bool = False
    roomy: bool = False
    """A message has left, and there was room for another."""


class Mail:
    """Messages that come and go together."""

    def __init__(self, tx: Transaction, messages: Sequence[NewMessage], places: Iterable[tuple[int, int]] = ()) -> None:
        self.tx = tx
        self.boxes: dict[int, Mailbox] = {}
        self.named: dict[str, Mailbox] = {}
        self.known: dict[int, Sent] = {}
        self.keys: dict[tuple[int, str], tuple[int, int]] = {}
        """Thread and key, to the message that had this key first, and its place."""
        self.new_keys: list[tuple[int, str, int, int]] = []
        self.there: dict[tuple[int, int], int] = {}
        self.new: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.blobs: list[tuple[int, bytes, bytes]] = []
        self.received: list[int] = []
        self.buried: list[tuple[int, str]] = []
        self.sent: list[tuple[int, str]] = []
        if messages:
            self._read_named({each.thread_id for each in messages})
            for id, thread, seq in tx.array("known_messages", ids=encode([each.id for each in messages])):
                self.known[id] = Sent(thread, seq)
            self._read_keys([each for each in messages if each.key is not None])
        if taken := sorted(set(places)):
            self._read_places(taken)

    def _read_named(self, names: set[str]) -> None:
        for cursor in self.tx.spread("named_mailboxes", [(name,) for name in names]):
            for name, *fields in decode(cursor.fetchone()[0]):
                self.named[name] = self._box(*fields)

    def _read_keys(self, messages: Sequence[NewMessage]) -> None:
        boxes = self.named
        places = {(boxes[m.thread_id].thread, m.key) for m in messages if m.key is not None and m.thread_id in boxes}
        for cursor in self.tx.spread("known_message_keys", sorted(places)):
            for thread, key, message, seq in decode(cursor.fetchone()[0]):
                self.keys[thread, key] = message, seq

    def _read_places(self, places: Sequence[tuple[int, int]]) -> None:
        for _, *fields in self.tx.array("mailboxes", threads=encode(sorted({thread for thread, _ in places}))):
            self._box(*fields)
        for thread, seq, id in self.tx.array("mail_at", places=encode(places)):
            self.there[thread, seq] = id

    def _box(self, thread: int, mail: int, last_message: int) -> Mailbox:
        return self.boxes.setdefault(thread, Mailbox(thread, mail, last_message))

    def why_not(self, message: NewMessage) -> Bounce | None:
        """Why a message cannot arrive; None where it can, or has."""
        if self._sent(message) is not None:
            return None
        box = self.named.get(message.thread_id)
        if box is None:
            return Bounce.NO_THREAD
        return Bounce.FULL if box.mail >= limits.MAILBOX_MAX else None

    def send(self, message: NewMessage) -> SendOutcome:
        """What becomes of one message, given all before it."""
        if (why := self.why_not(message)) is not None:
            return NotSent(why)
        if known := self._sent(message):
            return known
        box = self.named[message.thread_id]
        seq = self._arrive(box, message.label)
        m = message
        self.new[box.thread, seq] = (m.id, box.thread, seq, m.sender, m.label, m.payload, self.tx.now)
        self.there[box.thread, seq] = m.id
        self.blobs += [(box.thread, blob.digest, blob.data) for blob in m.blobs]
        self.known[m.id] = Sent(box.thread, seq)
        if m.key is not None:
            self.keys[box.thread, m.key] = m.id, seq
            self.new_keys.append((box.thread, m.key, m.id, seq))
        return self.known[m.id]

    def _sent(self, message: NewMessage) -> Sent | None:
        """Where a message is that has arrived, by its number, or by its sender's own name for it."""
        if known := self.known.get(message.id):
            return known
        box = self.named.get(message.thread_id)
        if box is None or message.key is None or (box.thread, message.key) not in self.keys:
            return None
        first, seq = self.keys[box.thread, message.key]
        return Sent(box.thread, seq, None if first == message.id else first)

    def revive(self, thread: int, label: str) -> int:
        """The place of a dead letter at the end of its mailbox, be that full or not."""
        return self._arrive(self.boxes[thread], label)

    def _arrive(self, box: Mailbox, label: str) -> int:
        box.last_message += 1
        box.mail += 1
        box.changed = True
        self.sent.append((box.thread, label))
        return box.last_message

    def has(self, thread: int, seq: int) -> bool:
        """Whether the message at this place can be received."""
        return (thread, seq) in self.there

    def take(self, thread: int, seq: int) -> None:
        """Receive a message."""
        self.received.append(self._leave(thread, seq))

    def bury(self, change: BuryMessage) -> None:
        """Put a message among the dead letters; nothing where it is not there."""
        if self.has(change.thread, change.seq):
            self.buried.append((self._leave(change.thread, change.seq), change.reason))

    def _leave(self, thread: int, seq: int) -> int:
        box = self.boxes[thread]
        box.mail -= 1
        box.changed = True
        box.roomy = box.roomy or box.mail < limits.MAILBOX_MAX
        return self.there.pop((thread, seq))

    def write(self) -> None:
        """The rows of what has changed; who waits for it is woken."""
        tx = self.tx
        changed = [box for box in self.boxes.values() if box.changed]
        if not changed:
            return
        tx.write("put_blobs", self.blobs)
        tx.write("insert_messages", list(self.new.values()))
        tx.write("insert_message_keys", self.new_keys)
        if self.received:
            tx.run("receive_messages", ids=encode(self.received), now=tx.now)
        for id, reason in self.buried:
            tx.run("bury_message", id=id, reason=reason)
        tx.run("move_mailboxes", mailboxes=encode([(box.thread, box.mail, box.last_message) for box in changed]))
        if self.sent:
            threads = sorted({thread for thread, _ in self.sent})
            tx.run("forget_messages", threads=encode(threads), before=tx.now - limits.MESSAGE_MEMORY_US)

    def wake(self) -> None:
        """Send on who waits for what has come, or for room that there is again."""
        after_mail(self.tx, self.sent)
        after_room(self.tx, [box.thread for box in self.boxes.values() if box.roomy])


def send(tx: Transaction, messages: Sequence[NewMessage]) -> list[SendOutcome]:
    """Put messages into mailboxes."""
    mail = Mail(tx, messages)
    outcomes = [mail.send(each) for each in messages]
    mail.write()
    mail.wake()
    return outcomes


def revive(tx: Transaction, message: int) -> Message | None:
    """Put a dead letter back."""
    found = tx.row("dead_letter", id=message)
    if found is None:
        return None
    thread, label = found
    mail = Mail(tx, (), [(thread, 0)])
    tx.run("revive_message", id=message, seq=mail.revive(thread, label))
    mail.write()
    mail.wake()
    return tx.records("get_message", rows.MESSAGE, id=message)[0]


def mailbox(reader: Reader, thread: int, *, limit: int, after: int) -> list[Message]:
    return reader.records("mailbox", rows.MESSAGE, thread=thread, limit=page_size(limit), after=after)


def dead_letters(reader: Reader, thread: int | None, *, limit: int, after: int) -> list[Message]:
    if thread is None:
        return reader.records("all_dead_letters", rows.MESSAGE, limit=page_size(limit), after=after)
    return reader.records("dead_letters", rows.MESSAGE, thread=thread, limit=page_size(limit), after=after)
