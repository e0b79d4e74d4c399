"""What an exception says of an effect: that it did not happen, or that nobody knows.

Whoever sends a request and gets no answer does not know whether it was carried out. The rule is that of the strictest
reader: only what cannot have reached the provider, or what it has refused, did not happen; after a time-out, a lost
connection or a 5xx nobody knows. An exception without anything to do with the network is the code's own word: it says
that the effect did not happen. (Code that knows better raises `OutcomeUnknown`.)
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from perdure.core.transience import NO_ADDRESS, is_named, is_transient, status
from perdure.errors import OutcomeUnknown


class Happening(Enum):
    """What became of an effect whose body raised."""

    REFUSED = "refused"
    """It did not happen, and another try would be refused as well."""
    NOT_SENT = "not sent"
    """It did not happen this time."""
    UNKNOWN = "unknown"


_NOT_NOW: Final = frozenset({425, 429})
"""Statuses of a server that has not looked at the request."""

_AT_WORK: Final = frozenset({408, 409})
"""Request time-out; and conflict, which is also how a provider says that the first request under this key is still at
work."""

_NOT_CONNECTED: Final = {
    "httpx": {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"},
    "httpcore": {"ConnectError", "ConnectTimeout", "PoolTimeout"},
    "aiohttp": {"ClientConnectorError", "ConnectionTimeoutError"},
    "requests": {"ConnectTimeout"},
    "urllib3": {"NewConnectionError", "ConnectTimeoutError"},
    "botocore": {"EndpointConnectionError", "ConnectTimeoutError"},
}
"""Errors of libraries that come before a connection: nothing has left the machine."""


def what_happened(error: BaseException) -> Happening:
    """What this exception says of the effect whose body raised it."""
    if isinstance(error, OutcomeUnknown):
        return Happening.UNKNOWN
    if isinstance(error, BaseExceptionGroup):
        return _worst([what_happened(member) for member in error.exceptions])
    code = status(error)
    if code is not None:
        if code in _NOT_NOW:
            return Happening.NOT_SENT
        return Happening.UNKNOWN if code in _AT_WORK or code >= 500 else Happening.REFUSED
    if _never_left(error):
        return Happening.NOT_SENT
    return Happening.UNKNOWN if is_transient(error) else Happening.REFUSED


def _never_left(error: BaseException) -> bool:
    # (An unreachable network is no such error: an established connection can end in it as well.)
    if isinstance(error, ConnectionRefusedError | NO_ADDRESS):
        return True
    return is_named(error, _NOT_CONNECTED)


def _worst(found: list[Happening]) -> Happening:
    """What is known of several requests together."""
    return next((each for each in (Happening.UNKNOWN, Happening.REFUSED) if each in found), Happening.NOT_SENT)
