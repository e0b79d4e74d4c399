"""Starts, checked and made into values: of an app's clients, and of agents that start others.

Bad input raises here, and nothing is written. What the store says to a valid start is a `StartOutcome`; `started` turns
one into the run or into the error that it is.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never

from perdure.core.budgets import Budget, Limits, NewBudget, limits_of
from perdure.core.deliveries import Billing
from perdure.core.digests import canonical, digest
from perdure.core.durations import Duration, microseconds
from perdure.core.errors import printable
from perdure.core.failures import cancellation
from perdure.core.limits import ID_CHARS_MAX, PRIORITY_MAX, TAGS_MAX
from perdure.core.records import IfBusy, budget_name, interrupt_id, run_id
from perdure.core.requests import (
    KeyTaken,
    OtherAgent,
    Parent,
    ParentGone,
    QuestionOpen,
    Started,
    StartOutcome,
    StartRun,
    ThreadHeld,
)
from perdure.core.shown import shown
from perdure.core.snapshot import spill
from perdure.core.times import due_us, earliest
from perdure.errors import Conflict, StartMismatch, ThreadBusy, UnknownAgent, UsageError
from perdure.runtime.callables import name_of
from perdure.runtime.ids import IdSource
from perdure.runtime.settings import check_name
from perdure.runtime.step import Step

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent

REASON_CHARS_MAX: Final = 1_000
"""Of why a run is cancelled."""

CHILD_KEY: Final = "\x01"
"""How the keys begin by which an agent's own starts are known again: nobody else's do."""

CHOICES: Final = tuple(mode for mode in IfBusy if mode is not IfBusy.UNLESS_ASKED)
"""What `if_busy` may say."""

DISPLACING: Final = frozenset({IfBusy.INTERRUPT, IfBusy.ROLLBACK})


async def start_request(
    agent: Agent[..., Any], ids: IdSource, args: tuple[Any, ...], kwargs: dict[str, Any], *,
    thread_id: str | None = None, key: str | None = None, if_busy: str | None = None, queue: str | None = None,
    priority: int = 0, delay: float | str | timedelta = 0, deadline: float | str | timedelta | datetime | None = None,
    tenant: str | None = None, tags: Iterable[str] = (), parent: Parent | None = None, deadline_at: int | None = None,
    budget: Budget | None = None, billing: str | None = None,
) -> StartRun:  # fmt: skip
    """A start, checked. `deadline` is what a user gives, `deadline_at` a bound beside it, on the store's clock. With a
    `parent` the key may be `CHILD_KEY`, the parent's id, a slash and a place in its code."""
    bound = agent.signature.bind(args, kwargs)
    payload, blobs = spill(agent.signature.bind_encode(args, kwargs))
    thread_id = None if thread_id is None else checked_id("a thread id", thread_id)
    key = None if key is None else _start_key(key, parent)
    tenant = None if tenant is None else check_name("a tenant", tenant)
    mode = _if_busy(if_busy)
    where = agent.settings.queue if queue is None else check_name("a queue's name", queue)
    rank = _priority(priority)
    delay_us = microseconds(delay)
    deadline_us, limit = _deadline(deadline)
    labels = checked_tags(tags)
    limits = agent.settings.budget if budget is None else checked_budget(budget)
    first, own = await new_run(ids, limits)
    return StartRun(
        id=first, thread=first + 1, thread_id=thread_id or run_id(first), agent=agent.name, queue=where, priority=rank,
        delay_us=delay_us, key=key, digest=digest(canonical((agent.name, bound.args, bound.kwargs))), payload=payload,
        if_busy=mode, tenant=tenant, tags=labels, blobs=blobs, deadline_us=deadline_us,
        deadline_at=earliest(limit, deadline_at), parent=parent,
        displaced=cancellation(in_its_place(first)) if mode in DISPLACING else b"",
        budget=own, billing=billing_to(billing),
    )  # fmt: skip


async def new_run(ids: IdSource, limits: Limits | None) -> tuple[int, NewBudget | None]:
    """The id of a new run, before that of its thread, and the run's own budget if it has limits."""
    if limits is None:
        return await ids.take(2), None
    budget, first = await ids.take(1), await ids.take(2)
    return first, NewBudget(budget, budget_name(first), limits)


def billing_to(sink: str | None) -> Billing | None:
    """That the run's bill goes to this sink, under a key that no other has."""
    return None if sink is None else Billing(sink, f"bill-{random.getrandbits(128):032x}")


def checked_budget(budget: object) -> Limits:
    """A budget's limits."""
    if not isinstance(budget, Budget):
        raise UsageError(
            f"budget is {shown(budget)}; give a perdure.Budget(usd=..., tokens=..., steps=..., seconds=...)"
        )
    return limits_of(budget)


def started(outcome: StartOutcome, request: StartRun, *, asked: str = "") -> Started:
    """The started run, or the conflict as the error it is; `asked` says what an open question is about, where that is
    known."""
    match outcome:
        case Started():
            return outcome
        case KeyTaken(run):
            raise StartMismatch(
                f"key {request.key!r} started {run_id(run)} with another agent or other arguments; use another key for "
                "other work, or start it with the same arguments to get that run",
                key=request.key, run_id=run_id(run),
            )  # fmt: skip
        case ThreadHeld(run, depth):
            raise ThreadBusy(
                f"thread {request.thread_id!r} has {depth} unfinished run(s), {run_id(run)} the first; wait for them, "
                f'or start with if_busy="enqueue" or "join"',
                thread_id=request.thread_id, run_id=run_id(run), depth=depth,
            )  # fmt: skip
        case QuestionOpen(run, interrupt):
            raise _question_open(request, run, interrupt_id(interrupt), asked)
        case OtherAgent(agent):
            raise StartMismatch(
                f"thread {request.thread_id!r} belongs to agent {agent!r}, not to {request.agent!r}; use another "
                "thread id",
                thread_id=request.thread_id, agent=agent,
            )  # fmt: skip
        case ParentGone(run, cancelled):
            why = "was cancelled" if cancelled else "is not this worker's any more"
            raise Conflict(f"run {run_id(run)} {why}, so it starts no other", run_id=run_id(run))
        case _:
            assert_never(outcome)


def _question_open(request: StartRun, run: int, question: str, asked: str) -> ThreadBusy:
    about = f" ({asked})" if asked else ""
    return ThreadBusy(
        f"thread {request.thread_id!r} waits for an answer: run {run_id(run)} has asked {question}{about}. Answer it "
        f'(app.resume("{question}", ...), `perdure resume {question}`), or say what becomes of it: if_busy="enqueue" '
        'starts this after it, "interrupt" and "rollback" cancel what asked, "join" gives that run, "reject" refuses',
        thread_id=request.thread_id, run_id=run_id(run), interrupt_id=question,
    )  # fmt: skip


def in_its_place(run: int) -> str:
    """Why a run was cancelled by a start with `if_busy` interrupt or rollback."""
    return f"{run_id(run)} was started in its place"


def checked_id(what: str, text: object) -> str:
    """A thread id or a start key."""
    return check_name(what, text, ID_CHARS_MAX)


def _start_key(text: object, parent: Parent | None) -> str:
    """A start key: a user's, or one that stands for a place in the parent's code, which may be long."""
    if parent is not None and isinstance(text, str) and text.startswith(f"{CHILD_KEY}{run_id(parent.run)}/"):
        return text if len(text) <= ID_CHARS_MAX else text[: ID_CHARS_MAX // 2] + digest(text.encode()).hex()
    key = checked_id("a start key", text)
    if key.startswith(CHILD_KEY):
        raise UsageError(
            f"a start key must not begin with {CHILD_KEY!r}, as {key!r} does: such keys are an agent's own"
        )
    return key


def registered(
    agent: object, agents: Mapping[str, Agent[..., Any]], where: str, remedy: str
) -> Agent[..., Any]:  # fmt: skip
    """The agent that is meant, by itself or by name; `UnknownAgent`, with the remedy, where there is none."""
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if inspect.iscoroutine(agent):
        agent.close()
        called = "agent" if agent.__name__ == "__call__" else agent.__name__
        raise UnknownAgent(
            f"{called}(...) was called, and what that returns is no agent; give the agent itself, and then its "
            f"arguments: ({called}, ...)",
            agent=called,
        )
    if isinstance(agent, Step):
        step = name_of(agent.fn)
        raise UnknownAgent(f"{step} is a step, not an agent: call it directly, `await {step}(...)`", agent=step)
    if not isinstance(name, str) or name not in agents:
        known = ", ".join(sorted(agents)) or "none"
        given = shown(agent if name is None else name)
        raise UnknownAgent(f"no agent {given} {where}; registered are: {known}. {remedy}", agent=name)
    return agents[name]


def checked_reason(reason: object) -> str:
    """Why a run is cancelled, in a few words."""
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"reason is {shown(reason)}; say in a few words why the run is cancelled, or leave it out")
    return printable(reason, REASON_CHARS_MAX)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags: a few names, sorted and unique."""
    if isinstance(tags, str):
        raise UsageError(f'tags is the string {shown(tags)}; give a list, such as ["nightly"]')
    if not isinstance(tags, Iterable):
        raise UsageError(f'tags is {shown(tags)}; give a list of names, such as ["nightly"]')
    unique = tuple(sorted({check_name("a tag", tag) for tag in tags}))
    if len(unique) > TAGS_MAX:
        raise UsageError(f"{len(unique)} tags are given; at most {TAGS_MAX} are allowed")
    return unique


def _if_busy(text: str | None) -> IfBusy:
    if text is None:
        return IfBusy.UNLESS_ASKED
    if not isinstance(text, str) or text not in CHOICES:
        raise UsageError(f"if_busy is {shown(text)}; it must be one of: {', '.join(CHOICES)}")
    return IfBusy(text)


def _deadline(deadline: Duration | datetime | None) -> tuple[int | None, int | None]:
    """A deadline in microseconds from now, or as a time."""
    if deadline is None:
        return None, None
    if isinstance(deadline, datetime):
        return None, due_us(deadline)
    return microseconds(deadline, what="a deadline"), None


def _priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise UsageError(
            f"priority is {shown(priority)}; it must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    return priority
