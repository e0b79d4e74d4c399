"""Which errors may go away by themselves: connection errors, time-outs, and HTTP 408, 425, 429 and 5xx.

The libraries are known by the names of their classes and never imported. A status, wherever an exception carries one,
decides alone: a 400 is final whatever its class. Only well-known attributes are read, and carefully: an exception's
properties are the user's code.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any, Final

TRANSIENT_STATUSES: Final = frozenset({408, 425, 429})
"""Besides every 5xx: request time-out, too early, too many requests."""

TRANSIENT_NAMES: Final = {
    "httpx": {"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError"},
    "httpcore": {"TimeoutException", "NetworkError", "RemoteProtocolError", "ProxyError"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError", "ServerTimeoutError"},
    "requests": {"ConnectionError", "Timeout", "ChunkedEncodingError"},
    "urllib3": {"TimeoutError", "ProtocolError", "NewConnectionError", "IncompleteRead"},
    "http": {"RemoteDisconnected", "IncompleteRead"},
    "openai": {"APIConnectionError", "APITimeoutError"},
    "anthropic": {"APIConnectionError", "APITimeoutError"},
    "botocore": {"EndpointConnectionError", "ConnectionClosedError", "ConnectTimeoutError", "ReadTimeoutError"},
}
"""By the package a class is defined in; subclasses count."""

FINAL_NAMES: Final = {
    "aiohttp": {"ClientSSLError"},
    "requests": {"SSLError"},
    "ssl": {"SSLCertVerificationError"},
}
"""Kinds of the above that another try does not mend: a certificate stays wrong."""

NO_ADDRESS: Final = socket.gaierror
"""The name of a host that nobody knows: nothing was sent."""

TRANSIENT_SQLSTATES: Final = ("40001", "40P01")
"""What a database says of a transaction that lost against another one: a serialization failure, a deadlock."""

_NETWORK_ERRNOS: Final = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ENETRESET, errno.ETIMEDOUT}
)

_CAUSES: Final = ("reason", "__cause__")
"""Where wrappers without a kind of their own (`URLError`, `MaxRetryError`) keep what happened."""

_WRAPPERS: Final = {"urllib": {"URLError"}, "urllib3": {"MaxRetryError"}}


def is_transient(error: BaseException) -> bool:
    """Whether another try may succeed. A group is transient if all its members are."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_transient(member) for member in error.exceptions)
    code = status(error)
    if code is not None:
        return code in TRANSIENT_STATUSES or 500 <= code < 600
    if is_named(error, FINAL_NAMES):
        return False
    if isinstance(error, ConnectionError | TimeoutError | NO_ADDRESS):
        return True
    if isinstance(error, OSError) and error.errno in _NETWORK_ERRNOS:
        return True
    if is_named(error, TRANSIENT_NAMES) or _attribute(error, "sqlstate") in TRANSIENT_SQLSTATES:
        return True
    causes = [_attribute(error, name) for name in _CAUSES] if is_named(error, _WRAPPERS) else []
    return any(isinstance(cause, BaseException) and is_transient(cause) for cause in causes)


def status(error: BaseException) -> int | None:
    """The HTTP status an exception carries, on itself or on its response; None if it carries none."""
    response = _attribute(error, "response")
    for holder in (error, response):
        for name in ("status_code", "status", "code", "http_status"):
            code = _as_status(_attribute(holder, name))
            if code is not None:
                return code
    if isinstance(response, Mapping):  # botocore
        metadata = response.get("ResponseMetadata")
        return _as_status(metadata.get("HTTPStatusCode")) if isinstance(metadata, Mapping) else None
    return None


def retry_after_s(error: BaseException, now_us: int) -> float | None:
    """How long the server asked to wait, in seconds from `now_us`; None if it did not say so intelligibly."""
    own = _attribute(error, "retry_after")
    if isinstance(own, timedelta):
        return max(own.total_seconds(), 0.0)
    for holder in (error, _attribute(error, "response")):
        headers = _headers(holder)
        if "retry-after-ms" in headers:
            milliseconds = _wait(headers["retry-after-ms"], now_us)
            return None if milliseconds is None else milliseconds / 1000
        if "retry-after" in headers:
            return _wait(headers["retry-after"], now_us)
    return None if own is None else _wait(own, now_us)


def _wait(value: object, now_us: int) -> float | None:
    """Seconds from a number, a number in text, or an HTTP date."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        wait = float(value)
    except (ValueError, OverflowError):
        wait = _until(str(value), now_us)
    return wait if 0 <= wait < float("inf") else None


def _until(date: str, now_us: int) -> float:
    """Seconds until an HTTP date, 0 if it has passed; NaN if it is none."""
    from email.utils import parsedate_to_datetime  # late: few ever need it, and every import of perdure would pay

    try:
        then = parsedate_to_datetime(date)
        then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
        return max(then.timestamp() - now_us / 1_000_000, 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return float("nan")


def _headers(holder: object) -> dict[str, Any]:
    """A response's headers by their lower-case names."""
    headers = _attribute(holder, "headers")
    if headers is None and isinstance(holder, Mapping):  # botocore
        metadata = holder.get("ResponseMetadata")
        headers = metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None
    try:
        pairs = headers.items() if hasattr(headers, "items") else ()
        return {_text(name).lower(): value for name, value in pairs}
    except (Exception, SystemExit):  # the edge of user code: what is called headers may be anything
        return {}


def _text(name: object) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else str(name)


def _as_status(value: object) -> int | None:
    """A number that can be an HTTP status; codes of other kinds (a WebSocket's 1006, `"rate_limit"`) are none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
        value = int(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600 else None


def is_named(error: BaseException, names: Mapping[str, set[str]]) -> bool:
    """Whether its class, or one above it, has one of these names in a package of that name."""
    return any(cls.__name__ in names.get(cls.__module__.partition(".")[0], ()) for cls in type(error).__mro__)


def _attribute(holder: object, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except (Exception, SystemExit):  # the edge of user code: a property that raises has nothing to tell
        return None
