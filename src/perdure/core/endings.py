"""How a super-step ends: the closed union that an execution turns into one write.

Decided from what the agent returned or raised, or from outside (a lost lease, a drain, a divergence); whichever comes
first stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perdure.core.records import HeldReason


class Again:
    """Returned by an agent: end this super-step and call the agent again with these arguments.

    The state is saved, and the journal starts empty: resuming costs the newest super-step only, however long the run
    has lived.
    """

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        given = [repr(value) for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"Again({', '.join(given)})"


@dataclass(frozen=True, slots=True)
class Returned:
    """The agent returned a result (or an `Again`)."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The agent raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Held:
    """Going on would be wrong until a person has looked."""

    reason: HeldReason
    detail: str


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The worker drains: another one goes on."""


@dataclass(frozen=True, slots=True)
class Parked:
    """It only waits, and the store has let go of it: nothing is left to be written."""

    timed: bool = False
    """Its time comes by itself: somebody is to look when it does."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The run is not this worker's any more: nothing is written."""

    why: str


Ending = Returned | Raised | Held | HandedBack | Parked | Lost


def why_over(ending: Ending | None, super_step: int) -> str:
    """For code that is told to stop: what has ended it."""
    match ending:
        case Lost(why):
            return f"lease lost: {why}"
        case HandedBack():
            return "handed back, its worker drains"
        case Parked():
            return "parked, it only waits"
        case Held(reason):
            return f"held as {reason}"
        case _:
            return f"super-step {super_step} has ended"
