"""Records for people: as JSON for listings, the command line, a dashboard; a divergence in words.

Lenient where the codec is strict: it knows no types, shows whatever is there, and never raises. The result always
passes through `json.dumps(allow_nan=False)`.
"""

from __future__ import annotations

import math
import reprlib
from base64 import b64encode
from datetime import datetime
from typing import Any, Final

import msgspec

from perdure.core.errors import printable
from perdure.core.records import Checkpoint
from perdure.core.snapshot import spilled

CHARS_SHOWN_MAX: Final = 64 * 1024
"""What one record may take on a screen, roughly; the record itself is not changed by being looked at."""

_decode: Final = msgspec.msgpack.Decoder().decode


def render(data: bytes, limit: int = CHARS_SHOWN_MAX) -> Any:
    """What a payload holds, as JSON. Texts, lists and dicts are cut once `limit` characters have been shown."""
    if (blob := spilled(data)) is not None:
        return {"$blob": blob.hex()}
    try:
        return to_jsonable(_decode(data), limit)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        return {"$unreadable": str(error), "$bytes": b64encode(data[:256]).decode()}


def to_jsonable(value: Any, limit: int = CHARS_SHOWN_MAX) -> Any:
    """A decoded value as JSON: bytes as `{"$bytes": base64}`, NaN and infinities as text, keys as text."""
    return _Screen(limit).show(value, 0)


class _Screen:
    """Counts down the characters that may still be shown."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def show(self, value: Any, depth: int) -> Any:
        match value:
            case None | bool():
                self.left -= 4
                return value
            case int():
                return self._number(value)
            case float():
                self.left -= 8
                return value if math.isfinite(value) else str(value)
            case str():
                return self._text(value)
            case bytes() | bytearray() | memoryview():
                return {"$bytes": self._text(b64encode(bytes(value[: max(self.left, 0) + 3])).decode())}
            case _ if depth > 100:
                return "... nested deeper"
            case dict():
                return self._dict(value, depth)
            case list() | tuple() | set() | frozenset():
                return self._list(value, depth)
        return self._other(value)

    def _number(self, value: int) -> Any:
        self.left -= 8
        return value if value.bit_length() <= 64 else f"an int of {value.bit_length():,} bits"

    def _text(self, text: str) -> str:
        room = max(self.left, 0)
        self.left -= len(text)
        text = text if len(text) <= room else f"{text[:room]}... {len(text) - room:,} more characters"
        return printable(text, len(text) * 6)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        shown: dict[str, Any] = {}
        for key, part in value.items():
            if self.left <= 0:
                shown["..."] = f"{len(value) - len(shown):,} more"
                break
            shown[self._text(key if isinstance(key, str) else str(key))] = self.show(part, depth + 1)
        return shown

    def _list(self, value: Any, depth: int) -> Any:
        shown: list[Any] = []
        for part in value:
            if self.left <= 0:
                shown.append(f"... {len(value) - len(shown):,} more")
                break
            shown.append(self.show(part, depth + 1))
        return shown

    def _other(self, value: Any) -> Any:
        return self._text(value.isoformat() if isinstance(value, datetime) else repr(value))


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120


def divergence_of_effect(key: str, effect: str, intended: bytes, now: bytes) -> str:
    """The same for an effect whose arguments are in the ledger."""
    return (
        f"effect {key!r} is in the ledger as {effect} with the arguments {_short.repr(render(intended))}; now the code "
        f"calls it with {_short.repr(render(now))}. It was dispatched with the first, so it is not dispatched with the "
        "others: deploy the code that did, or let the arguments depend on recorded steps only, then release the run"
    )


def divergence(record: Checkpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Both sides of a divergence, and what to do."""
    given = ", ".join(
        [_short.repr(value) for value in args] + [f"{name}={_short.repr(value)}" for name, value in kwargs.items()]
    )
    digest = f"{record.digest & (1 << 64) - 1:016x}"
    return (
        f"step {record.key!r} in super-step {record.super_step} was recorded (try {record.attempt}, under fence "
        f"{record.fence}) with arguments of digest {digest}; now the code calls it with other ones: ({given}). "
        "Either the code changed under the run, or the order of its branches is not fixed: deploy the code that "
        "recorded it, or give the step a key of its own with .options(key=…), then release the run"
    )
