"""The listener: one connection that waits for hints.

It opens at the first `listen`, and then goes round: connect, LISTEN, call every handler with every hint (something may
have happened while nobody listened), and ask for a sign of life every few seconds. A connection that was cut in
silence, by a proxy or a dropped route, answers nothing: the next sign of life fails, and the listener connects anew,
with growing pauses while the server is away. Behind a transaction pooler there is nothing to listen on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import asyncpg

from perdure import telemetry
from perdure.errors import StoreError
from perdure.store.postgres import failures, lines
from perdure.store.postgres.address import Address
from perdure.store.protocol import Hint

HEARTBEAT_S: Final = 3.0
"""Between two signs of life; as long again until a missing one is believed."""
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0

Handler = Callable[[Hint], None]


class Listener:
    """Calls handlers at each hint, for as long as there are any."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._handlers: list[Handler] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: asyncpg.Connection[Any] | None = None

    def add(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` from now on, until the returned function is called."""
        entry = [handler]

        def remove() -> None:
            if entry:
                self._handlers.remove(entry.pop())

        self._handlers.append(handler)
        self.resume()
        return remove

    def resume(self) -> None:
        """Listen, if anybody wants to hear."""
        if self._handlers and self._task is None and not self._address.pooled:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="perdure-postgres-listener")

    async def close(self) -> None:
        """Stop listening."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def abandon(self) -> None:
        """The same without the loop, which has closed; a loop that closed in good order has ended the task."""
        connection, self._connection, self._task = self._connection, None, None
        if connection is not None:
            lines.drop(connection)

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            try:
                connection = self._connection = await lines.connect(self._address)
            except StoreError as error:
                telemetry.emit("listener.failed", url=self._address.public, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            pause_s = PAUSE_MIN_S
            try:
                await self._attend(connection)
            except failures.DRIVER as error:
                telemetry.emit("listener.lost", url=self._address.public, error=str(error))
            finally:
                connection.terminate()

    async def _attend(self, connection: asyncpg.Connection[Any]) -> None:
        """Listen on one connection until it is lost."""
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        await connection.add_listener(self._address.channel, self._on_notify)
        for hint in Hint:
            self._call(hint)
        while not lost.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(lost.wait(), HEARTBEAT_S)
                return
            await connection.execute("select 1", timeout=HEARTBEAT_S)

    def _on_notify(self, connection: object, pid: int, channel: str, payload: object) -> None:
        # A newer perdure may send hints that this one does not know.
        if payload in {hint.value for hint in Hint}:
            self._call(Hint(payload))

    def _call(self, hint: Hint) -> None:
        for handler in tuple(self._handlers):
            handler(hint)
