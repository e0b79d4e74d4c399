"""Exceptions as text: what a record keeps of one.

Nothing is ever rebuilt from it, so an exception with any constructor, from any library, can be recorded in one process
and read in another. Making the text never raises, whatever the exception's `__str__` does.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import msgspec

from perdure.core.limits import ERROR_CHARS_MAX
from perdure.core.paths import type_name
from perdure.core.records import ErrorInfo
from perdure.errors import PerdureError

ID_CHARS: Final = 2_048
"""Of a text among an error's attributes."""

MEMBERS_MAX: Final = 8
"""Of the members of a group, those that its text names."""

_OWN_FRAMES: Final = __file__.rpartition("core")[0]
"""Frames of this package say nothing about the user's failure."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(ErrorInfo).decode


def error_info(error: BaseException, *, failed_keys: tuple[str, ...] = (), retry_in_s: float = 0.0) -> ErrorInfo:
    """An exception's qualified type name, message and traceback; `failed_keys` are the steps that caused it."""
    return ErrorInfo(
        type=printable(type_name(type(error))),
        message=printable(text_of(error)),
        traceback=printable(_safely(_traceback, error)),
        failed_keys=failed_keys,
        retry_in_s=retry_in_s,
        ids=_ids(error) if isinstance(error, PerdureError) else {},
    )


def text_of(error: BaseException) -> str:
    """What an exception says; of a group, what its members are and say. A group by itself says how many they are."""
    text = _safely(str, error)
    if not isinstance(error, BaseExceptionGroup):
        return text
    members = list(islice(_members(error), MEMBERS_MAX + 1))
    named = [f"{type_name(type(member))}: {_safely(str, member)}" for member in members[:MEMBERS_MAX]]
    return f"{text}: {'; '.join(named)}{'; and more' if len(members) > MEMBERS_MAX else ''}"


def _members(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The exceptions in a group and in the groups in it, in order."""
    left: list[BaseException] = list(reversed(group.exceptions))
    while left:
        member = left.pop()
        if isinstance(member, BaseExceptionGroup):
            left += reversed(member.exceptions)
        else:
            yield member


def _ids(error: PerdureError) -> dict[str, str | int]:
    """The attributes of an error of our own that are text or numbers."""
    return {
        name: printable(value, ID_CHARS) if isinstance(value, str) else value
        for name, value in error.ids.items()
        if isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**63)
    }


def encode_error(info: ErrorInfo) -> bytes:
    """The payload of a failed record."""
    return _encode(info)


def decode_error(data: bytes) -> ErrorInfo:
    """The error in a failed record. What cannot be read becomes an `ErrorInfo` that says so: a reader never fails."""
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        return ErrorInfo(type="unknown", message=f"the recorded error cannot be read: {error}")


def printable(text: str, limit: int = ERROR_CHARS_MAX) -> str:
    """Text that every store and terminal takes: no lone surrogate, no NUL, head and tail where it is too long."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    if len(text) <= limit:
        return text
    note = f"\n... {len(text) - limit:,} characters left out ...\n"
    half = max((limit - len(note)) // 2, 0)
    return text[:half] + note + text[len(text) - half :]


def one_line(error: BaseException, limit: int = ERROR_CHARS_MAX) -> str:
    """What an exception says, its notes too, on one line, after the name of its type; a time-out that says something
    needs no name. Never empty."""
    info = error_info(error)
    text = " ".join(" ".join((info.message, *_notes(error))).split())
    if not text or not isinstance(error, TimeoutError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return printable(text, limit)


def _notes(error: BaseException) -> list[str]:
    try:
        return [str(note) for note in getattr(error, "__notes__", ())]
    except (Exception, SystemExit):  # the edge of user code: what is called notes may be anything
        return []


def _safely(make: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return make(error)
    except (Exception, SystemExit) as trouble:  # the edge of user code: an exception's text may be anything
        return f"<no text: {type_name(type(trouble))} while it was made>"


def _traceback(error: BaseException) -> str:
    whole = traceback.TracebackException.from_exception(error, compact=True)
    _drop_own_frames(whole, set())
    return "".join(whole.format())


def _drop_own_frames(part: traceback.TracebackException | None, seen: set[int]) -> None:
    """Remove this package's frames from an exception, its causes and, in a group, its members."""
    if part is None or id(part) in seen:
        return
    seen.add(id(part))
    kept = [frame for frame in part.stack if not frame.filename.startswith(_OWN_FRAMES)]
    part.stack = traceback.StackSummary.from_list(kept)
    for other in (part.__cause__, part.__context__, *(part.exceptions or ())):
        _drop_own_frames(other, seen)
