"""Handles: what `start` gives, to a program that is a client and to an agent that starts a child.

There are two, with one contract. A client's asks the store each time. An agent's is part of its code, which is
replayed: each of its verbs is recorded, and says on replay what it said before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from datetime import timedelta
from typing import Any, Generic, TypeVar

from perdure.core.records import RunState
from perdure.runtime.info import CheckpointInfo, RunInfo

R = TypeVar("R")


class Handle(ABC, Generic[R]):
    """A run that is on disk; `await` it for its result. Cheap: nothing is lost with it."""

    run_id: str
    thread_id: str

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    @abstractmethod
    async def result(self, timeout: float | str | timedelta | None = None) -> R:
        """Wait for the run's end and return its result.

        Raises `RunFailed`, `RunCancelled`, `RunHeld` (a person must look; the run is not over, and may be awaited
        again), `NotSerializable` if the recorded result does not load as what the agent returns by now, or, after
        `timeout`, a `TimeoutError` (in an agent `TimedOut`, which is one): the run goes on all the same.
        """

    @abstractmethod
    async def status(self) -> RunInfo:
        """The run as it is now."""

    @abstractmethod
    async def cancel(self, reason: str | None = None) -> RunState:
        """Cancel the run, and those that it has started unless they are detached.

        Durable when it returns, and the truth: `cancelled` if the cancellation won, whatever the run still does before
        it ends; else the state in which the run had ended.
        """

    @abstractmethod
    async def history(self) -> list[CheckpointInfo]:
        """The run's log so far, in order: boundaries, steps, the end."""
