"""The waker: tells the runs in a worker's hands what has come for them.

Most runs that wait are parked, and the store wakes them. This is for the others: a run of which one branch waits while
another works, and any run whose cancellation was requested. The waker looks when a hint comes, when the time of a wait
does, and at the fallback poll. A hint may be for any of them: one query tells which waits of all are ready by now, and
one which runs were cancelled. A time is that of one run, and only that one is asked about. With nothing in hand a look
asks nothing.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Final

from perdure.runtime.interruption import Cancelled
from perdure.runtime.service import came, serve
from perdure.store.protocol import Hint

if TYPE_CHECKING:
    from perdure.runtime.execution import Execution
    from perdure.runtime.tenure import Tenure
    from perdure.runtime.waiting import Pending

REST_S: Final = 0.002
"""Between two looks at least: what comes in one moment is seen in one look."""


class Waker:
    """Looks for one tenure."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._wake = asyncio.Event()
        self._told = False
        """Whether something may have come for any run, besides times that are due."""
        self.looks = 0
        """How many looks have begun."""
        self._at_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = tenure.store.listen(self._hear)

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            await serve("waker", self._tick)
        finally:
            self._deaf()
            if self._timer is not None:
                self._timer.cancel()

    def look(self) -> None:
        """Something may have come."""
        self._told = True
        self._wake.set()

    def look_at(self, at_s: float | None) -> None:
        """Look at this time on the machine's monotonic clock, too."""
        if at_s is None or (self._at_s is not None and self._at_s <= at_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        delay_s = max(0.0, at_s - self._tenure.clock.monotonic())
        # In a context of its own: that of the agent which waits would hold on to it after it has been parked.
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._due, context=Context())

    async def why_cancelled(self, run: int) -> str:
        """The reason that is on the run's row."""
        row = await self._tenure.reads.runs.one(run)
        return (row.cancel if row is not None else None) or "no reason is known"

    def _due(self) -> None:
        self._timer = self._at_s = None
        self._wake.set()

    async def _tick(self) -> float:
        if not await came(self._wake, self._tenure.settings.poll_s):
            self._told = True
        self._wake.clear()
        told, self._told = self._told, False
        try:
            await self._look(told)
        except BaseException:
            self.look()  # what was known is lost: look again
            raise
        return REST_S

    async def _look(self, told: bool) -> None:
        self.looks = look = self.looks + 1
        executions = dict(self._tenure.executions)  # those of now: an answer is not for one that begins meanwhile
        if not executions or self._tenure.lost.is_set():
            return
        cancelled = await self._tenure.store.cancellations(self._tenure.worker)
        for run, reason in cancelled.items():
            if run in executions:
                executions[run].interrupt(Cancelled(reason))
        due = [run for run, execution in executions.items() if self._is_due(execution)]
        others = [run for run in executions.keys() - due if told and _pending(executions[run])]
        found = await self._tenure.store.waits(due) if due else []
        if others:
            found += await self._tenure.store.waits(others, only_ready=True)
        for wait in found:
            if (current := executions[wait.run].current) is not None:
                current.waiting.feed(wait)
        for run in (*due, *others):
            if (current := executions[run].current) is not None and current.has_waits:
                current.waiting.looked(look)
        self._look_when_due()

    def _is_due(self, execution: Execution) -> bool:
        """Whether a time that it waits for should have come. If the store's clock is not there yet, its row tells when
        to look again."""
        now_s = self._tenure.clock.monotonic()
        return any(each.due_s is not None and each.due_s <= now_s for each in _pending(execution))

    def _look_when_due(self) -> None:
        """Where times are what is waited for, look when the first of them comes."""
        times = [
            pending.due_s
            for execution in self._tenure.executions.values()
            for pending in _pending(execution)
            if pending.due_s is not None
        ]
        if times:
            self.look_at(min(times))

    def _hear(self, hint: Hint) -> None:
        if hint is Hint.WAKE:
            self.look()


def _pending(execution: Execution) -> list[Pending]:
    """What there is to be looked at: a wait without a row yet is looked at once it has one, and one of a run that is
    being parked once the store has said that it stays."""
    step = execution.current
    if step is None or not step.has_waits or step.waiting.parking:
        return []
    return [each for each in step.waiting.pending.values() if each.on_disk]
