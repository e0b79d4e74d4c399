"""From changes that have to do with waiting to the arguments of `commit_waits` (`functions/waits.sql`), beyond those of
`commit`.

The function takes a batch as a set: it opens waits, then closes them. So a batch that says otherwise is cut: a part
ends before a wait is opened that it has closed, before a message is taken that it has taken, and before what may bounce
files a record that it has filed. The parts are one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core import limits
from perdure.core.changes import (
    BeginSuperStep,
    BuryMessage,
    Change,
    CloseWait,
    EndRun,
    OpenWait,
    ParkRun,
    Place,
    SendMessage,
    record_of,
)
from perdure.store.postgres.batches import Arguments, columns

Use = tuple[str, int, int, str] | tuple[str, str, str]

_KINDS: Final = frozenset({OpenWait, CloseWait, SendMessage, BuryMessage, ParkRun})


def has_waits(changes: Sequence[Change]) -> bool:
    """Whether the batch has to do with waiting."""
    return any(
        type(change) in _KINDS or (isinstance(change, BeginSuperStep | EndRun) and change.waited) for change in changes
    )


def parts(changes: Sequence[Change]) -> list[list[Change]]:
    """The batch in parts that can each be taken as a set; nearly always one."""
    found: list[list[Change]] = [[]]
    over: set[Use] = set()
    for change in sorted(changes, key=lambda change: isinstance(change, ParkRun)):  # a parking comes last
        if not over.isdisjoint(_needs(change)):
            found.append([])
            over = set()
        over.update(_ends(change))
        found[-1].append(change)
    return found


def _needs(change: Change) -> list[Use]:
    """What must not be over in the same part, for the change to be taken with it."""
    match change:
        case OpenWait():
            return [("wait", change.run, change.super_step, change.key)]
        case CloseWait():
            return [use for use in _ends(change) if use[0] != "wait"]
        case SendMessage() | BuryMessage():
            return _ends(change)
        case _:
            return []


def _ends(change: Change) -> list[Use]:
    """What is over after the change: a wait, a message in its mailbox, a step that has no record."""
    ends: list[Use] = []
    if (record := record_of(change)) is not None:
        ends.append(("step", record.run, record.super_step, record.key))
    if isinstance(change, CloseWait):
        ends.append(("wait", change.run, change.super_step, change.key))
        if change.take is not None:
            ends.append(("message", change.thread, change.take, ""))
    if isinstance(change, BuryMessage):
        ends.append(("message", change.thread, change.seq, ""))
    if isinstance(change, SendMessage) and change.message.key is not None:
        ends.append(("sent", change.message.thread_id, change.message.key))
    return ends


def _place(change: OpenWait) -> Place:
    return change.run, change.super_step, change.key


def arguments(changes: Sequence[Change]) -> Arguments:
    """What `commit_waits` takes after the arguments of `commit`."""
    numbered = list(enumerate(changes))
    closings = [(at, each) for at, each in numbered if isinstance(each, CloseWait)]
    sends = [(at, each) for at, each in numbered if isinstance(each, SendMessage)]
    burials = [(at, each) for at, each in numbered if isinstance(each, BuryMessage)]
    over = [each for each in changes if isinstance(each, BeginSuperStep | EndRun) and each.waited]
    parkings = [each for each in changes if isinstance(each, ParkRun)]
    return [
        *_openings(changes),
        *columns(
            ((x.run, x.super_step, x.key, x.thread, x.record is not None, x.take, x.expired, at) for at, x in closings),
            8,
        ),
        *_mail(sends),
        *columns(((y.run, y.thread, y.seq, y.reason, at) for at, y in burials), 5),
        *columns(((each.run, each.super_step) for each in over), 2),
        [each.run for each in parkings],
        [each.run for each in parkings if not each.cancelled],
        limits.MAILBOX_MAX,
        limits.MESSAGE_MEMORY_US,
    ]


def more(changes: Sequence[Change]) -> Arguments:
    """What `commit_waits_more` takes after these: the senders' keys of messages. Empty where there is none."""
    keys = [each.message.key for each in changes if isinstance(each, SendMessage)]
    return [] if all(key is None for key in keys) else [keys]


def _openings(changes: Sequence[Change]) -> Arguments:
    return columns(map(_opening, opened(changes)), 16)


def opened(changes: Sequence[Change]) -> list[OpenWait]:
    """OpenWait: of several at one place the first counts, and none that comes after the end of its super-step."""
    openings: dict[Place, OpenWait] = {}
    begun: dict[int, int] = {}
    for change in changes:
        if isinstance(change, BeginSuperStep):
            begun[change.run] = change.super_step
        elif isinstance(change, OpenWait) and change.super_step >= begun.get(change.run, 0):
            openings.setdefault(_place(change), change)
    return list(openings.values())


def _opening(o: OpenWait) -> tuple[Any, ...]:
    labels = msgspec.json.encode(o.labels).decode() if o.labels else None
    place = (o.run, o.super_step, o.key, int(o.kind), o.thread, o.delay_us, o.due_at, o.target, labels)
    i = o.interrupt
    if i is None:
        return (*place, *[None] * 7)
    return (*place, i.id, i.name, i.payload, i.schema, i.digest, i.on_timeout, i.assignee)


def _mail(sends: Sequence[tuple[int, SendMessage]]) -> Arguments:
    blobs = [(number, blob) for number, (_, m) in enumerate(sends, 1) for blob in m.message.blobs]
    messages = (
        (
            m.run,
            m.super_step,
            m.key,
            m.message.id,
            m.message.thread_id,
            m.message.sender,
            m.message.label,
            m.message.payload,
            at,
        )
        for at, m in sends
    )
    return [*columns(messages, 9), *columns(((number, blob.digest, blob.data) for number, blob in blobs), 3)]
