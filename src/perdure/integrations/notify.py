"""Postgres's NOTIFY, over asyncpg: whoever listens to the channel at that moment is told, and nobody else.

A notification is kept nowhere, so a delivery is delivered once the server has committed it, whoever may have heard it.
That makes it good for "look again" (a cache, a page that somebody has open) and for nothing that must arrive. It has no
headers: its text is JSON, the delivery's key as `id` and its payload as `data`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.core.durations import Duration
from perdure.core.limits import DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.errors import Undeliverable
from perdure.integrations.drivers import driver
from perdure.integrations.inputs import checked_name, checked_url, one_try, tries
from perdure.integrations.timeouts import answering
from perdure.runtime.sinks import DELIVERY_RETRY, Outgoing, Sink

if TYPE_CHECKING:
    import asyncpg

NOTIFY: Final = "select pg_notify($1, $2)"

SCHEMES: Final = ("postgresql", "postgres")

TEXT_BYTES_MAX: Final = 7_999
"""What Postgres takes in one notification."""

CHANNEL_BYTES_MAX: Final = 63
"""What Postgres takes as a name."""


class PostgresNotify(Sink):
    """Notifies a channel of each delivery. One whose text is longer than 7,999 bytes is undeliverable.

    `dsn` is a Postgres URL as asyncpg takes it. Needs asyncpg: `pip install 'perdure[postgres]'`.
    """

    concurrency = 1
    """One connection notifies of one after the other."""

    def __init__(
        self,
        dsn: str,
        channel: str,
        *,
        timeout: Duration = DELIVERY_TIMEOUT_S,
        retry: Retry | int = DELIVERY_RETRY,
    ) -> None:
        self._asyncpg = driver("asyncpg", extra="postgres", what="NOTIFY")
        self._dsn = checked_url(dsn, SCHEMES, what="The URL of Postgres", host=False)  # it may be in ?host=
        self._channel = checked_name(channel, what="A channel's name", bytes_max=CHANNEL_BYTES_MAX)
        self._line = asyncio.Lock()
        self._connection: asyncpg.Connection | None = None
        self.retry, self.timeout_s = tries(retry), one_try(timeout)

    async def deliver(self, item: Outgoing) -> None:
        """Notify. Raises what asyncpg raises."""
        text = msgspec.json.encode({"id": item.key, "data": item.payload})
        if len(text) > TEXT_BYTES_MAX:
            raise Undeliverable(f"The notification has {len(text):,} bytes; Postgres takes {TEXT_BYTES_MAX:,}.")
        with answering("Postgres", self.timeout_s):
            await self._notify(text.decode())

    async def _notify(self, text: str) -> None:
        async with self._line:
            connection = await self._open()
            try:
                await connection.execute(NOTIFY, self._channel, text, timeout=self.timeout_s)
            except (TimeoutError, asyncio.CancelledError):
                # Who takes so long may have vanished; the next delivery goes over a new connection.
                connection.terminate()
                raise

    async def close(self) -> None:
        """Let go of the connection."""
        async with self._line:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close(timeout=self.timeout_s)

    async def _open(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._asyncpg.connect(self._dsn, timeout=self.timeout_s)
        return self._connection
