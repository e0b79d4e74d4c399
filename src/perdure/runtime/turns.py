"""Turns: a replay gives the code what is on record in the order in which it came, and lets nothing new begin before.

Keys alone would be enough to find each record; but code that waits for several things at once sees which came first,
and so do its `asyncio.wait`, its queues and its locks. So whoever comes to a record while an earlier one is still to be
read waits for his turn, and the next one's turn comes when no task is about to run any more: the code has then gone as
far as it went between the two. What has no record (a step, a wait) begins when all records have been read. And an
interruption (a cancellation, a `perdure.timeout` that ran out) is delivered in its place among them: where its own
record is, or, if it has none yet, where the records end.

Code may have changed, and never come to a record. So nobody waits for one that nobody can come to: where all tasks are
known to wait, or some wait for what nobody here knows and nothing has moved for a while, those before the next turn are
passed over. (Event histories that are replayed in order are Temporal's; here order is a help and not a condition.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from perdure.runtime.known import Durable

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

NOT_YET: Final = 2**31
"""The place of an interruption that is not on record: behind all that is."""

FRESH: Final = NOT_YET + 1
"""The place of what is to begin."""

CROWD: Final = 24
"""With more tasks than so many, the code between two turns has a few rounds of the loop, and nobody looks at all tasks
each time."""

ROUNDS: Final = 4
"""Of the event loop: from the end of a task, by way of a gathering or an `asyncio.wait`, to who waits for it."""

STILL_S: Final = 0.1
"""For how long nothing may have moved before a turn comes, where a task waits for what nobody here knows."""


class Turns:
    """Who is next, in one super-step; `seqs` are the places of its records."""

    def __init__(self, at: SuperStep, seqs: Iterable[int]) -> None:
        self._at = at
        self._left = deque(sorted(seqs))
        """Places that nobody has come to, in order."""
        self._early: set[int] = set()
        """Those among them that somebody has come to before his turn."""
        self._queue: list[tuple[int, int, Durable | Callable[[], None]]] = []
        """Who waits: by place, then by order of coming."""
        self._came = 0
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether everything on record has been read and nothing is to be delivered."""
        return not self._left and not self._waits()

    @property
    def interrupts(self) -> bool:
        """Whether an interruption is still to be delivered."""
        return any(not isinstance(what, Durable) for _, _, what in self._queue)

    @property
    def waiting(self) -> list[Durable]:
        """What those stand at who wait for their turn."""
        return [what for _, _, what in self._queue if isinstance(what, Durable)]

    # -- who comes ------------------------------------------------------------------------------------------------

    def comes(self, seq: int) -> bool:
        """Somebody comes to this record: whether it is its turn. Else he is to `stand`."""
        left = self._left
        if not left:
            return True
        if left[0] < seq:
            return False
        if left[0] == seq and not (self._early or self._queue):  # one after the other, as most code goes
            left.popleft()
        else:
            self.passed(seq)
        return True

    async def stand(self, seq: int) -> None:
        """Wait until it is this record's turn."""
        here = Durable()
        self._push(seq, here)
        try:
            await here
        except asyncio.CancelledError:
            if seq < NOT_YET:
                self.passed(seq)  # nobody comes to it any more
            raise
        self._at.check()

    def passed(self, seq: int) -> None:
        """This record was read, whatever its turn."""
        left = self._left
        if left and left[0] == seq:
            left.popleft()
            while self._early and left and left[0] in self._early:
                self._early.discard(left.popleft())
            if self._queue:
                self._ask()
        elif left:
            self._early.add(seq)

    async def begin(self) -> None:
        """Wait until something may begin that has no record."""
        if not self.over:
            await self.stand(FRESH)

    def deliver(self, deliver: Callable[[], None], *, seq: int = NOT_YET) -> None:
        """Call this when its turn has come: that of its record, or when there are no more."""
        self._push(seq, deliver)

    # -- whose turn it is -------------------------------------------------------------------------------------------

    def stuck(self) -> bool:
        """All tasks wait: if somebody waits for his turn it comes, whatever was to come before; whether there was."""
        if not self._waits():
            return False
        first = self._queue[0][0]
        while self._left and self._left[0] < first and first != NOT_YET:
            self._early.discard(self._left.popleft())
        self._release()
        return True

    def unknown(self) -> None:
        """Some wait for what nobody here knows: it may bring the code to its next record, or never."""
        if self._timer is None and self._waits():
            self._timer = asyncio.get_running_loop().call_later(
                STILL_S, self._still, len(self._left), context=Context()
            )  # fmt: skip

    def end(self) -> None:
        """Nobody's turn comes any more."""
        self._calm()
        self._queue.clear()
        self._left.clear()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _push(self, seq: int, what: Durable | Callable[[], None]) -> None:
        self._came += 1
        heappush(self._queue, (seq, self._came, what))
        self._at.rest.look_soon()
        self._ask()

    def _waits(self) -> bool:
        """Whether anybody waits for his turn, and was not cancelled where he stood."""
        while self._queue and isinstance(what := self._queue[0][2], Durable) and what.done():
            heappop(self._queue)
        return bool(self._queue)

    def _ripe(self) -> bool:
        """Whether nothing is to come before the first who waits."""
        return self._waits() and (not self._left or self._queue[0][0] <= self._left[0])

    def _ask(self) -> None:
        """Have the next turn come when the code has gone as far as it goes."""
        if self._asked or not self._ripe():
            return
        self._asked = True
        if len(self._at.tasks) > CROWD:
            self._at.rest.paused += 1
            asyncio.get_running_loop().call_soon(self._round, ROUNDS, context=Context())
        else:
            self._at.rest.settled.append(self._turn)
            self._at.rest.look_soon()

    def _round(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._round, left - 1, context=Context())
        else:
            self._at.rest.paused -= 1
            self._turn()
            self._at.rest.look_soon()

    def _turn(self) -> None:
        self._asked = False
        if self._ripe():
            self._release()

    def _release(self) -> None:
        """The first one's turn has come; where it is to begin something new, that of all who are."""
        self._calm()
        seq, _, what = heappop(self._queue)
        if seq < NOT_YET:
            self.passed(seq)
        if isinstance(what, Durable):
            what.set_result(None)
        else:
            what()
        if seq == FRESH and self._waits():
            self._release()
        self._ask()

    def _still(self, left: int) -> None:
        self._timer = None
        if len(self._left) < left:
            self.unknown()
        else:
            self.stuck()

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
