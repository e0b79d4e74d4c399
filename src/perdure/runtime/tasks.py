"""The tasks of one super-step: the one that calls the agent, and those which its code has started.

They are held here, since the event loop knows them only weakly, and they end with the super-step. First they are told
(cancelled, or, where it is parked, thrown out of their waits). Most end within a moment. What does not has ten seconds
more, in which the run's slot is free already; then the log names it, and it is left to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from perdure.core.records import run_id
from perdure.runtime.strays import disown, see, see_all, where
from perdure.telemetry import emit

MOMENT_S = 0.5
"""How long an ending waits for the tasks to end with it. Code that closes what it has open takes less."""

UNWIND_S = 10.0
"""How long tasks that were told may take to end before the log names them and they are left to themselves."""


class Tasks:
    """The tasks of one super-step of this run; `moved` is called whenever one of them ends before it does."""

    def __init__(self, run: int, moved: Callable[[], None]) -> None:
        self.root: asyncio.Task[Any] | None = None
        """The one that calls the agent."""
        self.over: str | None = None
        """Why they are to end; None while they are not."""
        self._run = run
        self._moved: Callable[[], None] | None = moved
        self._others: dict[asyncio.Future[Any], None] = {}  # in the order of their making, not of their addresses
        self._told = False

    def begin(self, root: asyncio.Task[Any]) -> None:
        """Hold the task that calls the agent."""
        self.root = root
        root.add_done_callback(self._forget)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Hold a task that agent code has started."""
        self._others[task] = None
        task.add_done_callback(self._forget)
        if self.over is not None:
            task.cancel()

    def __len__(self) -> int:
        return len(self._others)

    def unfinished(self) -> list[asyncio.Future[Any]]:
        """Those that have not ended."""
        return [task for task in (self.root, *self._others) if task is not None and not task.done()]

    def see(self) -> None:
        """Have seen what becomes of them: their super-step has its ending."""
        see_all(self.unfinished())

    def tell(self) -> None:
        """Cancel them, once: a second cancellation would break off the cleaning up after the first."""
        if self._told:
            return
        self._told = self.root is not None
        left = self.unfinished()
        see_all(left)
        for task in left:
            task.cancel(self.over)

    async def pause(self, bodies: Iterable[asyncio.Future[Any]]) -> None:
        """Give them a moment to end, and these bodies of theirs."""
        await self._ended(MOMENT_S, bodies)

    async def end(self) -> None:
        """Wait until all have ended, or leave to themselves those that do not."""
        if not self._told and not await self._ended(UNWIND_S):  # it unwinds by itself: its waits have raised
            self.tell()
        if not await self._ended(UNWIND_S):
            stuck = self.unfinished()
            emit("run.stuck", run=run_id(self._run), tasks=[where(task) for task in stuck])
            for task in stuck:
                disown(task)

    def let_go(self) -> None:
        """Part from them: what ends late concerns nobody."""
        self.root = self._moved = None

    async def _ended(self, within_s: float, bodies: Iterable[asyncio.Future[Any]] = ()) -> bool:
        left = [*self.unfinished(), *bodies]
        if left:
            await asyncio.wait(left, timeout=within_s)
        return not self.unfinished()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._others.pop(task, None)
        if self.over is not None:
            see(task)  # what a branch raised after the ending concerns nobody
        elif self._moved is not None:
            self._moved()
