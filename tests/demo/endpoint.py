"""A chat endpoint on loopback that answers by a script: what real ones do, on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from perdure.demo.model import Endpoint


def answer(status: str, body: str, *headers: str) -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def stream(*pieces: str, end: str = "data: [DONE]\n\n") -> bytes:
    """An event stream with these pieces of text; the connection closes after it."""
    events = [f"data: {json.dumps({'choices': [{'delta': {'content': piece}}]})}\n\n" for piece in pieces]
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    return (head + "".join(events) + end).encode()


class ScriptedEndpoint:
    """Gives one scripted answer after the other, and keeps what it was asked. None: silence."""

    def __init__(self, script: Sequence[bytes | None]) -> None:
        self.script = list(script)
        self.asked: list[dict[str, object]] = []
        self.headers: list[str] = []
        self.connections: set[asyncio.Task[None] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one answer."""
        self.connections.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length"))
        self.headers.append(head)
        self.asked.append(json.loads(await reader.readexactly(length)))
        reply = self.script.pop(0)
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def scripted(*script: bytes | None) -> AsyncIterator[tuple[ScriptedEndpoint, Endpoint]]:
    """The endpoint, served."""
    endpoint = ScriptedEndpoint(script)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield endpoint, Endpoint(f"http://127.0.0.1:{port}/v1", "tiny", "secret")
        finally:
            await asyncio.gather(*(connection for connection in endpoint.connections if connection))
