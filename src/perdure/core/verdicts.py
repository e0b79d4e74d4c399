"""What a `verify` function says of an effect, and what a person may answer about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from perdure.core.codec import Codec


@dataclass(frozen=True, slots=True)
class Happened:
    """The effect happened, and this is its result."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """The effect did not happen, and never will: it may be dispatched again."""


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """The provider cannot tell yet."""

    why: str = "the provider cannot tell"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody will find out: the effect is left unknown, and raises `OutcomeUnknown`."""

    why: str = "nobody can find out"


Verdict = Happened | DidNotHappen | StillUnknown

ANSWER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "happened": {"type": ["boolean", "null"], "description": "true, false, or null for: nobody will ever know"},
        "result": {"description": "what it returned, where it happened"},
    },
    "required": ["happened"],
    "additionalProperties": False,
}
"""Of the answer to the question what became of an effect."""


class _Answer(msgspec.Struct):
    happened: bool | None
    result: Any = None


def verdict_of(answer: bytes, returns: Codec) -> Happened | DidNotHappen | GiveUp:
    """What a person's answer says. Raises `NotSerializable` where the result is not one of that effect."""
    told = msgspec.msgpack.decode(answer, type=_Answer)
    if told.happened is None:
        return GiveUp()
    return Happened(returns.from_builtins(told.result)) if told.happened else DidNotHappen()


def answer_of(verdict: Happened | DidNotHappen | GiveUp) -> dict[str, Any]:
    """The same the other way round."""
    match verdict:
        case Happened(result):
            return {"happened": True, "result": result}
        case DidNotHappen():
            return {"happened": False}
        case GiveUp():
            return {"happened": None}
