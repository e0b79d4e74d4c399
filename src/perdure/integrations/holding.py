"""Messages in a source's hands: their broker is told, again and again, that they are still worked on.

Without it a message whose start takes long (the store is away for a while) would come again, be counted as another
failure, and end among the dead although nothing is wrong with it.

A renewal that fails, or hangs, is tried again sooner than it would be due, and takes those of other messages not along.
After several failures in a row the source begins anew, since what it holds comes again anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Generic, TypeVar

from perdure.runtime.service import Trouble

T = TypeVar("T")

AGAIN_SHARE: Final = 1 / 4
"""Of the usual pause: how long after a failure the next renewal is."""

FAILURES_MAX: Final = 5
"""In a row, before the source begins anew. An adapter that renews when a third of its broker's time is over has then
tried for another third."""


class Holding(Generic[T]):
    """What was received, and was neither acknowledged nor rejected so far. `renew` is for so many at once."""

    def __init__(self, renew: Callable[[list[T]], Awaitable[None]], *, every_s: float, at_once: int = 1) -> None:
        self._renew = renew
        self._every_s = every_s
        self._at_once = at_once
        self._held: dict[str, T] = {}
        self._failures = 0
        self._error: BaseException | None = None
        self._trouble = Trouble("renewal of held messages", is_ordinary=lambda error: True)

    def add(self, name: str, message: T) -> None:
        self._held[name] = message

    def drop(self, name: str) -> None:
        """It is no longer held, if it was."""
        self._held.pop(name, None)

    def check(self) -> None:
        """Raise if renewing has failed too often in a row."""
        if self._failures >= FAILURES_MAX:
            raise ConnectionError(f"messages could not be held, {self._failures} times in a row") from self._error

    @contextlib.asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Renew in the background, for as long as this is open."""
        task = asyncio.create_task(self._keep(), name="holding")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._held.clear()

    async def _keep(self) -> None:
        pause_s = self._every_s
        while True:
            await asyncio.sleep(pause_s)  # the broker's time-out is a matter of time
            pause_s = self._every_s * (1 if await self._renew_all() else AGAIN_SHARE)

    async def _renew_all(self) -> bool:
        """Renew what is held; whether all of it was."""
        held = list(self._held.values())
        parts = [held[start : start + self._at_once] for start in range(0, len(held), self._at_once)]
        answers = await asyncio.gather(*map(self._renew_some, parts), return_exceptions=True)
        errors = [answer for answer in answers if answer is not None]
        if not errors:
            self._failures = 0
            self._trouble.ended()
            return True
        self._failures += 1
        self._error = errors[-1]
        for error in errors:
            if isinstance(error, Exception):
                self._trouble.began(error)
        return False

    async def _renew_some(self, messages: list[T]) -> None:
        async with asyncio.timeout(self._every_s):
            await self._renew(messages)
