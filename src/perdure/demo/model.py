"""A client for OpenAI-compatible chat endpoints: real HTTP, streamed.

The endpoint is named by `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`. The client itself never retries: each
failure becomes an error that carries what a step's retry policy looks at (a `status_code` and the answer's `headers`
where there was an answer; a `ConnectionError` or `TimeoutError` where there was none), so waiting and trying again is
perdure's part, where it is counted and survives a crash.

Server-sent events as in the HTML standard (section 9.2), as far as chat endpoints use them: `data:` lines, ended by
`[DONE]`.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.errors import UsageError

if TYPE_CHECKING:
    import httpx

MODEL_DEFAULT: Final = "gpt-4o-mini"
CONNECT_TIMEOUT_S: Final = 10.0
SILENCE_TIMEOUT_S: Final = 120.0
"""Longest wait for the next bytes: a small model on two busy cores takes its time over a prompt."""

ERROR_CHARS_MAX: Final = 300
"""Of an error's body, in the message."""


class ModelError(Exception):
    """The endpoint refused or failed; `status_code` and `headers` are its answer's."""

    def __init__(
        self, message: str, *, status_code: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.headers = dict(headers or {})


class ModelUnreachable(ModelError, ConnectionError):
    """No connection to the endpoint, or it broke before an answer came."""


class ModelTimeout(ModelError, TimeoutError):
    """The endpoint was silent for too long."""


class StreamBroken(ModelError, ConnectionError):
    """The stream ended, or broke, before the model was done; `partial` is what had come."""

    def __init__(self, message: str, *, partial: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, headers=headers)
        self.partial = partial


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the model is. Frozen, so that it can be a cache's key."""

    base_url: str
    model: str
    api_key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return f"{self.model} at {self.base_url}"


def endpoint_from(environ: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The endpoint that the environment names, or None."""
    base_url = environ.get("OPENAI_BASE_URL", "").rstrip("/")
    if not base_url:
        return None
    if not base_url.startswith(("http://", "https://")):
        raise UsageError(
            f"OPENAI_BASE_URL is {base_url!r}; give the address of an endpoint, such as http://127.0.0.1:8000/v1"
        )
    return Endpoint(base_url, environ.get("OPENAI_MODEL") or MODEL_DEFAULT, environ.get("OPENAI_API_KEY", ""))


class ModelClient:
    """One endpoint, one connection pool, for the event loop that made it."""

    def __init__(self, endpoint: Endpoint, *, silence_timeout_s: float = SILENCE_TIMEOUT_S) -> None:
        self.httpx = import_httpx()
        self.endpoint = endpoint
        timeout = self.httpx.Timeout(silence_timeout_s, connect=CONNECT_TIMEOUT_S)
        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        limits = self.httpx.Limits(max_connections=None)
        self.http = self.httpx.AsyncClient(timeout=timeout, headers=headers, limits=limits)

    async def chat(self, prompt: str, *, max_tokens: int, on_text: Callable[[str], None] | None = None) -> str:
        """The model's answer to one prompt. `on_text` is called with each piece as it arrives."""
        body = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        pieces: list[str] = []
        try:
            async with self.http.stream("POST", f"{self.endpoint.base_url}/chat/completions", json=body) as response:
                if response.status_code >= 400:
                    raise await refusal(response, self.endpoint)
                async for piece in read_stream(response, pieces):
                    if on_text is not None:
                        on_text(piece)
        except self.httpx.TimeoutException as error:
            raise ModelTimeout(f"{self.endpoint.name} was silent for too long ({type(error).__name__})") from error
        except self.httpx.TransportError as error:
            if pieces:
                raise StreamBroken(
                    f"the stream from {self.endpoint.name} broke: {error}", partial="".join(pieces)
                ) from error
            raise ModelUnreachable(f"{self.endpoint.name} cannot be reached: {error}") from error
        return "".join(pieces).strip()

    async def close(self) -> None:
        await self.http.aclose()


async def read_stream(response: httpx.Response, pieces: list[str]) -> AsyncIterator[str]:
    """The pieces of text of an event stream, also collected in `pieces`; `StreamBroken` if it ends too early."""
    done = False
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            done = True
            break
        text, finished = piece_of(data, response)
        done = done or finished
        if text:
            pieces.append(text)
            yield text
    if not done:
        raise StreamBroken(
            "the stream ended before the model was done", partial="".join(pieces), headers=response.headers
        )


def piece_of(data: str, response: httpx.Response) -> tuple[str, bool]:
    """The text in one event, and whether it says that the model is done."""
    try:
        event: dict[str, Any] = json.loads(data)
    except ValueError:
        raise StreamBroken(f"the stream holds no JSON: {data[:80]!r}", partial="", headers=response.headers) from None
    if "error" in event:
        raise ModelError(
            f"the endpoint failed: {str(event['error'])[:ERROR_CHARS_MAX]}", status_code=500, headers=response.headers
        )
    choices = event.get("choices") or [{}]
    text = (choices[0].get("delta") or {}).get("content") or ""
    return text, choices[0].get("finish_reason") is not None


async def refusal(response: httpx.Response, endpoint: Endpoint) -> ModelError:
    """What an answer of 400 or more means, in words."""
    text = (await response.aread()).decode("utf-8", "replace")[:ERROR_CHARS_MAX]
    hints = {
        401: "; set OPENAI_API_KEY",
        404: f"; does the endpoint serve {endpoint.model}? OPENAI_MODEL names another",
    }
    message = f"{endpoint.name} answered {response.status_code}{hints.get(response.status_code, '')}: {text}"
    return ModelError(message, status_code=response.status_code, headers=response.headers)


def import_httpx() -> Any:
    """httpx, which only the model client needs."""
    try:
        import httpx
    except ImportError:
        raise UsageError(
            "a model's endpoint takes httpx, which is not installed: pip install httpx (or perdure[demo])"
        ) from None
    return httpx
