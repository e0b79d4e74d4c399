"""What can end a wait other than its time, each as a wait to open and the deed that ends it.

A waker is given a claimed run and prepares what is needed around it, on threads and with agents of its own; the deed
is done through whichever store it is given. While wakers are used, mailboxes are to hold `MAILBOX_MAX` messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from perdure.core.changes import Change, OpenWait
from perdure.core.records import Claimed, IfBusy, WaitKind
from perdure.store.protocol import Store
from perdure.testing.conformance.harness import (
    Bench,
    answer,
    bury,
    cancelled,
    close,
    end,
    fail,
    hold,
    send,
    wait,
)

MAILBOX_MAX: Final = 1

Deed = Callable[[Store], Awaitable[object]]
Waker = Callable[[Bench, Claimed], Awaitable[tuple[OpenWait, Deed]]]


async def an_answer(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    question = await bench.question()
    opening = wait(claimed, "w", WaitKind.ANSWER, interrupt=question, delay_s=600)
    return opening, lambda store: store.answer(answer(question.id))


async def a_message(bench: Bench, claimed: Claimed, *, labels: tuple[str, ...] = ()) -> tuple[OpenWait, Deed]:
    message = await bench.message(claimed.thread_id)
    return wait(claimed, "w", WaitKind.MESSAGE, labels=labels), lambda store: store.send([message])


async def a_message_from_a_run(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    worker, sender = await _other(bench, claimed)
    message = await bench.message(claimed.thread_id)
    return wait(claimed, "w", WaitKind.MESSAGE), _committing(worker, send(sender, "s", message))


async def a_revived_message(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    message = await bench.message(claimed.thread_id)
    await bench.store.send([message])
    (letter,) = await bench.mailbox(claimed.thread_id)
    worker = (await bench.run(claimed.run)).worker
    assert worker is not None
    await bench.commit(worker, bury(claimed, letter.seq))
    return wait(claimed, "w", WaitKind.MESSAGE, labels=("note",)), lambda store: store.revive(message.id)


async def an_ending(bench: Bench, claimed: Claimed, *, ending: Callable[[Claimed], Change]) -> tuple[OpenWait, Deed]:
    worker, other = await _other(bench, claimed)
    return wait(claimed, "w", WaitKind.RUN, target=other.run), _committing(worker, ending(other))


async def a_poisoning(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    worker, other = await _other(bench, claimed)
    opening = wait(claimed, "w", WaitKind.RUN, target=other.run)
    return opening, lambda store: store.take_over([worker], recoveries_max=1)


async def a_cancellation_at_once(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    other = await bench.start(_name(claimed), agent=_name(claimed))
    opening = wait(claimed, "w", WaitKind.RUN, target=other)
    return opening, lambda store: store.cancel(other, "enough", b"cancelled")


async def a_displacement(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    other = await bench.start(_name(claimed), agent=_name(claimed))
    start = await bench.ask(_name(claimed), agent=_name(claimed), if_busy=IfBusy.INTERRUPT, displaced=b"displaced")
    return wait(claimed, "w", WaitKind.RUN, target=other), lambda store: store.start([start])


async def a_receipt(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    worker, other = await _other(bench, claimed)
    seq = await bench.send(other.thread_id)
    opening = wait(claimed, "w", WaitKind.ROOM, target=other.thread)
    return opening, _committing(worker, close(other, "m", take=seq))


async def a_burial(bench: Bench, claimed: Claimed) -> tuple[OpenWait, Deed]:
    worker, other = await _other(bench, claimed)
    seq = await bench.send(other.thread_id)
    return wait(claimed, "w", WaitKind.ROOM, target=other.thread), _committing(worker, bury(other, seq))


WAKERS: Final[dict[str, Waker]] = {
    "an answer": an_answer,
    "a message": a_message,
    "a message with a label": partial(a_message, labels=("other", "note")),
    "a message from a run": a_message_from_a_run,
    "a revived message": a_revived_message,
    "a completion": partial(an_ending, ending=end),
    "a failure": partial(an_ending, ending=fail),
    "a cancelled run": partial(an_ending, ending=cancelled),
    "a hold": partial(an_ending, ending=hold),
    "a poisoning": a_poisoning,
    "a cancellation at once": a_cancellation_at_once,
    "a displacement": a_displacement,
    "a receipt": a_receipt,
    "a burial": a_burial,
}


def _name(claimed: Claimed) -> str:
    return f"other than {claimed.thread_id}"


async def _other(bench: Bench, claimed: Claimed) -> tuple[int, Claimed]:
    return await bench.begin(_name(claimed), agent=_name(claimed))


def _committing(worker: int, *changes: Change) -> Deed:
    return lambda store: store.commit(worker, changes)
