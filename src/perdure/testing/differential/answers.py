"""What of an answer must agree: all of it, but for what differs by right.

Times are the store's own. What a worker measured, and sends along, is compared as it is; what the store stamped is
only there or not there; what the store *decides* by (when a run is ready, when a lease ends, when a wait is over) is
told in units from now, or as never or long ago. A question that is open beyond its time has expired, whether a row says
so or not. Errors are their type and attributes; addresses in them differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from perdure.core.records import Checkpoint, Interrupt, InterruptState
from perdure.errors import PerdureError
from perdure.testing.differential.operations import UNIT_S

STAMPED: Final = frozenset({"Run.created_at", "Run.started_at", "Run.ended_at", "Thread.created_at",
    "Worker.started_at", "Worker.ended_at", "Claimed.created_at", "Claimed.now", "Wait.opened_at",
    "Interrupt.created_at", "Interrupt.answered_at", "Message.sent_at", "Effect.intended_at", "Effect.settled_at",
    "EffectEvent.at", "Delivery.created_at", "Delivery.settled_at", "MeterRow.at", "BudgetRow.created_at",
    "BudgetRow.updated_at"})  # fmt: skip
"""Times that are only there or not there."""

DECIDING: Final = frozenset({"Run.ready_at", "Run.deadline_at", "Claimed.deadline_at", "Worker.lease_until",
    "Wait.due_at", "Interrupt.expires_at", "Effect.lease_until", "Delivery.due_at"})  # fmt: skip
"""Times that are told in units from now; None where there is none."""

FAR: Final = 100_000
"""Units from now beyond which a time is never, or long ago: no program has so many."""

PLAIN: Final = frozenset({int, str, bytes, bool, type(None)})

ADDRESSES: Final = frozenset({"url", "path"})


def shown(answer: Any, now_us: int) -> Any:
    """The answer as plain data, without what differs by right."""
    if type(answer) in PLAIN:
        return answer
    if isinstance(answer, BaseException):
        return error(answer)
    if isinstance(answer, Checkpoint) and not answer.worker:
        answer = msgspec.structs.replace(answer, started_at=0, ended_at=0)  # the store filed it, by its own clock
    if isinstance(answer, Interrupt) and answer.state is InterruptState.OPEN and _is_due(answer.expires_at, now_us):
        answer = msgspec.structs.replace(answer, state=InterruptState.EXPIRED)
    if isinstance(answer, msgspec.Struct):
        kind = type(answer).__name__
        fields = msgspec.structs.asdict(answer).items()
        return {"is": kind} | {name: _field(f"{kind}.{name}", value, now_us) for name, value in fields}
    if isinstance(answer, Mapping):
        return {key: shown(value, now_us) for key, value in sorted(answer.items(), key=lambda item: str(item[0]))}
    if isinstance(answer, list | tuple):
        return [shown(each, now_us) for each in answer]
    if isinstance(answer, Enum):
        return answer.value
    return sorted(answer) if isinstance(answer, set | frozenset) else answer


def error(raised: BaseException) -> Any:
    """An error as plain data."""
    ids = raised.ids if isinstance(raised, PerdureError) else {}
    return {"raised": type(raised).__name__} | {name: ids[name] for name in sorted(ids) if name not in ADDRESSES}


def _field(name: str, value: Any, now_us: int) -> Any:
    if name in STAMPED:
        return None if value is None else "stamped"
    if name in DECIDING:
        return None if value is None else _from_now(value, now_us)
    return shown(value, now_us)


def _is_due(at_us: int | None, now_us: int) -> bool:
    return at_us is not None and at_us <= now_us


def _from_now(at_us: int, now_us: int) -> str:
    units = round((at_us - now_us) / (UNIT_S * 1_000_000))
    if abs(units) > FAR:
        return "never" if units > 0 else "long ago"
    return f"{units} units from now"


def parting(one: Any, other: Any, path: str = "") -> tuple[str, Any, Any]:
    """Where two plain data part: the path, and what each has there. They must not be equal."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(f"{path}.{key}", one[key], other[key]) for key in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(one, other, strict=True))]
    else:
        return path, one, other
    for where, mine, theirs in pairs:
        if mine != theirs:
            return parting(mine, theirs, where)
    raise AssertionError("equal data do not part")
