"""What a failing model raises, in the shape in which the clients of real ones raise it.

An answer of 400 or more is an exception with a `status_code` and a `response` that has the headers, as in the OpenAI
and Anthropic clients; no answer at all is a `ConnectionError` or a `TimeoutError`. That is what a step's retry policy
looks at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from perdure.errors import UsageError


@dataclass(frozen=True, slots=True)
class Response:
    """The answer that an error came in."""

    status_code: int
    headers: Mapping[str, str]


class ModelRefused(Exception):
    """The model answered with a status of 400 or more."""

    def __init__(self, message: str, *, status_code: int, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.message = message
        self.status_code = status_code
        self.response = Response(status_code, MappingProxyType(dict(headers)))


class ModelTimeout(TimeoutError):
    """The model was silent for too long."""


class ModelUnreachable(ConnectionResetError):
    """The connection was closed before an answer came."""


class StreamBroken(ConnectionResetError):
    """The connection was closed in the middle of a stream; `partial` is the text that had come."""

    def __init__(self, message: str, *, partial: str) -> None:
        super().__init__(message)
        self.partial = partial


class Unscripted(UsageError):
    """The model was asked for something that its script has no answer to. Final: no retry mends a script."""
