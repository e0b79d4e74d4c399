"""A proxy of connections: it stands between a client and a server, and does what networks do.

`async with proxy(target) as between:` listens on a free port of the loopback (`between.port`) and passes bytes to the
target, a host and port or the path of a unix socket, until it is told otherwise:

- `cut()`: every connection is gone at once.
- `swallow()`: the connections that exist now pass nothing any more, and stay open: a peer that vanished.
- `lose_answers()`: on the connections that exist now the server still hears, and the client is told nothing.
- `black_hole()` … `lift()`: nothing passes in between, on old and new connections; it passes late, and nothing is lost.
- `delay_s`: every piece passes so much later.

Where the server is a Postgres, a `Postgres` given as `speech` follows the conversation (`speech.py`): it can lose the
answer to a statement that was executed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from perdure.testing.speech import LENGTH_BYTES, Conversation, Messages, Postgres, Verdict, packed

CHUNK_BYTES: Final = 65_536

ENCRYPTION_CODES: Final = (80_877_103, 80_877_104)
"""What a client says in place of a version to ask for TLS or GSSAPI encryption."""

Target = Path | tuple[str, int]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Passes bytes between its clients and a server, until it is told otherwise."""

    def __init__(self, target: Target, *, speech: Postgres | None = None) -> None:
        self.target = target
        self.speech = speech
        self.port = 0
        self.delay_s = 0.0
        self.answer_lost = asyncio.Event()
        """Set when something was thrown away."""
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    def __len__(self) -> int:
        return len(self._connections)

    def cut(self) -> int:
        """Cut every connection; returns how many there were."""
        cut = len(self._connections)
        for connection in self._connections:
            connection.abort()
        return cut

    def swallow(self) -> None:
        """From now on, pass nothing on the connections that exist now, and close none of them."""
        for connection in self._connections:
            connection.deaf = connection.mute = True

    def lose_answers(self) -> None:
        """From now on, pass what clients say on the connections that exist now, and nothing of what they are told."""
        for connection in self._connections:
            connection.mute = True

    def black_hole(self) -> None:
        """Let nothing pass, and nobody connect, until `lift`."""
        self._open.clear()

    def lift(self) -> None:
        """End the black hole: what waited passes."""
        self._open.set()

    async def passes(self) -> None:
        """Wait until something may pass."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._open.wait()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client has connected."""
        task = asyncio.get_running_loop().create_task(self._serve((reader, writer)), name="proxy")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cut all connections, and wait until nothing is left of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: Stream) -> None:
        """One connection, from its beginning to its end."""
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._open.wait()
                connection = _Connection(self, client, await self._connect())
                self._connections.add(connection)
                try:
                    await connection.run()
                finally:
                    self._connections.discard(connection)
                    connection.close()
        finally:
            client[1].close()

    async def _connect(self) -> Stream:
        if isinstance(self.target, Path):
            return await asyncio.open_unix_connection(self.target)
        return await asyncio.open_connection(*self.target)


class _Connection:
    """One client's way to the server and back."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self.proxy = proxy
        self.client, self.server = client, server
        self.deaf = False
        """What the client says is thrown away."""
        self.mute = False
        """What the server says is thrown away."""
        self._cut = asyncio.Event()

    async def run(self) -> None:
        """Until either side has gone; a side that is not to be heard is not heard going either."""
        speech = self.proxy.speech
        conversation = Conversation(speech) if speech is not None and await self._greeted() else None
        ways = [
            asyncio.create_task(self._there(conversation), name="proxy there"),
            asyncio.create_task(self._back(conversation), name="proxy back"),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            if conversation is not None:
                conversation.end()

    def abort(self) -> None:
        """Cut it: nothing that is buffered arrives."""
        self.deaf = self.mute = False
        self._cut.set()
        for _, writer in (self.client, self.server):
            writer.transport.abort()

    def close(self) -> None:
        """Let go of both sides."""
        for _, writer in (self.client, self.server):
            writer.close()

    async def _greeted(self) -> bool:
        """Pass the first packets of a Postgres conversation, which have a form of their own; False if it goes on
        encrypted."""
        while True:
            length = await self.client[0].readexactly(LENGTH_BYTES)
            body = await self.client[0].readexactly(int.from_bytes(length, "big") - LENGTH_BYTES)
            await self._pass(self.server[1], length + body)
            if int.from_bytes(body[:LENGTH_BYTES], "big") not in ENCRYPTION_CODES:
                return True
            answer = await self.server[0].readexactly(1)
            await self._pass(self.client[1], answer)
            if answer != b"N":
                return False

    async def _there(self, conversation: Conversation | None) -> None:
        messages = Messages()
        with contextlib.suppress(OSError):
            while data := await self.client[0].read(CHUNK_BYTES):
                if conversation is not None:
                    for kind, body in messages.feed(data):
                        conversation.asked(kind, body)
                if not self.deaf:
                    await self._pass(self.server[1], data)
        if self.deaf:
            await self._cut.wait()

    async def _back(self, conversation: Conversation | None) -> None:
        messages = Messages()
        with contextlib.suppress(OSError):
            while data := await self.server[0].read(CHUNK_BYTES):
                if conversation is not None:
                    verdicts = [(conversation.answered(kind, body), kind, body) for kind, body in messages.feed(data)]
                    data = b"".join(packed(kind, body) for verdict, kind, body in verdicts if verdict is Verdict.PASS)
                    if any(verdict is Verdict.CUT for verdict, _, _ in verdicts):
                        return
                if self.mute:
                    self.proxy.answer_lost.set()
                elif data:
                    await self._pass(self.client[1], data)
        if self.mute:
            await self._cut.wait()

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self.proxy.passes()
        writer.write(data)
        await writer.drain()


@contextlib.asynccontextmanager
async def proxy(target: Target, *, speech: Postgres | None = None) -> AsyncIterator[Proxy]:
    """A proxy to this server, on a free port of the loopback."""
    made = Proxy(target, speech=speech)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.close()
