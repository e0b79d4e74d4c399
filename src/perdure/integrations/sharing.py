"""A connection that many deliveries use at once, made when the first one needs it.

One that was lost is replaced. So is one on which a delivery got no answer in time, since who takes so long may have
vanished; but the others that are under way on it may still be answered, so it is closed when the last of them has
ended.

No delivery waits for a connection to be closed, or fails because that does: it is done beside them, and is through when
`close` is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from perdure.telemetry import logger

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
        self._closing: set[asyncio.Task[None]] = set()
        self._closed_times = 0

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
                self._let_go(line)

    async def close(self) -> None:
        """Let go of whatever is open, and of what is being opened once whoever does so has used it."""
        self._closed_times += 1
        if self._line is not None:
            self._leave(self._line)
        lines, self._leaving = self._leaving, set()
        for line in lines:
            self._let_go(line)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _open(self) -> _Line[T]:
        async with self._opening:
            if self._line is not None and self._is_lost(self._line.connection):
                lost, self._line = self._line, None
                self._let_go(lost)
            if self._line is not None:
                return self._line
            times = self._closed_times
            line = _Line(await self._connect())
            if times == self._closed_times:
                self._line = line
            else:
                self._leaving.add(line)
            return line

    def _leave(self, line: _Line[T]) -> None:
        """Nobody else is given it."""
        if self._line is line:
            self._line = None
            self._leaving.add(line)

    def _let_go(self, line: _Line[T]) -> None:
        task = asyncio.create_task(self._closed(line.connection), name="closing a connection")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _closed(self, connection: T) -> None:
        try:
            await self._close(connection)
        except Exception as error:  # the edge of somebody else's client: what is lost may not close as it should
            logger.debug("a connection did not close", exc_info=error)
