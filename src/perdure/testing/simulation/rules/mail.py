"""Messages: each arrives once, at the end of its mailbox, and leaves it once: received, or as a dead letter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perdure.core import limits
from perdure.core.changes import BuryMessage, CloseWait, SendMessage
from perdure.core.records import Message
from perdure.core.requests import Bounce, NewMessage, NotSent, SendOutcome, Sent
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Look, Write

Box = Mapping[int, Message]


def of_mail(write: Write, annals: Annals) -> Iterator[str]:
    """The mailboxes that differ; what has arrived and what was received goes into the annals."""
    for thread in sorted(write.now.mail.keys() | write.before.mail.keys()):
        before, now = write.before.mail.get(thread, {}), write.now.mail.get(thread, {})
        if before is not now:
            yield from _of_arrivals(write, annals, before, now)
            yield from _of_leaving(write, annals, before, now)
    yield from _of_brief_stays(write, annals)


def _messages(write: Write) -> list[NewMessage]:
    """What this write puts into mailboxes."""
    if write.verb == "send":
        return list(write.args[0])
    return [each.message for each in write.changes if isinstance(each, SendMessage)]


def _of_arrivals(write: Write, annals: Annals, before: Box, now: Box) -> Iterator[str]:
    if not now.keys() - before.keys():
        return
    thread = next(iter(now.values())).thread
    last = max((each.seq for each in annals.sent.values() if each.thread == thread), default=0)
    asked = {message.id: message for message in _messages(write)}
    for seq in sorted(now.keys() - before.keys()):
        message = now[seq]
        name = f"message m{message.id}"
        if seq <= last:
            yield f"{name} came as number {seq} after number {last}"
        last = max(last, seq)
        if write.verb == "revive":
            if message.id != write.args[0] or message.id not in write.before.dead or message.dead is not None:
                yield f"{name} was revived, and was not dead"
            annals.revived.add(message.id)
        elif message.id in annals.sent:
            yield f"{name} came again by {write.verb}"
        elif message.id not in asked or message.payload != asked[message.id].payload:
            yield f"{name} came by {write.verb}, and nobody has sent it"
        annals.sent[message.id] = message


def _of_leaving(write: Write, annals: Annals, before: Box, now: Box) -> Iterator[str]:
    taken = {(each.thread, each.take): each for each in write.changes if isinstance(each, CloseWait)}
    buried = {(each.thread, each.seq) for each in write.changes if isinstance(each, BuryMessage)}
    for seq in sorted(before.keys() - now.keys()):
        message = before[seq]
        at = message.thread, seq
        if at in buried:
            if message.id not in write.now.dead:
                yield f"message m{message.id} was buried, and is no dead letter"
        elif at not in taken:
            yield f"message m{message.id} has left its mailbox by {write.verb}, and nobody has received it"
        else:
            yield from _received(annals, message.id, taken[at])


def _of_brief_stays(write: Write, annals: Annals) -> Iterator[str]:
    """What came and was received in one commit."""
    here = {each.id for box in write.now.mail.values() for each in box.values()}
    for message in _messages(write):
        known = message.id in annals.sent
        arrived = _has_arrived(write, message)
        if arrived and not known and message.id not in here:
            yield f"message m{message.id} was sent by {write.verb}, and is nowhere"


def _has_arrived(write: Write, message: NewMessage) -> bool:
    """Whether the sender is told so."""
    if not write.done:
        return False
    if write.verb == "send":
        outcomes = zip(write.args[0], write.answer, strict=True)
        return any(each.id == message.id and isinstance(outcome, Sent) for each, outcome in outcomes)
    for change in write.changes:
        if isinstance(change, SendMessage) and change.message.id == message.id:
            at = change.super_step, change.key
            row = write.now.logs.get(change.run, {}).get(at)
            new = at not in write.before.logs.get(change.run, {})
            return row is not None and new and row.fence == change.fence and not row.failed
    return False


def _received(annals: Annals, message: int, change: CloseWait) -> Iterator[str]:
    by = f"r{change.run} in {change.super_step} as {change.key!r}"
    if message in annals.received:
        yield f"message m{message} was received by {annals.received[message]}, and now by {by}"
    annals.received[message] = by


def of_send(write: Write, annals: Annals) -> Iterator[str]:
    """Every message was answered as it had to be. `annals` are those of before."""
    if write.verb != "send" or not write.done:
        return
    room = Room(write.before)
    for message, outcome in zip(write.args[0], write.answer, strict=True):
        expected = room.take(message, annals)
        if outcome != expected:
            yield f"message m{message.id} to {message.thread_id}: {outcome}, not {expected}"


class Room:
    """Mailboxes while a group of messages arrives."""

    def __init__(self, before: Look) -> None:
        self._before = before
        self._came: dict[int, int] = {}

    def take(self, message: NewMessage, annals: Annals) -> SendOutcome:
        """What the answer must be."""
        thread = self._before.thread_named(message.thread_id)
        if thread is None:
            return NotSent(Bounce.NO_THREAD)
        if message.id in annals.sent:
            known = annals.sent[message.id]
            return Sent(known.thread, known.seq)
        came = self._came.get(thread.id, 0)
        if len(self._before.mail.get(thread.id, {})) + came >= limits.MAILBOX_MAX:
            return NotSent(Bounce.FULL)
        self._came[thread.id] = came + 1
        last = max((each.seq for each in annals.sent.values() if each.thread == thread.id), default=0)
        return Sent(thread.id, last + came + 1)
