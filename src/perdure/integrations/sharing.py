"""A connection that many deliveries use at once, made when the first one needs it.

One that was lost is replaced. So is one on which a delivery got no answer in time, since who takes so long may have
vanished; but the others that are under way on it may still be answered, so it is closed when the last of them has
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Line(Generic[T]):
    connection: T
    users: int = 0


class Shared(Generic[T]):
    """The connection of one sink."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[T]],
        close: Callable[[T], Awaitable[None]],
        *,
        is_lost: Callable[[T], bool],
    ) -> None:
        self._connect = connect
        self._close = close
        self._is_lost = is_lost
        self._opening = asyncio.Lock()
        self._line: _Line[T] | None = None
        """The one for the next."""
        self._leaving: set[_Line[T]] = set()
        """Those that only wait for the last of their users."""

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[T]:
        """An open connection, for one delivery. Raises what connecting raises."""
        line = await self._open()
        line.users += 1
        try:
            yield line.connection
        except (TimeoutError, asyncio.CancelledError):
            self._leave(line)
            raise
        finally:
            line.users -= 1
            if line in self._leaving and not line.users:
                self._leaving.discard(line)
                await self._close(line.connection)

    async def close(self) -> None:
        """Let go of whatever is open."""
        if self._line is not None:
            self._leave(self._line)
        lines, self._leaving = self._leaving, set()
        for line in lines:
            await self._close(line.connection)

    async def _open(self) -> _Line[T]:
        async with self._opening:
            if self._line is not None and self._is_lost(self._line.connection):
                lost, self._line = self._line, None
                await self._close(lost.connection)
            if self._line is None:
                self._line = _Line(await self._connect())
            return self._line

    def _leave(self, line: _Line[T]) -> None:
        """Nobody else is given it."""
        if self._line is line:
            self._line = None
            self._leaving.add(line)
