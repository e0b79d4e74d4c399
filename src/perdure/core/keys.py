"""The keys of steps: structural names, the same on every execution of the same code.

A key is the path of the scopes it lies in, the step's name, and `#n` for the n-th repeat of that name in that scope:
`fetch`, `fetch#2`, `3/1/fetch`. A scope belongs to one task; the n-th task that is started in a scope gets the path of
that scope plus `n/`, at the moment it is started (`#n/` if it closes an async generator). So no key depends on which
branch runs or ends first.

No two places share a key. Names are escaped: `/`, `#`, `=`, `~` and `%` inside a name become `%` and two hex digits,
as do control characters and lone surrogates, which not every store takes. A key that a caller chose starts with
`=`, one that was too long holds a `~` and a digest, and neither sign occurs otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from perdure.core.limits import KEY_CHARS_MAX

PATH_CHARS_MAX: Final = KEY_CHARS_MAX // 2
"""A deeper path is replaced by its digest: a chain of tasks, each started by the one before, stays linear in memory."""

_UNSAFE: Final = "%~\x00-\x1f\x7f\ud800-\udfff"
_IN_NAMES: Final = re.compile(f"[/#={_UNSAFE}]")
_BESIDE: Final = re.compile(r"~[0-9]{1,9}\+")
_IN_GIVEN: Final = re.compile(f"[{_UNSAFE}]")


class Scope:
    """Names the steps of one task, and the tasks it starts."""

    __slots__ = ("_children", "_closings", "_counts", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._children = 0
        self._closings = 0
        self._counts: dict[str, int] = {}

    @classmethod
    def root(cls) -> Scope:
        """The scope of the agent function itself, at the start of a super-step."""
        return cls("")

    def child(self) -> Scope:
        """The scope of the next task started here."""
        self._children += 1
        return _scope(f"{self._path}{self._children}/")

    def closing(self) -> Scope:
        """The scope of a task that closes an async generator which was left open here. The event loop starts it at a
        moment of its own, before or after tasks that the code starts; so it is not counted with them."""
        self._closings += 1
        return _scope(f"{self._path}#{self._closings}/")

    def key(self, name: str) -> str:
        """The key of the next call of that name here."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        key = self._path + _escaped(name) if count == 1 else f"{self._path}{_escaped(name)}#{count}"
        return key if len(key) <= KEY_CHARS_MAX else _shortened(key)


def given(key: str) -> str:
    """The key of a call that was given its own: absolute within the super-step, whatever task makes it."""
    whole = "=" + _IN_GIVEN.sub(_escape, key)
    return whole if len(whole) <= KEY_CHARS_MAX else _shortened(whole)


def retry_place(key: str, attempt: int) -> str:
    """Where a step waits after a try that failed: a place of its own beside the step's key. (A `~` with a number of so
    few digits is in no key.)"""
    place = f"{key}~{attempt}"
    return place if len(place) <= KEY_CHARS_MAX else f"~{_digest(key)}~{attempt}"


def ask_place(key: str, attempt: int, again: int = 0) -> str:
    """Where an effect waits for somebody to say what became of this try of it, the first time or `again`; in no key, as
    in `retry_place`."""
    return f"{retry_place(key, attempt)}?{again or ''}"


def place_beside(key: str, attempt: int, what: str, fence: int) -> str:
    """Where a claim files what something has used beside a try that has no record of its own: the undo of an effect, or
    who asked its provider; or a try that was cancelled. In no key, as in `retry_place`; nobody replays it."""
    return f"{retry_place(key, attempt)}+{what}@{fence}"


def is_beside(key: str) -> bool:
    """Whether this is such a place."""
    return "+" in key and _BESIDE.search(key) is not None


def budget_place(budget: int, rev: int) -> str:
    """Where the steps of a super-step ask about a budget that was set so often; in no key, as in `retry_place`."""
    return f"~{budget}${rev}"


def meant(words: Collection[str], *, key: str, name: str) -> str | None:
    """The one of these words by which people mean this step: its key, else the key that its caller gave it, else its
    name. None if there is none."""
    if key in words:
        return key
    own = next((word for word in words if given(word) == key), None) if key.startswith("=") else None
    return own if own is not None else name if name in words else None


def _scope(path: str) -> Scope:
    return Scope(path if len(path) <= PATH_CHARS_MAX else f"~{_digest(path)}/")


@lru_cache(maxsize=4096)
def _escaped(name: str) -> str:
    """A name without special characters; for the empty one a lone `%`, which no other name gives."""
    return _IN_NAMES.sub(_escape, name) if name else "%"


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"%{code:02X}" if code < 0x100 else f"%u{code:04X}"


def _shortened(key: str) -> str:
    """The head of a key and the digest of the whole."""
    digest = _digest(key)
    return f"{key[: KEY_CHARS_MAX - len(digest) - 1]}~{digest}"


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=20).hexdigest()
