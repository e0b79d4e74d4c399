"""Durations, sizes, times and foreign text, written for people. Pure.

Ids, names and messages come from users and from the outside world: `clean` shows control characters as escapes, so
that no thread id can move the cursor, colour the screen or break a table.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_SECOND: Final = 1_000_000

_BIDI: Final = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A)) | {0x2028, 0x2029, 0xFEFF}
"""Characters that reorder or split the line they stand in."""


def clean(text: str) -> str:
    """The text on one line, with control characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return repr(character)[1:-1]
    if code in _BIDI or 0xD800 <= code < 0xE000:
        return f"\\u{code:04x}"
    return character


def clean_block(text: str) -> str:
    """Foreign text of several lines."""
    return "\n".join(clean(line) for line in text.splitlines())


def short_type(name: str) -> str:
    """An exception's name without its module."""
    return clean(name.rpartition(".")[2])


def first_line(text: str) -> str:
    """The first line that says something, cleaned."""
    return next((clean(line.strip()) for line in text.splitlines() if line.strip()), "")


def duration(us: int) -> str:
    """A span in its two largest units: `120 ms`, `3.41 s`, `2 min 05 s`, `3 h 12 min`, `2 d 04 h`."""
    if us < 1_000:
        return f"{max(us, 0)} µs"
    if us < 10_000:
        return f"{us / 1_000:.1f} ms"
    if us < _SECOND:
        return f"{us // 1_000} ms"
    seconds = us // _SECOND
    if seconds < 60:
        return f"{us / _SECOND:.2f} s"
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    if seconds < 86_400:
        return f"{seconds // 3_600} h {seconds // 60 % 60:02} min"
    return f"{seconds // 86_400} d {seconds // 3_600 % 24:02} h"


def ago(us: int, *, now_us: int) -> str:
    """How long something is past, in one unit: `4 s ago`, `3 min ago`."""
    seconds = max(now_us - us, 0) // _SECOND
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago" if seconds else "now"


def away(us: int, *, now_us: int) -> str:
    """How far off a time is, in its two largest units, or how long it is past: `in 3 h 12 min`, `4 min ago`."""
    return f"in {duration(us - now_us)}" if us > now_us else ago(us, now_us=now_us)


def size(count: int) -> str:
    """Bytes, in binary units."""
    if count < 1_024:
        return f"{count} B"
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 1_024:.1f} KiB"


def count(number: int, noun: str, many: str | None = None) -> str:
    """`1 step`, `2 steps`, `12,000 steps`; `many` is the plural, where it is not made with an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {many or noun + 's'}"


def clock(us: int) -> str:
    """The local time of day, to the millisecond."""
    return _local(us).strftime("%H:%M:%S.") + f"{us // 1_000 % 1_000:03}"


def moment(us: int) -> str:
    """Local date, time and offset, to the second."""
    return _local(us).strftime("%Y-%m-%d %H:%M:%S %z")


def iso(us: int) -> str:
    """UTC in RFC 3339, to the microsecond: what JSON carries."""
    return datetime.fromtimestamp(us // _SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{us % _SECOND:06}Z"


def _local(us: int) -> datetime:
    return datetime.fromtimestamp(us // _SECOND).astimezone()
