"""Which of an agent's verbs a record is of: a step, a question, a timer, a child. Pure.

A record keeps what came, not who called. A question is known by its own row, a child by the run that its start names;
the other verbs by the key that they are recorded under, and by what they record there. A step that bears such a name
and records the same is taken for the verb, which changes a mark on a page and nothing else.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

import msgspec

from perdure.core.digests import digest64
from perdure.core.records import Checkpoint, run_id

_PLACE: Final = re.compile(r"^(?:.*/)?([^/#~]*)(?:#\d+)?(?:~(\d+))?$", re.DOTALL)
_ASKED: Final = re.compile(r"^(.+)~\d{1,9}\?\d{0,9}$", re.DOTALL)
_OF_BUDGET: Final = re.compile(r"^~\d+\$\d+$", re.ASCII)
_BESIDE: Final = re.compile(r"^(.+)~\d{1,9}\+(\w+)(?: \d+)?(?:@\d+)?$", re.DOTALL)
_NIL: Final = b"\xc0"
_LIMITS: Final = (b"\xc2", b"\xc3")
_TIMERS: Final = ("sleep", "sleep_until")


class Verb(StrEnum):
    """What was called."""

    STEP = "step"
    QUESTION = "question"
    TIMER = "timer"
    LIMIT = "timeout"
    RECEIVE = "receive"
    START = "start"
    RESULT = "result"
    """Of a child."""


WAITS: Final = frozenset({Verb.QUESTION, Verb.TIMER, Verb.LIMIT, Verb.RECEIVE, Verb.RESULT})
"""What takes time in which nobody works."""


def verb_of(row: Checkpoint, *, asked: bool) -> Verb:
    """The verb behind a step's record; `asked` says whether a question was asked under its key."""
    name = name_of(row.key)
    if asked:
        return Verb.QUESTION
    if name.startswith("result:"):
        return Verb.RESULT
    if name.startswith("start:") and (row.failed or started_by(row) is not None):
        return Verb.START
    if row.digest != 0 or row.key.startswith("="):
        return Verb.STEP
    if name in _TIMERS and row.payload == _NIL:
        return Verb.TIMER
    if name == "timeout" and row.payload in _LIMITS:
        return Verb.LIMIT
    return Verb.RECEIVE if name == "receive" else Verb.STEP


def name_of(key: str) -> str:
    """The name in a key, without the scopes before it and the number of the repeat behind it."""
    found = _PLACE.match(key)
    return found[1] if found else key


def try_before(key: str) -> tuple[str, int] | None:
    """The step, and the number of its failed try, after which the wait under this key stands; None for other waits."""
    step, _, number = key.rpartition("~")
    return (step, int(number)) if step and number.isdecimal() and len(number) < 10 else None


def shown_key(key: str) -> str:
    """The key as a page shows it. Where it is asked what became of a try of an effect, the step's, with a `?`; of what
    was used beside one, the step's, with what that was for."""
    if _OF_BUDGET.match(key) is not None:
        return "budget?"  # whose, its question says
    if (found := _ASKED.match(key)) is not None:
        return f"{found[1]}?"
    found = _BESIDE.match(key)
    return key if found is None else f"{found[1]} ({found[2]})"


def for_budget(key: str) -> str | None:
    """The step that waits under this key for what is in flight to leave some of its budget; None for other waits."""
    again = try_before(key)
    return again[0].removesuffix("$") if again is not None and again[0].endswith("$") else None


def started_by(row: Checkpoint) -> int | None:
    """The run that the record of a start names."""
    match _decoded(row.payload):
        case [int() as number, str()] if not isinstance(number, bool):
            return number
        case _:
            return None


def is_result_of(row: Checkpoint, child: int) -> bool:
    """Whether this child's end was waited for here: its id is all that the record's digest is of."""
    return row.digest == digest64(((run_id(child),), {}))


def received(payload: bytes) -> tuple[str, Any] | None:
    """The label of a message that was taken, and what it said; None where the record does not say."""
    match _decoded(payload):
        case [str() as label, value]:
            return label, value
        case _:
            return None


def _decoded(payload: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return None
