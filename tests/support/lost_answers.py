"""A proxy in front of Postgres that loses answers: the statement has been executed, its transaction is committed, and
the connection is cut before the client hears of it.

It reads just enough of the protocol to know which prepared statement a client executes: Parse names a statement's
text, Bind names the statement, and the server's ReadyForQuery ends the transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

LENGTH_BYTES = 4

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LossyProxy:
    """Forwards connections to the server's socket; `lose(pattern)` arms it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.port = 0
        self.lost: list[str] = []
        """The statements whose answers were lost."""
        self._pattern: re.Pattern[str] | None = None
        self._every = 1
        self._met = 0
        self._connections: set[asyncio.Task[None]] = set()

    def lose(self, pattern: str | None, *, every: int = 1) -> None:
        """Lose the answer to every so many-th statement that has this pattern, the first included; None: no more."""
        self._pattern = None if pattern is None else re.compile(pattern)
        self._every, self._met = every, 0

    def wants(self, text: str) -> bool:
        """Whether the answer to this statement is to be lost."""
        if self._pattern is None or not self._pattern.search(text):
            return False
        self._met += 1
        return self._met % self._every == 1 % self._every

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """Cut all connections."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                upstream = await asyncio.open_unix_connection(self.target)
                await _Connection(self, (reader, writer), upstream).run()
        finally:
            writer.close()


class _Connection:
    """One client's way to the server and back."""

    def __init__(self, proxy: LossyProxy, client: Stream, server: Stream) -> None:
        self.proxy = proxy
        self.client, self.server = client, server
        self.statements: dict[bytes, str] = {}
        self.doomed: str | None = None
        """The statement in flight whose answer is to be lost."""

    async def run(self) -> None:
        """Until either side has gone."""
        ways = [asyncio.create_task(self._there()), asyncio.create_task(self._back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.server[1].close()

    async def _there(self) -> None:
        reader, writer = self.client[0], self.server[1]
        length = await reader.readexactly(LENGTH_BYTES)
        writer.write(length + await reader.readexactly(int.from_bytes(length, "big") - LENGTH_BYTES))
        while True:
            kind, body = await _message(reader)
            if kind == b"P":
                name, text, *_ = body.split(b"\0")
                self.statements[name] = text.decode()
            elif kind == b"B":
                _, name, *_ = body.split(b"\0", 2)
                statement = self.statements.get(name, "")
                if self.proxy.wants(statement):
                    self.doomed = statement
            await _send(writer, kind, body)

    async def _back(self) -> None:
        reader, writer = self.server[0], self.client[1]
        while True:
            kind, body = await _message(reader)
            if self.doomed is None:
                await _send(writer, kind, body)
            elif kind == b"Z":  # executed, and its transaction committed
                self.proxy.lost.append(self.doomed)
                return


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    kind = await reader.readexactly(1)
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return kind, await reader.readexactly(length - LENGTH_BYTES)


async def _send(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(kind + (len(body) + LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big") + body)
    await writer.drain()


@contextlib.asynccontextmanager
async def lossy_proxy(target: str) -> AsyncIterator[LossyProxy]:
    """A proxy to a server's unix socket, on a free port of the loopback."""
    made = LossyProxy(target)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
