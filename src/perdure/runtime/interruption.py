"""Interruptions: what ends a run's code from outside, and still lets it clean up.

A cancellation or a deadline cancels the agent's task, as `asyncio` would: the body in flight is cancelled, `finally`
and `except CancelledError` run, and may call verbs. Whatever the code returns or raises after it, the run has lost: it
ends as `cancelled`, or fails with `DeadlineExceeded`.

An execution that begins when the interruption is known already, since a worker died in the cleaning up, say, must be
interrupted at the same place as before. That place is where the recorded steps end (`turns.py`).

Cleaning up has a bound (`CleaningUp`): the run has lost already, and whoever is told so must not find it at work for
ever.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perdure.core.endings import Raised
from perdure.errors import TimedOut

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Its cancellation was requested; durable, and nobody takes it back."""

    reason: str

    def __str__(self) -> str:
        return f"cancelled: {self.reason}"


@dataclass(frozen=True, slots=True)
class Overdue:
    """Its deadline has come."""

    def __str__(self) -> str:
        return "its deadline has come"


Interruption = Cancelled | Overdue


LOOKS: Final = 20
"""How often the time of cleaning up is looked at: it is measured in as many parts."""


class CleaningUp:
    """What code does after its interruption: for `clean_up_s` of a worker's time, and no longer. Then its super-step is
    closed, and ends as the interruption says.

    Time that is parked does not count (past a deadline nothing is parked, so all counts), nor does time in which
    nothing can be recorded: a part of it counts if the lease is believed where that part ends. A worker that takes the
    run over, or takes it up again, gives it the whole time anew.
    """

    def __init__(self, at: SuperStep) -> None:
        self._at = at
        self._left = LOOKS
        self._timer = self._begin()

    def end(self) -> None:
        """It has ended."""
        self._timer.cancel()

    def _begin(self) -> asyncio.TimerHandle:
        # In a context of its own: that of the agent would hold on to it.
        return asyncio.get_running_loop().call_later(self._at.host.clean_up_s / LOOKS, self._look, context=Context())

    def _look(self) -> None:
        at = self._at
        if not at.parking.under_way and at.host.trust.holds:
            self._left -= 1
        if self._left > 0:
            self._timer = self._begin()
        else:
            limit = f"cleaning up did not end within {at.host.clean_up_s:g} s (clean_up_s of its worker)"
            at.close(Raised(TimedOut(f"{limit}: it was broken off")))
