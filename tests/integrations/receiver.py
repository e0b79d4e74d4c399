"""A server of webhooks that says what a test wants it to say, byte for byte, and remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

Answer = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]

FINE = b"HTTP/1.1 204 No Content\r\n\r\n"


def answer(status: int, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return f"HTTP/1.1 {status} Said\r\nContent-Length: {len(body)}\r\n{''.join(lines)}\r\n".encode() + body


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Gives its answers in turn, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers) or [FINE]
        self.requests: list[Request] = []
        self.connections = 0
        self.names: list[str | None] = []
        """The server names that TLS clients asked for."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=hidden"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._converse(reader, writer)
        finally:
            writer.close()
            if writer.transport.get_write_buffer_size() > 0:
                writer.transport.abort()  # the client has stopped reading
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head[1:] if line}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.requests.append(Request(head[0], headers, body))
            said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if not isinstance(said, bytes):
                await said(writer)
                return
            writer.write(said)
            await writer.drain()


@contextlib.asynccontextmanager
async def receiver(
    *answers: Answer, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that listens on the loopback."""
    made = Receiver(*answers)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(made.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if tls is not None:
        tls.sni_callback = lambda _connection, name, _context: made.names.append(name)
    server = await asyncio.start_server(accept, host, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
