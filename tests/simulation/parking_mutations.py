"""The runtime, broken where runs wait, are parked, woken and interrupted."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from perdure.client import forking
from perdure.runtime import children
from perdure.runtime.known import Known
from perdure.runtime.mailbox import Mailbox
from perdure.runtime.parking import Parking
from perdure.runtime.recording import Call
from perdure.runtime.superstep import SuperStep
from perdure.runtime.turns import Turns
from perdure.runtime.waiting import Waiting
from perdure.runtime.waker import Waker
from tests.simulation.breaking import Mutation, replaced, together, wrapped


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What is called does nothing."""


async def _nothing_async(*args: Any, **kwargs: Any) -> None:
    """What is called does nothing."""


def _by_the_workers_clock(original: Any, waiting: Any, wait: Any) -> None:
    due = wait.due_at is not None and wait.due_at <= waiting._at.host.clock.wall_us()
    original(waiting, msgspec.structs.replace(wait, due=wait.due or due, ready=wait.ready or due))


async def _fails(*args: Any) -> None:
    raise RuntimeError("it always fails")


def _withdrawn_whenever_cancelled(waiting: Any, key: str) -> None:
    if key in waiting._rows:
        waiting._at.host.committer.submit(waiting.close(key))


def _parks_whatever_runs(parking: Any) -> None:
    step = parking._at
    if step.ending is None and not parking.under_way and step.waiting.futures and not step.waiting.awake:
        parking.begin()


async def _here(waiting: Any) -> bool:
    return True


def _at_once(gate: Any, deliver: Any) -> None:
    deliver()


def _youngest_first(original: Any, mailbox: Any, labels: Any) -> Any:
    mailbox._unread = dict(sorted(mailbox._unread.items(), reverse=True))
    return original(mailbox, labels)


async def _without_a_place(original: Any, *args: Any, **kwargs: Any) -> Any:
    return await original(*args, **{**kwargs, "key": None})


async def _without_its_parents_time(original: Any, *args: Any, **kwargs: Any) -> Any:
    return await original(*args, **{**kwargs, "deadline_at": None})


async def _one_record_more(original: Any, store: Any, run: Any, number: int, key: str | None) -> Any:
    rows = await original(store, run, number, key)
    if key is None:
        return rows
    log = await store.checkpoints(run.id, super_step=number)
    return rows + [row for row in log if row.key == key]


def _every_fifth(otherwise: Any) -> Any:
    """An answer that another one stands for, every fifth time."""
    count = itertools.count(1)

    def result(original: Any, call: Any, payload: bytes) -> Any:
        wrong = call.key.rpartition("/")[2].startswith("interrupt") and next(count) % 5 == 0
        return original(call, otherwise if wrong else payload)

    return result


PARKING = (
    Mutation(
        "A time has come by the worker's clock",
        "its time has come; it has not",
        wrapped(Waiting, "feed", _by_the_workers_clock),
    ),
    Mutation(
        "A branch that is unwound withdraws its wait",
        "nobody has cancelled",
        replaced(Waiting, "withdraw", _withdrawn_whenever_cancelled),
    ),
    Mutation(
        "A run is parked while a body runs",
        "was parked while",
        together(replaced(Parking, "at_rest", _parks_whatever_runs), replaced(Known, "keeps", lambda *args: None)),
    ),
    Mutation("A run that only waits is not parked", "is not parked", replaced(Parking, "at_rest", _nothing)),
    Mutation("A worker fails whenever it looks, and goes on", "failed and went on", replaced(Waker, "_look", _fails)),
    Mutation(
        "A worker does not look for what has come", "nobody sees|180 s after", replaced(Waker, "_look", _nothing_async)
    ),
    Mutation(
        "An interruption does not wait for the replay",
        "diverged|returned|undone",
        replaced(Turns, "deliver", _at_once),
    ),
    Mutation(
        "An interruption comes between a record and its return",
        "diverged|returned|undone",
        replaced(SuperStep, "kept", SuperStep.durable),
    ),
    Mutation(
        "What has no record does not wait for an interruption",
        "about to be interrupted",
        replaced(Turns, "begin", _nothing_async),
    ),
    Mutation(
        "A parking whose answer was lost is taken for one that was refused",
        "is on disk; it is not",
        replaced(Waiting, "is_here", _here),
    ),
    Mutation("The youngest message is received first", "which came first", wrapped(Mailbox, "next", _youngest_first)),
    Mutation(
        "A child is started at no place",
        "has not recorded its child|twice",
        wrapped(children, "start_request", _without_a_place),
    ),
    Mutation(
        "A child has more time than its parent",
        "later than its parent",
        wrapped(children, "start_request", _without_its_parents_time),
    ),
    Mutation("A fork runs on from a step too late", "has reused", wrapped(forking, "_records", _one_record_more)),
    Mutation(
        "The record of an answer is another one", "is not the answer", wrapped(Call, "result", _every_fifth(b"\xa2no"))
    ),
)
