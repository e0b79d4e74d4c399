"""A TCP proxy in front of a server, for what networks do: cut, swallow, lose an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path


class Proxy:
    """Passes bytes between its clients and a server's socket, until it is told otherwise."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.answer_lost = asyncio.Event()
        """Set when an answer was thrown away."""

    def swallow(self) -> None:
        """From now on, pass nothing on the connections that exist now, and close none of them."""
        self._silent.update(self._writers)

    def cut(self) -> None:
        """Cut every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self._silent.clear()

    def lose_answers(self) -> None:
        """From now on, pass what clients say on the connections that exist now, and nothing of what they are told."""
        self._silent.update(self._writers[::2])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        self._writers += [writer, server_writer]
        self._pump(reader, server_writer)
        self._pump(server_reader, writer)

    def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if writer in self._silent:
                    self.answer_lost.set()
                else:
                    writer.write(data)
                    await writer.drain()
        if writer not in self._silent:
            writer.close()

    async def close(self) -> None:
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxy(target: Path) -> AsyncIterator[Proxy]:
    """A proxy on a free port of the loopback, in front of the server on this unix socket."""
    passing = Proxy(target)
    server = await asyncio.start_server(passing._serve, "127.0.0.1", 0)
    passing.port = server.sockets[0].getsockname()[1]
    try:
        yield passing
    finally:
        server.close()
        await passing.close()
