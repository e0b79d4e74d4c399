"""Messages in a source's hands: their broker is told, again and again, that they are still worked on.

Without it a message whose start takes long (the store is away for a while) would come again, be counted as another
failure, and end among the dead although nothing is wrong with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Holding(Generic[T]):
    """What was received, and was neither acknowledged nor rejected so far."""

    def __init__(self, renew: Callable[[list[T]], Awaitable[None]], *, every_s: float) -> None:
        self._renew = renew
        self._every_s = every_s
        self._held: dict[str, T] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, name: str, message: T) -> None:
        self._held[name] = message

    def drop(self, name: str) -> None:
        """It is no longer held, if it was."""
        self._held.pop(name, None)

    def check(self) -> None:
        """Raise what renewing has failed with."""
        if self._task is not None and self._task.done():
            self._task.result()

    @contextlib.asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew in the background, for as long as this is open."""
        self._task = asyncio.create_task(self._keep(), name="holding")
        try:
            yield
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._held.clear()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)  # the broker's time-out is a matter of time
            if self._held:
                await self._renew(list(self._held.values()))
