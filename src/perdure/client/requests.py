"""What users ask for, checked and made into values: every start is valid before it reaches the store."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from perdure.core.changes import KeyTaken, OtherAgent, RunFilter, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.digests import canonical, digest
from perdure.core.durations import seconds
from perdure.core.limits import ID_CHARS_MAX, LIST_ROWS_MAX, NAME_CHARS_MAX, PRIORITY_MAX, TAGS_MAX
from perdure.core.records import IfBusy, RunState, parse_run_id, run_id
from perdure.core.snapshot import spill
from perdure.errors import NotFound, StartMismatch, ThreadBusy, UsageError
from perdure.runtime.settings import check_name

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent


class IdSource(Protocol):
    """Where fresh numbers come from."""

    async def take(self, count: int) -> int: ...


async def start_request(
    agent: Agent[..., Any], ids: IdSource, args: tuple[Any, ...], kwargs: dict[str, Any], *, thread_id: str | None,
    key: str | None, if_busy: str, queue: str | None, priority: int, delay: float | str | timedelta,
    tenant: str | None, tags: Iterable[str],
) -> StartRun:  # fmt: skip
    """A start, checked: bad input raises here and nothing is written."""
    bound = agent.signature.bind(args, kwargs)
    payload, blobs = spill(agent.signature.bind_encode(args, kwargs))
    checks = (
        None if thread_id is None else checked_id("a thread id", thread_id),
        None if key is None else checked_id("a start key", key),
        None if tenant is None else check_name("a tenant", tenant, NAME_CHARS_MAX),
    )
    mode = _if_busy(if_busy)
    where = agent.settings.queue if queue is None else check_name("a queue's name", queue)
    rank = _priority(priority)
    delay_us = int(seconds(delay) * 1_000_000)
    labels = checked_tags(tags)
    first = await ids.take(2)
    return StartRun(
        id=first, thread=first + 1, thread_id=checks[0] or run_id(first), agent=agent.name, queue=where, priority=rank,
        delay_us=delay_us, key=checks[1], digest=digest(canonical((agent.name, bound.args, bound.kwargs))),
        payload=payload, if_busy=mode, tenant=checks[2], tags=labels, blobs=blobs,
    )  # fmt: skip


def started(outcome: StartOutcome, request: StartRun) -> Started:
    """The started run, or the conflict as the error it is."""
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
        case OtherAgent(agent):
            raise StartMismatch(
                f"thread {request.thread_id!r} belongs to agent {agent!r}, not to {request.agent!r}; use another "
                "thread id",
                thread_id=request.thread_id, agent=agent,
            )  # fmt: skip
        case _:
            assert_never(outcome)


def checked_id(what: str, text: object) -> str:
    """A thread id or a start key."""
    return check_name(what, text, ID_CHARS_MAX)


def run_number(name: object) -> int:
    """The number behind a run's id."""
    number = parse_run_id(name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(f"{name!r} is not a run id; they look like r42 (`perdure runs list` shows them)")
    return number


def no_run(name: str, url: str) -> NotFound:
    """The error for a run that is not in the store."""
    return NotFound(f"no run {name} in {url}; `perdure runs list` shows those there are", run_id=name)


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags: a few names, sorted and unique."""
    if isinstance(tags, str):
        raise UsageError(f'tags is the string {tags!r}; give a list, such as ["nightly"]')
    unique = tuple(sorted({check_name("a tag", tag) for tag in tags}))
    if len(unique) > TAGS_MAX:
        raise UsageError(f"{len(unique)} tags are given; at most {TAGS_MAX} are allowed")
    return unique


def run_filter(
    *, state: str | None, agent: str | None, thread_id: str | None, tenant: str | None, tags: Iterable[str], limit: int,
    after: str | None,
) -> RunFilter:  # fmt: skip
    """Which runs to list. A name that nothing can have is refused: not every database takes the question."""
    return RunFilter(
        state=None if state is None else run_state(state),
        agent=None if agent is None else check_name("an agent's name", agent),
        thread_id=None if thread_id is None else checked_id("a thread id", thread_id),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        tags=checked_tags(tags),
        limit=page_limit(limit),
        after=None if after is None else run_number(after),
    )


def run_state(text: str) -> RunState:
    """A run state by name."""
    try:
        return RunState(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a run state; they are: {', '.join(RunState)}") from None


def page_limit(limit: int) -> int:
    """How many rows a page may have."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIST_ROWS_MAX:
        raise UsageError(f"limit is {limit!r}; it must be a number from 1 to {LIST_ROWS_MAX}")
    return limit


def _if_busy(text: str) -> IfBusy:
    try:
        return IfBusy(text)
    except ValueError:
        raise UsageError(f"if_busy is {text!r}; it must be one of: {', '.join(IfBusy)}") from None


def _priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise UsageError(f"priority is {priority!r}; it must be a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}")
    return priority
