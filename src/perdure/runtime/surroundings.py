"""What a worker's process stands on: its clocks, its chance, its threads.

What a worker takes from outside of the store and the event loop comes through here, so that a simulator can be all of
it: the same runtime then runs in virtual time, on one thread, and a seed repeats it to the letter
(`perdure.testing.simulation`). Only the jitter of pauses and what agents draw by `perdure.random()` come from the
module `random`, which a simulator seeds.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from perdure.clock import SYSTEM_CLOCK, Clock
from perdure.core.limits import COMMIT_ROWS_MAX, SUPER_STEPS_AHEAD_MAX
from perdure.runtime.callables import Pools
from perdure.runtime.threads import post

if TYPE_CHECKING:
    from perdure.runtime.frames import StepFrame

JOIN_S: Final = 10.0
"""How long the end of a side loop is awaited. Only where its store is stuck does it take as long; then it is left to
itself."""

Main = Callable[[], Coroutine[Any, Any, None]]

AroundBody = Callable[["StepFrame", Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Called in place of each body of a step, and of what an effect has beside its body, with the body: what it returns or
raises, the body is taken to have."""


class SideLoop(Protocol):
    """A coroutine on an event loop of its own, beside the main one."""

    def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """Cancel it, and wait until it has ended. It goes on until this call."""


class ThreadLoop:
    """A side loop on a thread of its own: a blocked main loop does not block it."""

    def __init__(self, name: str, main: Main) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._stopping = True
        if self._loop is not None:
            post(self._loop, self._cancel)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, JOIN_S)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _run(self) -> None:
        asyncio.run(self._cancellable())

    async def _cancellable(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._main())
        if self._stopping:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            pass


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The machine's, unless others are given."""

    clock: Clock = SYSTEM_CLOCK
    random: random.Random = field(default_factory=random.Random)
    pools: Callable[[], Pools] = Pools
    beside: Callable[[str, Main], SideLoop] = ThreadLoop
    around_body: AroundBody | None = None
    commit_rows_max: int = COMMIT_ROWS_MAX
    """Changes in one commit; with fewer, a simulator has more commits in flight."""
    ahead_max: int = SUPER_STEPS_AHEAD_MAX
    """Super-steps ahead of the disk; the same for all workers of one store."""
