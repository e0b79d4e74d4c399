"""Mail from outside: messages into threads' mailboxes, what lies in them, and dead letters.

A message is on disk when `send` returns. It carries the name of its type, by which receivers pick theirs. Sends of one
process share a transaction; messages of one sender to one thread arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from perdure.client.connection import Client
from perdure.client.requests import page_limit
from perdure.core.durations import Duration, seconds
from perdure.core.labels import label_of, message_bytes
from perdure.core.records import Message, message_id, parse_id
from perdure.core.requests import Bounce, NewMessage, NotSent, SendOutcome
from perdure.core.shown import shown
from perdure.core.snapshot import spill
from perdure.errors import NotFound, UsageError
from perdure.runtime.awaited import thread_names
from perdure.runtime.info import moment, plain
from perdure.runtime.mail import full, no_thread
from perdure.runtime.payloads import load_payload
from perdure.runtime.starting import checked_id
from perdure.store.protocol import Store

OnFull = Literal["reject", "block"]

LOOK_S_FIRST: Final = 0.02
LOOK_S_MAX: Final = 1.0
"""How long a sender that waits for room waits between tries: nothing tells it, and a full mailbox holds plenty."""


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A message that waits to be received, or a dead letter."""

    id: str
    """Its name: `m42`."""
    thread_id: str
    seq: int
    """The order of arrival in its mailbox."""
    sender: str | None
    """The run that sent it; None if it came from outside."""
    type: str
    """The name of its type, by which receivers pick theirs."""
    message: Any
    """Plain data."""
    sent_at: datetime
    dead: str | None
    """Why it could not be received; None while it waits."""


async def send(
    client: Client, thread_id: str, message: Any, *, on_full: OnFull, timeout: Duration | None, key: str | None = None
) -> str:
    """Put a message into a mailbox; returns its id once it is on disk. One that was sent there before under this key is
    this one, be it received since or not."""
    name = checked_id("a thread id", thread_id)
    if on_full not in ("reject", "block"):
        raise UsageError(f'on_full is {shown(on_full)}; it must be "reject" or "block"')
    limit_s = None if timeout is None else seconds(timeout, what="a time-out")
    known = message_key(key)
    label = label_of(message)
    payload, blobs = spill(message_bytes(message))
    new = NewMessage(await client.ids.take(1), name, "", label, payload, blobs, known)
    return await sent(client, new, wait=on_full == "block", limit_s=limit_s)


def message_key(key: object) -> str | None:
    """The sender's own name for a message, checked; None where it has none."""
    return None if key is None else checked_id("a message's key", key)


async def sent(client: Client, message: NewMessage, *, wait: bool = False, limit_s: float | None = None) -> str:
    """The id of a message once it has arrived; of one that was sent before under its key, the id of that."""
    outcome = await client.send(message)
    if wait and _is_full(outcome):
        outcome = await _sent_when_there_is_room(client, message, limit_s)
    if isinstance(outcome, NotSent):
        name = message.thread_id
        raise no_thread(name) if outcome.why is Bounce.NO_THREAD else full(name)
    return message_id(message.id if outcome.message is None else outcome.message)


async def _sent_when_there_is_room(client: Client, message: NewMessage, limit_s: float | None) -> SendOutcome:
    outcome: SendOutcome = NotSent(Bounce.FULL)
    pause_s = LOOK_S_FIRST
    loop = asyncio.get_running_loop()
    give_up_at = None if limit_s is None else loop.time() + limit_s
    while _is_full(outcome):
        left_s = LOOK_S_MAX if give_up_at is None else give_up_at - loop.time()
        if left_s <= 0:
            return outcome
        await asyncio.sleep(min(pause_s * random.uniform(0.5, 1.0), left_s))
        pause_s = min(pause_s * 2, LOOK_S_MAX)
        outcome = await client.send(message)
    return outcome


def _is_full(outcome: SendOutcome) -> bool:
    return isinstance(outcome, NotSent) and outcome.why is Bounce.FULL


# -- reading --------------------------------------------------------------------------------------------------------


async def mailbox(client: Client, thread: int, thread_id: str, *, limit: int, after: int) -> list[MessageInfo]:
    """The messages that wait in a mailbox, in order."""
    rows = await client.store.mailbox(thread, limit=page_limit(limit), after=after)
    return await _infos(client.store, rows, {thread: thread_id})


async def dead_letters(client: Client, thread_id: str | None, *, limit: int, after: str | None) -> list[MessageInfo]:
    """A page of dead letters, by id."""
    last = 0 if after is None else message_number(after)
    page = page_limit(limit)
    thread = None
    if thread_id is not None:
        thread = await client.store.get_thread(checked_id("a thread id", thread_id))
        if thread is None:
            raise NotFound(f"no thread {thread_id!r} in {client.store.url}", thread_id=thread_id)
    rows = await client.store.dead_letters(None if thread is None else thread.id, limit=page, after=last)
    return await _infos(client.store, rows, {} if thread is None else {thread.id: thread.thread_id})


async def replay(client: Client, message: str) -> MessageInfo:
    """Put a dead letter back into its mailbox."""
    row = await client.store.revive(message_number(message))
    if row is None:
        raise NotFound(f"no dead letter {message} in {client.store.url}; app.dead_letters() lists them", id=message)
    return (await _infos(client.store, [row], {}))[0]


def message_number(name: object) -> int:
    """The number behind a message's id."""
    number = parse_id("m", name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(f"{shown(name)} is not a message's id: they look like m42")
    return number


async def _infos(store: Store, rows: Iterable[Message], names: dict[int, str]) -> list[MessageInfo]:
    rows = list(rows)
    known = names | await thread_names(store, {row.thread for row in rows}.difference(names))
    return [
        MessageInfo(
            message_id(row.id), known.get(row.thread, str(row.thread)), row.seq, row.sender or None, row.label,
            plain(await load_payload(store, row.thread, row.payload)), moment(row.sent_at), row.dead,
        )
        for row in rows
    ]  # fmt: skip
