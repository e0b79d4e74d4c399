"""Time limits by the thousand: one timer for all that are equally long.

`asyncio.timeout` makes a timer of the loop for each call and cancels it again, which was a third of what a step cost.
Limits of one length fall due in the order in which they began; so they stand in a queue of their own, and one timer
watches over the first of it. A limit that is kept costs an entry and its removal.

Otherwise a deadline is an `asyncio.timeout`: when it comes, the task is cancelled, and the block raises `TimeoutError`
instead, unless somebody else has asked for a cancellation too.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from types import TracebackType
from typing import Any, Final

from perdure.clock import Clock
from perdure.runtime.frames import AgentFrame, StepFrame, frame

QUEUES_MAX: Final = 64
"""Lengths that are remembered while nothing has them: programs use few, unless they compute them."""

NO_LIMIT: Final[AbstractContextManager[None]] = nullcontext()


class Deadlines:
    """The limits in force on the running loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self._queues: dict[float, Queue] = {}

    def within(self, limit_s: float | None) -> AbstractContextManager[Deadline | None]:
        """`with deadlines.within(60):` in a coroutine: a `TimeoutError` after so many seconds; None for no limit."""
        return NO_LIMIT if limit_s is None else Deadline(self, self.queue(limit_s))

    def queue(self, limit_s: float) -> Queue:
        """Of the deadlines of this length."""
        queue = self._queues.get(limit_s)
        return self._new_queue(limit_s) if queue is None else queue

    def sweep(self) -> None:
        """Forget the lengths that nothing has now; what still runs keeps its limit."""
        for unused in [each for each in self._queues.values() if not each.waiting]:
            unused.close()
            del self._queues[unused.limit_s]

    def _new_queue(self, limit_s: float) -> Queue:
        if len(self._queues) >= QUEUES_MAX:
            self.sweep()
        queue = self._queues[limit_s] = Queue(limit_s, self.clock, self.loop)
        return queue


class Queue:
    """Deadlines of one length, the first to come first. Its timer has a context of its own: that of whoever came first
    would hold on to a run that is long gone."""

    def __init__(self, limit_s: float, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.limit_s = limit_s
        self.waiting: dict[Deadline, None] = {}
        self._clock = clock
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def add(self, deadline: Deadline) -> None:
        """Begin to watch over one more, which is the last to come."""
        deadline.at = self._clock.monotonic() + self.limit_s
        self.waiting[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.limit_s, self._look, context=Context())

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Expire what is due, and come again when the next one is; not at all where nothing waits."""
        self._timer = None
        while self.waiting:
            first = next(iter(self.waiting))
            left_s = first.at - self._clock.monotonic()
            if left_s > 0:
                self._timer = self._loop.call_later(left_s, self._look, context=Context())
                return
            del self.waiting[first]
            first.expire()


class Deadline:
    """One limit on the block that it surrounds."""

    __slots__ = ("_all", "_cancelling", "_expired", "_queue", "_task", "at")

    def __init__(self, all: Deadlines, queue: Queue) -> None:
        self.at = 0.0
        self._all = all
        self._queue = queue
        self._expired = False

    def __enter__(self) -> Deadline:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None, "a limit is for a block in a task"
        self._task = task
        self._cancelling = task.cancelling()
        self._queue.add(self)
        return self

    def extend(self, limit_s: float) -> None:
        """Have it come so long from now on, if that is later."""
        left_s = self.at - self._all.clock.monotonic()
        if self in self._queue.waiting and limit_s > left_s:
            del self._queue.waiting[self]
            self._queue = self._all.queue(limit_s)
            self._queue.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._expired:
            del self._queue.waiting[self]
        elif self._task.uncancel() <= self._cancelling and kind is not None:
            if issubclass(kind, asyncio.CancelledError):
                raise TimeoutError(f"the limit of {self._queue.limit_s:g} s{_whose()} ran out") from error

    def expire(self) -> None:
        """It has come."""
        self._expired = True
        self._task.cancel()


def _whose() -> str:
    """For whom the limit is, where that is known."""
    match frame.get():
        case StepFrame(name=name):
            return f" for step {name!r}"
        case AgentFrame():
            return " for the agent"
        case _:
            return ""
