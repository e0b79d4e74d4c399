"""What users ask for, checked and made into values before it reaches the store. (Starts: `runtime/starting.py`.)"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import RunState, parse_run_id
from perdure.core.requests import RunFilter
from perdure.core.shown import shown
from perdure.errors import NotFound, UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.settings import check_name
from perdure.runtime.starting import checked_id, checked_tags


def run_number(name: object) -> int:
    """The number behind a run's id."""
    number = parse_run_id(name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(f"{shown(name)} is not a run id: run ids look like r42 (`perdure runs list` shows them)")
    return number


def no_run(name: str, url: str) -> NotFound:
    """The error for a run that is not in the store."""
    return NotFound(f"no run {name} in {url}; `perdure runs list` shows those there are", run_id=name)


def run_filter(
    *, state: str | None, agent: Agent[..., Any] | str | None, thread_id: str | None, tenant: str | None,
    tags: Iterable[str], limit: int, after: str | None,
) -> RunFilter:  # fmt: skip
    """Which runs to list. A name that nothing can have is refused: not every database takes the question."""
    return RunFilter(
        state=None if state is None else run_state(state),
        agent=None if agent is None else agent_name(agent),
        thread_id=None if thread_id is None else checked_id("a thread id", thread_id),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        tags=checked_tags(tags),
        limit=page_limit(limit),
        after=None if after is None else run_number(after),
    )


def agent_name(agent: object) -> str:
    """The name of an agent that is given as itself or by name, be it registered here or not."""
    return agent.name if isinstance(agent, Agent) else check_name("an agent's name", agent)


def run_state(text: str) -> RunState:
    """A run state by name."""
    if not isinstance(text, str) or text not in tuple(RunState):
        raise UsageError(f"{shown(text)} is not a run state; they are: {', '.join(RunState)}")
    return RunState(text)


def page_limit(limit: int) -> int:
    """How many rows a page may have."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIST_ROWS_MAX:
        raise UsageError(f"limit is {shown(limit)}; it must be a number from 1 to {LIST_ROWS_MAX}")
    return limit
