"""Mail from outside: what is on disk when `send` returns, and who may not send."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from perdure import MailboxFull, NotFound, NotSerializable, UsageError
from perdure.core import limits
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import RunState, WaitKind, run_id
from perdure.core.requests import Bounce
from perdure.testing.conformance.harness import bury, close, send, wait
from tests.runtime.desk import Desk, at_a_desk


@dataclass
class Order:
    """A message with a type of its own."""

    item: str
    count: int = 1


def mailbox_of(messages: int) -> Any:
    """Lower the limit."""
    return mock.patch.object(limits, "MAILBOX_MAX", messages)


@at_a_desk
async def test_a_message_is_in_the_mailbox_when_send_returns(desk: Desk) -> None:
    await desk.bench.start()
    sent = await desk.app.send("thread", Order("tea"))
    (message,) = await desk.app.thread("thread").mailbox()
    assert (message.id, message.thread_id, message.sender, message.type) == (sent, "thread", None, "Order")
    assert (message.message, message.dead) == ({"item": "tea", "count": 1}, None)


@at_a_desk
async def test_a_message_with_a_key_arrives_once_on_its_thread(desk: Desk) -> None:
    await desk.bench.start("one")
    await desk.bench.start("two")

    sent = (("one", 1, "k"), ("one", 2, "k"), ("two", 3, "k"), ("one", 4, "other"), ("one", 5, None))
    ids = [await desk.app.send(thread, message, key=key) for thread, message, key in sent]

    assert ids[0] == ids[1] and len(set(ids)) == 4
    assert [each.message for each in await desk.app.thread("one").mailbox()] == [1, 4, 5]
    assert [each.message for each in await desk.app.thread("two").mailbox()] == [3]


@at_a_desk
async def test_a_key_stands_for_a_message_that_was_received_since(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin("one")
    first = await desk.app.send("one", 1, key="k")
    (message,) = await desk.bench.mailbox("one")
    await desk.bench.commit(worker, close(claimed, "receive", take=message.seq))

    assert await desk.app.send("one", 2, key="k") == first
    assert await desk.app.thread("one").mailbox() == []


@at_a_desk
async def test_messages_lie_in_the_order_in_which_they_were_sent(desk: Desk) -> None:
    await desk.bench.start()
    for number in range(5):
        await desk.app.send("thread", number)
    await asyncio.gather(*(desk.app.send("thread", number) for number in range(5, 50)))
    thread = desk.app.thread("thread")
    listed = await thread.mailbox(limit=20)
    listed += await thread.mailbox(limit=100, after=listed[-1])
    assert [message.message for message in listed] == list(range(50))
    assert [message.seq for message in listed] == sorted(message.seq for message in listed)


@at_a_desk
async def test_a_message_wakes_who_waits_for_its_type(desk: Desk) -> None:
    _, claimed = await desk.bench.parked("thread", wait(kind=WaitKind.MESSAGE, labels=("Order",)))
    await desk.app.send("thread", "hello")
    assert await desk.bench.state(claimed.run) is RunState.WAITING
    await desk.app.send("thread", Order("tea"))
    assert await desk.bench.state(claimed.run) is RunState.QUEUED


@at_a_desk
async def test_an_agent_is_named_as_the_sender(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    message = await desk.bench.message(sender=run_id(claimed.run), payload=b"\x01")
    await desk.bench.commit(worker, send(claimed, "send", message))
    assert [each.sender for each in await desk.app.thread("thread").mailbox()] == [run_id(claimed.run)]


@at_a_desk
async def test_a_large_message_lies_in_a_blob_of_the_receiver(desk: Desk) -> None:
    await desk.bench.start()
    large = "x" * (INLINE_BYTES_MAX + 1)
    await desk.app.send("thread", large)
    assert [message.message for message in await desk.app.thread("thread").mailbox()] == [large]


@at_a_desk
async def test_nobody_sends_to_a_thread_that_is_not_there(desk: Desk) -> None:
    with pytest.raises(NotFound, match="'nowhere'") as missing:
        await desk.app.send("nowhere", 1)
    assert missing.value.thread_id == "nowhere"


@at_a_desk
async def test_one_that_is_refused_does_not_hold_up_the_others(desk: Desk) -> None:
    await desk.bench.start()
    sends = (desk.app.send(name, number) for number, name in enumerate(("thread", "nowhere", "thread")))
    first, refused, last = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(refused, NotFound)
    assert [message.id for message in await desk.app.thread("thread").mailbox()] == [first, last]


@pytest.mark.parametrize("message", [object(), print, {"a": {1, 2}, "b": object()}, "\ud800", 2**70])
def test_what_cannot_be_recorded_is_not_sent(message: Any) -> None:
    @at_a_desk
    async def sending(desk: Desk) -> None:
        await desk.bench.start()
        with pytest.raises((NotSerializable, UsageError)):
            await desk.app.send("thread", message)
        assert await desk.app.thread("thread").mailbox() == []

    sending()


@pytest.mark.parametrize(
    "options", [{"on_full": "wait"}, {"timeout": -1}, {"on_full": "block", "timeout": "soon"}, {"key": ""}, {"key": 7}]
)
def test_nonsense_is_refused(options: dict[str, Any]) -> None:
    @at_a_desk
    async def sending(desk: Desk) -> None:
        await desk.bench.start()
        with pytest.raises(UsageError):
            await desk.app.send("thread", 1, **options)
        assert await desk.app.thread("thread").mailbox() == []

    sending()


# -- a full mailbox ---------------------------------------------------------------------------------------------------


@at_a_desk
async def test_a_full_mailbox_refuses(desk: Desk) -> None:
    await desk.bench.start()
    with mailbox_of(2):
        await desk.app.send("thread", 1)
        await desk.app.send("thread", 2)
        with pytest.raises(MailboxFull, match="'thread'") as full:
            await desk.app.send("thread", 3)
    assert full.value.thread_id == "thread"
    assert [message.message for message in await desk.app.thread("thread").mailbox()] == [1, 2]


@at_a_desk
async def test_a_sender_may_wait_for_room(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    with mailbox_of(1):
        await desk.app.send("thread", 1)
        refused = asyncio.Event()
        real = desk.bench.store.send

        async def told(messages: Any) -> Any:
            outcomes = await real(messages)
            if any(getattr(outcome, "why", None) is Bounce.FULL for outcome in outcomes):
                refused.set()
            return outcomes

        with mock.patch.object((await desk.app._client())._sends, "_write", told):
            blocked = asyncio.create_task(desk.app.send("thread", 2, on_full="block"))
            await refused.wait()
            (first,) = await desk.bench.mailbox()
            await desk.bench.commit(worker, close(claimed, "receive", b"\x01", take=first.seq))
            sent = await asyncio.wait_for(blocked, 20)
    assert [(message.id, message.message) for message in await desk.app.thread("thread").mailbox()] == [(sent, 2)]


@at_a_desk
async def test_a_sender_that_has_waited_long_enough_is_refused(desk: Desk) -> None:
    await desk.bench.start()
    with mailbox_of(1):
        await desk.app.send("thread", 1)
        with pytest.raises(MailboxFull):
            await desk.app.send("thread", 2, on_full="block", timeout=0.05)
    assert [message.message for message in await desk.app.thread("thread").mailbox()] == [1]


# -- dead letters -----------------------------------------------------------------------------------------------------


@at_a_desk
async def test_dead_letters_can_be_listed_and_replayed(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    await desk.bench.start("other")
    one, two = await desk.app.send("thread", 1), await desk.app.send("thread", 2)
    first, second = await desk.bench.mailbox()
    await desk.bench.commit(worker, bury(claimed, first.seq, "no such type"), bury(claimed, second.seq))

    dead = await desk.app.dead_letters()

    assert [(letter.id, letter.thread_id, letter.message) for letter in dead] == [
        (one, "thread", 1),
        (two, "thread", 2),
    ]
    assert dead[0].dead == "no such type"
    assert await desk.app.dead_letters("thread") == dead
    assert await desk.app.dead_letters("other") == []
    assert await desk.app.dead_letters(limit=1, after=one) == dead[1:]
    back = await desk.app.replay_dead_letter(one)
    assert (back.id, back.dead, back.message) == (one, None, 1)
    assert [message.id for message in await desk.app.thread("thread").mailbox()] == [one]
    assert [letter.id for letter in await desk.app.dead_letters()] == [two]


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda app: app.replay_dead_letter("m99999"), NotFound, "dead_letters"),
        (lambda app: app.replay_dead_letter("7"), UsageError, "m42"),
        (lambda app: app.dead_letters("nowhere"), NotFound, "nowhere"),
        (lambda app: app.dead_letters(after="7"), UsageError, "m42"),
        (lambda app: app.dead_letters(limit=0), UsageError, "limit"),
        (lambda app: app.thread("nowhere").mailbox(), NotFound, "threads list"),
    ],
)
def test_a_wrong_name_is_a_typed_error_with_its_remedy(call: Any, error: type[Exception], remedy: str) -> None:
    @at_a_desk
    async def nonsense(desk: Desk) -> None:
        with pytest.raises(error, match=remedy):
            await call(desk.app)

    nonsense()
