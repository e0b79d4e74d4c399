"""Connections: few, lazy, each with one purpose.

A `Line` is one connection, opened at its first use and again after it was lost; its calls queue up. Nothing is asked
before a call to find out whether the connection still lives: a call on a dead one is `StoreUnavailable`, and the next
call opens another. A `Pool` is a few lines of which a call takes one that is free. A transaction that lost against
another one (deadlock, serialization) is tried again here, so that no caller sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import asyncpg

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.postgres import failures
from perdure.store.postgres.address import Address, refused_setting

CONNECT_TIMEOUT_S: Final = 10.0
CALL_TIMEOUT_S: Final = 30.0
"""A call that takes longer has lost its connection without anybody saying so."""
WORKER_TIMEOUT_S: Final = 5.0
"""The same for what a worker's lease depends on: there must be time for another try."""
CLOSE_TIMEOUT_S: Final = 2.0
LINGER_S: Final = 0.1
"""For a connection that is being made when nobody wants it any more."""
REPEATS_MAX: Final = 10
"""Tries of a transaction that keeps losing against others."""
SERVER_VERSION_MIN: Final = 14

SETTINGS: Final = {
    "application_name": "perdure",
    # The functions read one snapshot a statement; under any other level they would read one a transaction.
    "default_transaction_isolation": "read committed",
    "jit": "off",
}

BY_INDEX: Final = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""No statement here reads a table from end to end, whatever is known of its size."""

READING: Final = BY_INDEX | {"plan_cache_mode": "force_custom_plan"}
"""Plans of plain reads follow the size that the tables have now, not the one they had when they were empty."""

WRITING: Final = BY_INDEX | {"plan_cache_mode": "force_generic_plan"}
"""A line that repeats a few calls plans them once; the functions called have plans of their own."""

Row = Any
Result = TypeVar("Result")


async def connect(
    address: Address, plans: dict[str, str] = READING, *, timeout_s: float = CALL_TIMEOUT_S
) -> asyncpg.Connection[Any]:
    """Open a connection and see that the server is one that perdure can use."""
    pooled: dict[str, Any] = {"statement_cache_size": 0}
    direct: dict[str, Any] = {"server_settings": SETTINGS | plans, "max_cached_statement_lifetime": 0}
    try:
        connection = await _whole(
            asyncpg.connect(
                address.dsn,
                timeout=min(CONNECT_TIMEOUT_S, timeout_s),
                command_timeout=timeout_s,
                **(pooled if address.pooled else direct),
            )
        )
    except failures.SETTING as error:
        raise refused_setting(address, error) from error
    except (*failures.DRIVER, ValueError) as error:
        raise failures.translate(error, address) from error
    version = connection.get_server_version()
    if version.major < SERVER_VERSION_MIN:
        await hang_up(connection)
        remedy = f"perdure needs Postgres {SERVER_VERSION_MIN} or later"
        raise StoreError(f"{address.public} is Postgres {version.major}.{version.minor}; {remedy}.", url=address.public)
    return connection


async def _whole(connecting: Coroutine[Any, Any, asyncpg.Connection[Any]]) -> asyncpg.Connection[Any]:
    """The connection. Where its caller is cancelled meanwhile, it is given a moment before it is broken off: the driver
    leaves a future behind that nobody reads where that happens at the very beginning, and asyncio says so on stderr."""
    task = asyncio.get_running_loop().create_task(connecting, name="perdure-postgres-connect")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=LINGER_S)
        finally:
            task.cancel()
            task.add_done_callback(_terminate)
        raise


def _terminate(task: asyncio.Task[asyncpg.Connection[Any]]) -> None:
    """End a connection that nobody waits for any more; that it did not come about is no news to anybody."""
    if not task.cancelled() and task.exception() is None:
        task.result().terminate()


async def hang_up(connection: asyncpg.Connection[Any]) -> None:
    """Close a connection, in whatever state it is."""
    try:
        await connection.close(timeout=CLOSE_TIMEOUT_S)
    except failures.DRIVER:
        connection.terminate()


def drop(connection: asyncpg.Connection[Any]) -> None:
    """Let go of a connection whose loop has closed. Nothing can be awaited, but the server must see it end: so what
    asyncio's loop would have called at the end is called here (uvloop's has closed all sockets itself). An encrypted
    connection lies on another, which is the one to be ended."""
    transport = connection._transport
    transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
    with contextlib.suppress(RuntimeError):
        connection.terminate()
    end = getattr(transport, "_call_connection_lost", None)
    if end is not None and connection._loop.is_closed() and transport.get_extra_info("socket").fileno() >= 0:
        with contextlib.suppress(RuntimeError):
            end(None)


class Line:
    """One connection for one purpose."""

    def __init__(self, address: Address, plans: dict[str, str] = READING, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._address = address
        self._plans = plans
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[Any] | None = None

    @property
    def connection(self) -> asyncpg.Connection[Any] | None:
        """The connection, while it lives: the same object means the same session of the database."""
        return None if self._connection is None or self._connection.is_closed() else self._connection

    async def fetch(self, text: str, *arguments: Any) -> list[Row]:
        """All rows of one statement, which is a transaction of its own."""
        return await self.use(lambda connection: connection.fetch(text, *arguments))

    async def fetchrow(self, text: str, *arguments: Any) -> Row:
        """The first row, or None."""
        return await self.use(lambda connection: connection.fetchrow(text, *arguments))

    async def fetchval(self, text: str, *arguments: Any) -> Any:
        """The first value of the first row, or None."""
        return await self.use(lambda connection: connection.fetchval(text, *arguments))

    async def use(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[Result]]) -> Result:
        """Do one transaction's work on the connection; do it again where it lost against another transaction."""
        async with self._lock:
            for _ in range(REPEATS_MAX - 1):
                with contextlib.suppress(*failures.REPEATABLE):
                    return await self._use(work)
                await asyncio.sleep(0)
            try:
                return await self._use(work)
            except failures.REPEATABLE as error:  # somebody holds what it needs, and goes on holding it
                raise failures.unavailable(error, self._address) from error

    async def _use(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[Result]]) -> Result:
        connection = self.connection
        if connection is None:
            connection = self._connection = await connect(self._address, self._plans, timeout_s=self._timeout_s)
        try:
            return await work(connection)
        except asyncio.CancelledError:
            # Nobody knows what the server still does; a connection is cheaper than finding out.
            connection.terminate()
            raise
        except failures.DRIVER as error:
            known = failures.translate(error, self._address)
            if isinstance(known, StoreUnavailable):
                connection.terminate()
            if known is error:
                raise
            raise known from error

    async def close(self) -> None:
        """Let the connection go, after the call that is using it, or without it if that hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._lock:
                pass
        connection, self._connection, self._lock = self._connection, None, asyncio.Lock()
        if connection is not None:
            await hang_up(connection)

    def abandon(self) -> None:
        """Drop the connection without the loop, which has closed."""
        connection, self._connection, self._lock = self._connection, None, asyncio.Lock()
        if connection is not None:
            drop(connection)


class Pool:
    """A few lines; each call takes the one that was used last, so that few stay open."""

    def __init__(
        self, address: Address, size: int, *, plans: dict[str, str] = READING, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        self._lines = [Line(address, plans, timeout_s=timeout_s) for _ in range(size)]
        self._free = list(self._lines)
        self._places = asyncio.Semaphore(size)

    @contextlib.asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """A line of one's own for a while."""
        async with self._places:
            line = self._free.pop()
            try:
                yield line
            finally:
                self._free.append(line)

    async def fetch(self, text: str, *arguments: Any) -> list[Row]:
        async with self.line() as line:
            return await line.fetch(text, *arguments)

    async def fetchrow(self, text: str, *arguments: Any) -> Row:
        async with self.line() as line:
            return await line.fetchrow(text, *arguments)

    async def fetchval(self, text: str, *arguments: Any) -> Any:
        async with self.line() as line:
            return await line.fetchval(text, *arguments)

    def abandon(self) -> None:
        for line in self._lines:
            line.abandon()
        self._start_anew()

    async def close(self) -> None:
        for line in self._lines:
            await line.close()
        self._start_anew()

    def _start_anew(self) -> None:
        self._free, self._places = list(self._lines), asyncio.Semaphore(len(self._lines))
