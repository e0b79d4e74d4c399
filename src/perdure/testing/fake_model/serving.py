"""The fake model behind an OpenAI-compatible endpoint on loopback, for clients that cannot be replaced by a function.

`POST …/chat/completions`, whole or streamed as server-sent events, and `GET …/models`. One request a connection, which
every HTTP client copes with. A stream that breaks is one whose last chunk never comes: a client sees an incomplete
body, as it does when a server dies. Who asks is not known here, so a script by step does not apply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, assert_never

from perdure.testing.fake_model.errors import Unscripted
from perdure.testing.fake_model.fake import request_of
from perdure.testing.fake_model.words import (
    REASONS,
    Breaks,
    Disconnection,
    Refusal,
    Reply,
    Silence,
    Stream,
    ToolCall,
    reply,
)

if TYPE_CHECKING:
    from perdure.testing.fake_model.fake import FakeModel

MODEL: Final = "fake-model"
HEAD_BYTES_MAX: Final = 64 * 1024

Headers = Mapping[str, str]


@asynccontextmanager
async def served(model: FakeModel, port: int) -> AsyncIterator[str]:
    """Serve it; gives the base URL, which ends in `/v1`."""
    endpoint = _Endpoint(model)
    server = await asyncio.start_server(endpoint.converse, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()
        await endpoint.close()


class _Endpoint:
    """Its connections, each good for one request."""

    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self._conversations: set[asyncio.Task[Any]] = set()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. A client that hangs up has its reasons."""
        task = asyncio.current_task()
        assert task is not None
        self._conversations.add(task)
        try:
            await self._answer(reader, _Answer(writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:  # the endpoint closes: a stream's own callback would log what is raised here
            pass
        finally:
            self._conversations.discard(task)
            writer.close()

    async def close(self) -> None:
        """Hang up on whoever still waits."""
        for task in tuple(self._conversations):
            task.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, answer: _Answer) -> None:
        try:
            method, path, raw = await _heard(reader)
        except (ValueError, asyncio.LimitOverrunError):
            return  # that was not HTTP
        if (method, path.rstrip("/")[-7:]) == ("GET", "/models"):
            await answer.whole(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        elif method != "POST" or not path.endswith("/chat/completions"):
            await answer.error(404, f"the fake model has no {method} {path}; it has POST /v1/chat/completions")
        else:
            body = _document(raw)
            if body is None:
                await answer.error(400, "the body of a request is a JSON object")
            else:
                await self._complete(body, reader, answer)

    async def _complete(self, body: dict[str, Any], reader: asyncio.StreamReader, answer: _Answer) -> None:
        streams = bool(body.pop("stream", False))
        try:
            said = await self.model.ask(request_of(body.pop("messages", None), body))
        except Unscripted as error:
            await answer.error(400, str(error))
            return
        await asyncio.sleep(said.delay_s)  # what a slow model is
        name = str(body.get("model", MODEL))
        match said.word:
            case Reply() as whole if not streams:
                await answer.whole(200, completion(whole, name))
            case Reply(text, tools, finish):
                pieces = ((text,) if text else ()) + tools
                await answer.events(chunks(pieces, name, finish=finish))
            case Stream(pieces, breaks) if streams:
                events = chunks(pieces, name, finish=None if breaks else reply(*pieces).finish)
                await answer.events(events, breaks=breaks)
            case Stream(pieces, breaks=None):
                await answer.whole(200, completion(reply(*pieces), name))
            case Stream(breaks=Refusal() as refusal) | (Refusal() as refusal):
                after = refusal.retry_after
                await answer.error(refusal.status, refusal.message, {} if after is None else {"retry-after": after})
            case Silence():
                await reader.read()  # until the client has had enough
            case Stream() | Disconnection():
                pass
            case BaseException() as raised:
                await answer.error(500, f"{type(raised).__name__}: {raised}")
            case _:
                assert_never(said.word)


async def _heard(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """A request's method, path and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    return method, path, await reader.readexactly(int(headers.get("content-length", 0)))


def _document(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


class _Answer:
    """The answer on one connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def whole(self, status: int, document: Any, headers: Headers | None = None) -> None:
        """A JSON document."""
        body = json.dumps(document).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})})
        self._writer.write(body)
        await self._writer.drain()

    async def error(self, status: int, message: str, headers: Headers | None = None) -> None:
        """A refusal in the form of the OpenAI API."""
        await self.whole(status, error_document(status, message), headers)

    async def events(self, events: Iterator[Any], breaks: Breaks = None) -> None:
        """Server-sent events, each a chunk of its own; of an answer that is cut, the end is missing."""
        self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        for event in events:
            await self._chunk(f"data: {json.dumps(event)}\n\n")
        if breaks == "cut":
            return
        last = json.dumps(error_document(breaks.status, breaks.message)) if breaks else "[DONE]"
        await self._chunk(f"data: {last}\n\n")
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _chunk(self, text: str) -> None:
        data = text.encode()
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()
        await asyncio.sleep(0)  # the reader's turn: what comes in pieces is to be read in pieces

    def _head(self, status: int, headers: Headers) -> None:
        reason = REASONS.get(status, "OK" if status == 200 else "error")
        lines = [
            f"HTTP/1.1 {status} {reason}",
            "connection: close",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def error_document(status: int, message: str) -> dict[str, Any]:
    """An error as the API tells it."""
    kind = "invalid_request_error" if status < 429 else "rate_limit_error" if status == 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def completion(whole: Reply, model: str) -> dict[str, Any]:
    """A reply as the API's `chat.completion`."""
    message: dict[str, Any] = {"role": "assistant", "content": whole.text or None}
    if whole.tools:
        message["tool_calls"] = [_tool(call) for call in whole.tools]
    return {
        "id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": whole.finish, "logprobs": None}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }  # fmt: skip


def chunks(pieces: tuple[str | ToolCall, ...], model: str, *, finish: str | None) -> Iterator[dict[str, Any]]:
    """A reply as the API's `chat.completion.chunk`s; without `finish`, the last one is missing, as if it broke off."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {
            "id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 0, "model": model, "choices": [choice]
        }  # fmt: skip

    yield chunk({"role": "assistant", "content": ""})
    tools = 0
    for piece in pieces:
        if isinstance(piece, str):
            yield chunk({"content": piece})
        else:
            yield chunk({"tool_calls": [{"index": tools, **_tool(piece)}]})
            tools += 1
    if finish is not None:
        yield chunk({}, finish)


def _tool(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": json.dumps(call.arguments)}}
