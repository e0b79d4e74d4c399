"""An event loop in virtual time: it runs what is ready when it is told to, and never waits.

A loop belongs to a `Timeline`, which has the time and decides which loop runs next. Several loops on one timeline are
several threads, or processes, of one simulated world: each runs for a turn, and the order of turns is the timeline's.
Nothing here looks at a socket or a thread; `run_in_executor` calls the function at once.

The idea of a loop whose clock jumps to the next timer is an old one in asyncio's test kits (asynctest, looptime); that
of a world of loops under one seed is FoundationDB's and TigerBeetle's.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple

from perdure.errors import UsageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


CANCELLED_MAX: Final = 100
TURNS_A_CANCELLATION: Final = 50
"""Code may clean up, and even refuse a cancellation; but not for ever."""


class Timeline(Protocol):
    """What has the time."""

    @property
    def now(self) -> float:
        """Seconds of virtual time."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that needs no operating system. `owner` is whatever this loop is a part of."""

    def __init__(self, timeline: Timeline, name: str, owner: object = None) -> None:
        self.name = name
        self.owner = owner
        self.tasks: dict[asyncio.Future[Any], None] = {}
        self.halted = False
        """Set when whatever it belongs to is gone: it runs nothing more, not even the rest of this turn."""
        self.failures: list[dict[str, Any]] = []
        """What nobody caught: contexts as an exception handler gets them."""
        self._timeline = timeline
        self.ready: deque[asyncio.Handle] = deque()
        """What is to run in the next round."""
        self.timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap by when they are due; those that were cancelled are dropped when they come to the top."""
        self._timers_made = 0
        self._factory: Any = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<virtual loop {self.name}>"

    # -- what it lets in (`perdure.client.grounds`) ------------------------------------------------------------

    def admit(self, app: str, store: object) -> None:
        """Refuse a store that is not one of the process that this loop belongs to."""
        process = getattr(store, "process", None)
        if process is None or process is not self.owner:
            raise UsageError(
                f"app {app} has its store in the real world, and is used in virtual time. Put it on the stage as "
                "well: rehearse(..., apps=[that_app])"
            )

    def employ(self) -> None:
        """Refuse a worker of the real world."""
        raise UsageError(
            "the stage has its worker, which executes every run that is started there: leave out app.worker(), "
            "app.run() and app.serve(), and only `await app.start(...)` and its `result()`"
        )

    # -- being run -------------------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """When it has something to do next; None for never."""
        if self.ready:
            return self._timeline.now
        when = self.next_timer()
        return None if when is None else max(when, self._timeline.now)

    def next_timer(self) -> float | None:
        """When its next timer is due."""
        timers = self.timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def turn(self, rounds: int = 1) -> None:
        """Run what is ready now, and what that makes ready, for so many rounds."""
        now = self._timeline.now
        timers, ready = self.timers, self.ready
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        hooks, outer = sys.get_asyncgen_hooks(), asyncio._get_running_loop()
        sys.set_asyncgen_hooks(firstiter=None, finalizer=self._finalize)
        asyncio._set_running_loop(self)
        try:
            while ready and rounds:
                rounds -= 1
                for _ in range(len(ready)):
                    if self.halted:
                        return
                    handle = ready.popleft()
                    if not handle.cancelled():
                        handle._run()
        finally:
            asyncio._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.call_soon(self.create_task, generator.aclose())

    # -- what asyncio asks of a loop --------------------------------------------------------------------------

    def time(self) -> float:
        return self._timeline.now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._timeline.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_made += 1
        heapq.heappush(self.timers, (when, self._timers_made, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they come to the top."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made: Any
        if self._factory is not None:
            made = self._factory(self, coro, **{each: value for each, value in options.items() if value is not None})
        else:
            made = asyncio.Task(coro, loop=self, **options)
        self.tasks[made] = None
        made.add_done_callback(self._forget)
        task: asyncio.Task[Any] = made
        return task

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self.tasks.pop(task, None)

    def set_task_factory(self, factory: Any) -> None:
        self._factory = factory

    def get_task_factory(self) -> Any:
        return self._factory

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # the caller's own code: its error is the future's
            future.set_exception(error)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self._closed

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.ready.clear()
        self.timers.clear()

    # -- the end ---------------------------------------------------------------------------------------------

    def unwind(self) -> bool:
        """Cancel every task, again and again, and run until all have ended, without time passing; whether they have."""
        self.halted = False
        for _ in range(CANCELLED_MAX):
            for task in list(self.tasks):
                task.cancel()
            for _ in range(TURNS_A_CANCELLATION):
                if not self.tasks:
                    return True
                if not self.ready and not self._skip_to_next_timer():
                    break
                self.turn()
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is dropped on purpose
        return False

    def _skip_to_next_timer(self) -> bool:
        """Make the next timer ready; False if there is none."""
        if self.due is None:
            return False
        self.ready.append(heapq.heappop(self.timers)[2])
        return True


OF_THE_SYSTEM: Final = (
    "getaddrinfo", "getnameinfo", "create_connection", "create_server", "create_unix_connection", "create_unix_server",
    "create_datagram_endpoint", "connect_accepted_socket", "start_tls", "sendfile", "connect_read_pipe",
    "connect_write_pipe", "subprocess_exec", "subprocess_shell", "add_reader", "remove_reader", "add_writer",
    "remove_writer", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall",
    "sock_sendto", "sock_connect", "sock_accept", "sock_sendfile", "add_signal_handler", "remove_signal_handler",
)  # fmt: skip
"""What an event loop does with sockets, processes and signals."""


class NotInVirtualTime(UsageError, NotImplementedError):
    """An event loop of the operating system has this, and a virtual one has not. It is also what asyncio raises for it:
    code that can do without knows it by that."""


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: VirtualLoop, *args: object, **kwargs: object) -> Any:
        raise NotInVirtualTime(
            f"{name}: there are no sockets, processes or signals in virtual time. Where a step needs one, answer it "
            "(`answer_step`), or give it a fake client; what cannot do without is tested with a worker of the real "
            "world"
        )

    return refuse


for _name in OF_THE_SYSTEM:
    setattr(VirtualLoop, _name, _refusal(_name))


def virtual_loop(timeline: Timeline, name: str, owner: object = None) -> VirtualLoop:
    """A new loop on the timeline. (What an event loop of the operating system has besides is left out on purpose.)"""
    return VirtualLoop(timeline, name, owner)  # type: ignore[abstract]
