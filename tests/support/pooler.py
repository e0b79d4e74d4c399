"""A transaction pooler in front of Postgres: what PgBouncer does with `pool_mode=transaction`, at its most unkind.

Its clients share a few backends of the server, and no transaction gets the backend of the one before it. So whatever
lives as long as a backend is lost between two transactions: prepared statements, settings, advisory locks, LISTEN.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from perdure.testing.speech import LENGTH_BYTES, Messages, packed

BACKENDS = 4
PROTOCOL = (3 << 16).to_bytes(4, "big")
CHUNK_BYTES = 65_536

READY, AUTHENTICATION, PARAMETER, KEY, END = b"Z", b"R", b"S", b"K", b"X"


class Backend:
    """A backend of the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.messages = Messages()
        self.greeting = b""
        """What the server said of itself: the parameters that every client is told."""
        self.transactions = 0

    async def begin(self) -> None:
        """Say who we are, and keep what a client has to know."""
        body = PROTOCOL + b"user\0postgres\0database\0postgres\0\0"
        self.writer.write((len(body) + LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big") + body)
        async for kind, body in self.answers():
            if kind == PARAMETER:
                self.greeting += packed(kind, body)

    async def answers(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """What the server says until it is ready again, outside of any transaction."""
        while data := await self.reader.read(CHUNK_BYTES):
            for kind, body in self.messages.feed(data):
                yield kind, body
                if (kind, body) == (READY, b"I"):
                    return
        raise ConnectionError("the server has gone")


class Pooler:
    """Gives every transaction the backend that was used longest ago."""

    def __init__(self, server: Path) -> None:
        self.port = 0
        self.backends: list[Backend] = []
        self._server = server
        self._free: asyncio.Queue[Backend] = asyncio.Queue()
        self._clients: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the backends."""
        for _ in range(BACKENDS):
            self._free.put_nowait(await self._new_backend())

    async def close(self) -> None:
        """End everything."""
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for backend in self.backends:
            backend.writer.close()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="pooler client")
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                length = await reader.readexactly(LENGTH_BYTES)
                await reader.readexactly(int.from_bytes(length, "big") - LENGTH_BYTES)
                key = packed(KEY, bytes(2 * LENGTH_BYTES))
                hello = packed(AUTHENTICATION, bytes(LENGTH_BYTES)) + self.backends[0].greeting + key
                writer.write(hello + packed(READY, b"I"))
                await self._converse(reader, writer)
        finally:
            writer.close()

    async def _new_backend(self) -> Backend:
        backend = Backend(*await asyncio.open_unix_connection(self._server))
        await backend.begin()
        self.backends.append(backend)
        return backend

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One transaction after another."""
        while data := await reader.read(CHUNK_BYTES):
            if data[:1] == END:
                return
            backend = await self._free.get()
            backend.transactions += 1
            backend.writer.write(data)
            said = asyncio.create_task(_pass_on(reader, backend.writer), name="pooler there")
            try:
                async for kind, body in backend.answers():
                    writer.write(packed(kind, body))
            finally:
                said.cancel()
                await asyncio.gather(said, return_exceptions=True)
                gone = backend.writer.is_closing()
                self._free.put_nowait(await self._new_backend() if gone else backend)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What the client says in the course of its transaction; if it goes in the middle of one, the backend goes too."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def pooler(server: Path) -> AsyncIterator[Pooler]:
    """A pooler on a free port of the loopback, in front of the server on this unix socket."""
    made = Pooler(server)
    await made.open()
    listening = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()
        await made.close()
