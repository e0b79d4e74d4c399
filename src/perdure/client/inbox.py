"""The inbox: questions that agents have asked, over all agents and their children, and the answers to them.

A question is named by its id (`i42`), or by its thread while that has exactly one open. The first answer wins, by one
conditional write that wakes the run in the same transaction; the same answer again finds its own work done, another one
is told the winner. An answer is checked against the question's schema before anything is written, so that a wrong one
leaves the question as it was.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, assert_never

import msgspec

from perdure.client.connection import Client
from perdure.client.raising import BUDGET, check_raise
from perdure.client.requests import agent_name, page_limit, run_number
from perdure.core.answers import canonical_bytes, check_answer
from perdure.core.budgets import RAISE_OR_STOP
from perdure.core.records import Interrupt, InterruptState, interrupt_id, parse_id, run_id
from perdure.core.requests import Answered, InterruptFilter, NewAnswer, NotAnswered, QuestionOpen, StartOutcome
from perdure.core.shown import shown
from perdure.core.snapshot import spill
from perdure.core.states import TERMINAL
from perdure.errors import (
    AlreadyAnswered,
    Conflict,
    InterruptClosed,
    InvalidAnswer,
    NotFound,
    PerdureError,
    UsageError,
)
from perdure.runtime.agent import Agent
from perdure.runtime.info import maybe, moment, plain
from perdure.runtime.patience import patiently
from perdure.runtime.payloads import load_payload
from perdure.runtime.settings import check_name
from perdure.runtime.starting import checked_id
from perdure.store.protocol import Store

LISTED_MAX: Final = 10
"""Open questions of one thread that an error names."""

_head = reprlib.Repr()
_head.maxstring = _head.maxother = 60
_head.maxlevel, _head.maxdict, _head.maxlist = 2, 3, 3


@dataclass(frozen=True, slots=True)
class InterruptInfo:
    """A question, as it was when it was read."""

    id: str
    """Its name: `i42`."""
    run_id: str
    thread_id: str
    agent: str
    name: str
    state: InterruptState
    payload: Any
    """What was asked, as plain data."""
    schema: dict[str, Any] | None
    """The JSON schema of an answer; None where anything will do."""
    assignee: str | None
    digest: str
    """Names the payload: whoever approves it can say what he has seen."""
    on_timeout: str
    """What expiry does: `raise`, `cancel` or `default`."""
    created_at: datetime
    expires_at: datetime | None
    answer: Any
    """Plain data; None until it is answered (`state` tells that from an answer of None)."""
    answered_by: str | None
    answered_at: datetime | None
    tenant: str | None
    run_cancel: str | None = None
    """Why the cancellation of its run was requested, where it was and the run has not ended: it ends as cancelled,
    whatever the answer is."""


# -- reading --------------------------------------------------------------------------------------------------------


def interrupt_filter(
    *, state: str | None, agent: Agent[..., Any] | str | None, thread_id: str | None, run_id: str | None,
    assignee: str | None, tenant: str | None, limit: int, after: str | None,
) -> InterruptFilter:  # fmt: skip
    """Which questions to list; a name that nothing can have is refused."""
    return InterruptFilter(
        state=None if state is None else _state(state),
        agent=None if agent is None else agent_name(agent),
        thread_id=None if thread_id is None else checked_id("a thread id", thread_id),
        run=None if run_id is None else run_number(run_id),
        assignee=None if assignee is None else check_name("an assignee", assignee),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        limit=page_limit(limit),
        after=None if after is None else interrupt_number(after),
    )


async def listed(client: Client, where: InterruptFilter) -> list[InterruptInfo]:
    """A page of the inbox."""
    now_us = await client.store.now_us()
    rows = await client.store.interrupts(where)
    ending = await _to_be_cancelled(client.store, rows)
    return [await _info(client.store, row, now_us, ending) for row in rows]


async def question(client: Client, interrupt: str) -> InterruptInfo:
    """One question, whatever its state."""
    row = await _row(client, interrupt_number(interrupt))
    ending = await _to_be_cancelled(client.store, [row])
    return await _info(client.store, row, await client.store.now_us(), ending)


async def asked_by(store: Store, outcome: StartOutcome) -> str:
    """What the open question that a start met is about, shortened."""
    if not isinstance(outcome, QuestionOpen):
        return ""
    for row in await store.get_interrupts([outcome.interrupt]):
        return _head.repr(plain(await load_payload(store, row.thread, row.payload)))
    return ""


async def _asked(store: Store, row: Interrupt) -> str:
    """A question's name, and what it is about, shortened."""
    return f"{row.name}: {_head.repr(plain(await load_payload(store, row.thread, row.payload)))}"


def interrupt_number(name: object) -> int:
    """The number behind a question's id."""
    number = parse_id("i", name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(
            f"{shown(name)} is not a question's id: they look like i42 (`perdure interrupts list` shows them)"
        )
    return number


# -- answering ------------------------------------------------------------------------------------------------------


async def resume(client: Client, what: str, answer: Any, *, by: str | None, digest: str | None) -> InterruptInfo:
    """Answer a question; returns it as it is then."""
    who = None if by is None else check_name("by", by)
    row = await _found(client, what)
    if digest is not None and digest != row.digest:
        raise Conflict(
            f"{_named(row)} is not about what you have seen: its payload has the digest {row.digest}, not {digest}; "
            f"look at it again (`perdure interrupts show {interrupt_id(row.id)}`)",
            interrupt_id=interrupt_id(row.id), digest=row.digest,
        )  # fmt: skip
    given, blobs = spill(canonical_bytes(answer))
    if row.state is InterruptState.OPEN:
        await _check(client.store, row, answer)
        new = NewAnswer(row.id, given, who, blobs)
        outcome = await patiently("answer", lambda: client.store.answer(new))
    else:  # for good, or until it is asked again: the answer would not be to that
        repeated = row.state is InterruptState.ANSWERED and row.answer == given
        outcome = Answered(row, False) if repeated else NotAnswered(row)
    match outcome:
        case None:
            raise _no_interrupt(interrupt_id(row.id), client)
        case Answered(winner):
            return await _info(client.store, winner, 0, await _to_be_cancelled(client.store, [winner]))
        case NotAnswered(other):
            raise await _lost(client.store, other)
        case _:
            assert_never(outcome)


async def _check(store: Store, row: Interrupt, answer: Any) -> None:
    try:
        check_answer(row.schema, answer)
        if row.name == BUDGET and row.schema is not None and msgspec.json.decode(row.schema) == RAISE_OR_STOP:
            check_raise(plain(await load_payload(store, row.thread, row.payload)), answer)
    except InvalidAnswer as error:
        raise InvalidAnswer(f"{_named(row)}: {error}", **{**error.ids, "interrupt_id": interrupt_id(row.id)}) from None


async def _lost(store: Store, row: Interrupt) -> PerdureError:
    """Why an answer did not win."""
    ids: dict[str, Any] = {"interrupt_id": interrupt_id(row.id), "run_id": run_id(row.run), "thread_id": row.thread_id}
    if row.state is not InterruptState.ANSWERED:
        why = "has expired" if row.state is InterruptState.EXPIRED else "was withdrawn: nobody waits for it any more"
        return InterruptClosed(f"{_named(row)} {why}, and takes no answer", state=row.state, **ids)
    info = await _info(store, row, 0)
    who = f" by {info.answered_by}" if info.answered_by else ""
    answered_at = None if info.answered_at is None else info.answered_at.isoformat(" ", "seconds")
    return AlreadyAnswered(
        f"{_named(row)} was answered{who} at {answered_at}: {_head.repr(info.answer)}; that answer stands",
        answer=info.answer, by=info.answered_by, at=info.answered_at, **ids,
    )  # fmt: skip


async def _found(client: Client, what: object) -> Interrupt:
    """The question of that id, or the only open one of that thread."""
    number = parse_id("i", what) if isinstance(what, str) else None
    if number is not None:
        for row in await client.store.get_interrupts([number]):
            return row
    thread_id = checked_id("a question's id or a thread id", what)
    rows = await client.store.interrupts(InterruptFilter(thread_id=thread_id, limit=LISTED_MAX + 1))
    if len(rows) == 1:
        return rows[0]
    if not rows and await client.store.get_thread(thread_id) is None:
        raise _no_interrupt(thread_id, client)
    if not rows:
        raise Conflict(
            f"thread {thread_id!r} has no open question: it may have been answered, or a run that this one has started "
            "may have asked it (`perdure interrupts list`)",
            thread_id=thread_id,
        )
    names = [interrupt_id(row.id) for row in rows]
    some = ", ".join([f"{interrupt_id(row.id)} ({await _asked(client.store, row)})" for row in rows[:LISTED_MAX]])
    more = " and more" if len(rows) > LISTED_MAX else ""
    raise Conflict(
        f"thread {thread_id!r} has several open questions; answer one by its id: {some}{more}", thread_id=thread_id,
        interrupt_ids=tuple(names),
    )  # fmt: skip


async def _row(client: Client, number: int) -> Interrupt:
    for row in await client.store.get_interrupts([number]):
        return row
    raise _no_interrupt(interrupt_id(number), client)


def _no_interrupt(name: str, client: Client) -> NotFound:
    what = f"question {name}" if parse_id("i", name) is not None else f"question or thread {name!r}"
    return NotFound(f"no {what} in {client.store.url}; `perdure interrupts list` shows those there are", id=name)


# -- views ----------------------------------------------------------------------------------------------------------


async def _to_be_cancelled(store: Store, rows: Sequence[Interrupt]) -> dict[int, str]:
    """By run, why its cancellation was requested, of those that have not ended. A run may ask while it cleans up, so
    that its questions still take answers."""
    numbers = sorted({row.run for row in rows})
    runs = await store.get_runs(numbers) if numbers else []
    return {run.id: run.cancel for run in runs if run.cancel is not None and run.state not in TERMINAL}


async def _info(store: Store, row: Interrupt, now_us: int, ending: Mapping[int, str] | None = None) -> InterruptInfo:
    """A view of a question; at `now_us` one that is open may be over its time."""
    payload = await load_payload(store, row.thread, row.payload)
    answer = None if row.answer is None else plain(await load_payload(store, row.thread, row.answer))
    expired = row.state is InterruptState.OPEN and row.expires_at is not None and row.expires_at <= now_us
    return InterruptInfo(
        id=interrupt_id(row.id), run_id=run_id(row.run), thread_id=row.thread_id, agent=row.agent, name=row.name,
        state=InterruptState.EXPIRED if expired else row.state, payload=plain(payload),
        schema=None if row.schema is None else msgspec.json.decode(row.schema), assignee=row.assignee,
        digest=row.digest, on_timeout=row.on_timeout, created_at=moment(row.created_at),
        expires_at=maybe(row.expires_at), answer=answer, answered_by=row.answered_by,
        answered_at=maybe(row.answered_at), tenant=row.tenant,
        run_cancel=None if ending is None else ending.get(row.run),
    )  # fmt: skip


def _named(row: Interrupt) -> str:
    return f"question {interrupt_id(row.id)} of run {run_id(row.run)} ({row.agent}, thread {row.thread_id!r})"


def _state(text: str) -> InterruptState:
    if not isinstance(text, str) or text not in tuple(InterruptState):
        raise UsageError(f"{shown(text)} is not a question's state; they are: {', '.join(InterruptState)}")
    return InterruptState(text)
