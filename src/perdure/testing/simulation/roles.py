"""What an agent of a simulated world is besides its code: what its runs are started with, what must come of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.core.records import ErrorInfo
from perdure.core.retry import Retry
from perdure.runtime.agent import Agent, AgentOptions

Log = dict[str, Any]
"""The values on record in a run's last super-step, by key; an `ErrorInfo` where a record is a failure."""


class Tally(msgspec.Struct):
    """The state of a thread: what each super-step of each run has added."""

    entries: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Role:
    """An agent, and what its runs are started with."""

    agent: Agent[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    """Of a run's number."""
    expected: Callable[[tuple[Any, ...], Log], Any]
    """Of its arguments and its log: what it must have returned. None where more than one thing may come of it."""
    never_fails: bool = False
    """Whether what fails in it is always tried again."""
    withdraws: bool = False
    """Whether its own code may cancel a branch that waits."""
    reads: bool = False
    """Whether it reads its mailbox: it is started on a thread that others write to."""
    cleans_up: bool = False
    """Whether it takes steps when it is interrupted: sent on after that, it would find them on record."""
    raw: bool = False
    """Whether it waits for what is not durable for a long while."""
    tallies: bool = False
    """Whether each of its super-steps adds an entry to its thread's state."""
    undone_by: str | None = None
    """The step that, cancelled, it must have recorded where it has recorded `reserve`."""


def agent_of(fn: Callable[..., Any], **options: Any) -> Agent[..., Any]:
    """An agent that goes by its function's name; tried once, unless it says otherwise."""
    return Agent(fn, AgentOptions(name=fn.__name__, retry=options.pop("retry", Retry(attempts=1)), **options))


def numbered(name: str, count: int) -> list[str]:
    """The keys of that many calls of one name in one scope."""
    return [name if n == 0 else f"{name}#{n + 1}" for n in range(count)]


def failed(log: Log, key: str) -> str | None:
    """The name of the error that is on record under this key; None for a result."""
    value = log[key]
    return value.type.rpartition(".")[2] if isinstance(value, ErrorInfo) else None
