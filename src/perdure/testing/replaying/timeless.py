"""Where a replay happens: an event loop of its own, on which nothing is waited for.

Time jumps to the next timer as soon as nothing is ready, so an agent that sleeps for an hour is played at once. What
can never go on is known at once, too: nothing is ready, and no timer is set. What goes round for ever without a call
of a step is given up after so many turns, and a whole replay after so many real seconds. (Code that does not await at
all cannot be interrupted, here as on a worker.) The loop has no sockets and no processes: who asks for one is taken to
have reached the world outside, of which no record knows.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import sysconfig
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import Any, Final, Protocol, TypeVar

import perdure
from perdure.errors import UsageError
from perdure.runtime.frames import AgentFrame, frame
from perdure.testing.replaying.execution import Fresh, ReplaySuperStep
from perdure.testing.replaying.report import Finding
from perdure.testing.simulation.loop import VirtualLoop

T = TypeVar("T")

ROUNDS: Final = 50
"""Of a loop in one turn."""
AT_ONCE_MAX: Final = 1_000
"""Turns without time passing; then it passes, as it does for code that is always busy."""
IDLE_MAX: Final = 20_000
"""Turns without a call of a step: a second or so. What loops and sleeps for longer than that does not end."""
BREATH: Final = 100
"""Turns until whoever else is on the caller's loop gets one."""

NOTHING: Final = "waits for something that never happens in a replay"
CIRCLE: Final = "goes round and calls no step"
LIMIT: Final = "was still at it when the limit of the replay ran out"

OUTSIDE: Final = {
    "getaddrinfo": "looks up a host", "getnameinfo": "looks up a host", "create_connection": "opens a connection",
    "create_unix_connection": "opens a connection", "create_datagram_endpoint": "opens a connection",
    "create_server": "opens a server", "create_unix_server": "opens a server", "subprocess_exec": "starts a process",
    "subprocess_shell": "starts a process", "connect_read_pipe": "opens a pipe", "connect_write_pipe": "opens a pipe",
    "sock_connect": "opens a connection", "sock_accept": "opens a server", "sock_recv": "reads from a socket",
    "sock_sendall": "writes to a socket",
}  # fmt: skip
"""What an event loop of the operating system has besides, in words."""

LIBRARIES: Final = tuple(
    os.path.join(os.path.realpath(path), "")
    for path in (
        *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        os.path.dirname(perdure.__file__),
    )
)
"""Where code lies that is not the user's own."""


class Watched(Protocol):
    """What is played."""

    @property
    def moves(self) -> int:
        """A number that grows with every call of a step."""

    def give_up(self, why: str) -> None:
        """End the super-step that does not end by itself."""


class Moments:
    """The time of a replay, from 0."""

    def __init__(self) -> None:
        self.now = 0.0


async def play_out(watched: Watched, main: Coroutine[Any, Any, T], *, limit_s: float) -> T:
    """Run a coroutine to its end in virtual time; returns what it returns. `limit_s`: of real time."""
    moments = Moments()
    loop = ReplayLoop(moments, "replay")  # type: ignore[abstract]  # what is left out is left out on purpose
    task = loop.create_task(main)
    try:
        await _turns(loop, moments, task, watched, limit_s)
    finally:
        loop.unwind()
        loop.close()
    played: T = task.result()
    return played


async def _turns(
    loop: VirtualLoop, moments: Moments, task: asyncio.Task[Any], watched: Watched, limit_s: float
) -> None:
    end = time.monotonic() + limit_s
    turns = at_once = idle = 0
    moves = watched.moves
    while not task.done():
        if not loop.ready or at_once > AT_ONCE_MAX:
            at_once = 0
            when = loop.next_timer()
            if when is not None:
                moments.now = max(moments.now, when)
            elif not loop.ready:
                watched.give_up(NOTHING)
                assert loop.ready, "what is given up ends"
        loop.turn(ROUNDS)
        turns, at_once = turns + 1, at_once + 1
        idle = idle + 1 if watched.moves == moves else 0
        moves = watched.moves
        if idle > IDLE_MAX:
            idle = 0
            watched.give_up(CIRCLE)
        if time.monotonic() > end:
            watched.give_up(LIMIT)
        if turns % BREATH == 0:
            await asyncio.sleep(0)  # a turn for everybody else


class ReplayLoop(VirtualLoop):
    """A virtual loop from which nobody reaches the world outside."""


def _refusal(what: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def refuse(loop: ReplayLoop, *args: Any, **options: Any) -> Any:
        here = frame.get()
        if isinstance(here, AgentFrame) and isinstance(here.super_step, ReplaySuperStep):
            await here.super_step.wait_for(Fresh("world", f"{what} outside of a step", False, Finding.WORLD))
        raise UsageError(f"code in a replay {what}; a replay is in virtual time and reaches nothing outside")

    return refuse


for _name, _what in OUTSIDE.items():
    setattr(ReplayLoop, _name, _refusal(_what))


def waiting_at(tasks: Iterable[asyncio.Future[Any]]) -> list[str]:
    """The lines of the users' code at which these tasks wait, each once."""
    lines = [_line(task.get_coro()) for task in tasks if isinstance(task, asyncio.Task)]
    return list(dict.fromkeys(line for line in lines if line))


def _line(coro: Any) -> str:
    """The innermost line that a user wrote; where there is none, the innermost of all."""
    frames = list(_frames(coro))
    own = [each for each in frames if not os.path.realpath(each.f_code.co_filename).startswith(LIBRARIES)]
    if not frames:
        return ""
    at = (own or frames)[-1]
    path, number = at.f_code.co_filename, at.f_lineno
    source = linecache.getline(path, number, at.f_globals).strip()
    return f"{os.path.basename(path)}:{number}, in {at.f_code.co_name}: {source}".rstrip(": ")


def _frames(coro: Any) -> Iterator[FrameType]:
    """From a coroutine to what it awaits, as far as there are frames."""
    while coro is not None:
        for prefix, awaits in (("cr", "cr_await"), ("ag", "ag_await"), ("gi", "gi_yieldfrom")):
            inner = getattr(coro, f"{prefix}_frame", None)
            if inner is not None:
                yield inner
                coro = getattr(coro, awaits)
                break
        else:
            return
