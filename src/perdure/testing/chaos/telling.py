"""Telling the recorder: from an event loop, from a thread, and around a step's body.

`$PERDURE_CHAOS_RECORDER` is the recorder's port; without it, nothing is told. To tell is to wait until it is on disk.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast
from weakref import WeakKeyDictionary

from perdure.runtime.frames import StepFrame, frame
from perdure.testing.chaos.testimony import Began, Ended, Testimony, encoded

RECORDER: Final = "PERDURE_CHAOS_RECORDER"
DIRECTOR: Final = "PERDURE_CHAOS_DIRECTOR"
"""The process that a child ends with."""

BEGUN: Final = " serves "
"""What a child prints when it does its work: from then on it sees when the director has gone, or asks it to end."""

LOOK_S: Final = 0.5


class Teller(asyncio.Protocol):
    """A loop's connection to the recorder. Answers come in the order of the lines."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a loop of another make has classes of its own

    def data_received(self, data: bytes) -> None:
        for _ in data:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionError("the recorder has gone"))

    async def tell(self, line: Testimony) -> None:
        """Tell it, and wait until it is on disk."""
        if self._transport is None:
            raise ConnectionError("the recorder has gone")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._transport.write(encoded(line))
        await future


_tellers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Teller]] = WeakKeyDictionary()
_of_thread = threading.local()


async def tell(line: Testimony) -> None:
    """Tell the recorder, and wait until it is on disk."""
    port = os.environ.get(RECORDER)
    if port is None:
        return
    loop = asyncio.get_running_loop()
    if loop not in _tellers:
        _tellers[loop] = asyncio.ensure_future(_connected(int(port)))
    await (await asyncio.shield(_tellers[loop])).tell(line)


async def _connected(port: int) -> Teller:
    _, teller = await asyncio.get_running_loop().create_connection(Teller, "127.0.0.1", port)
    return teller


def tell_from_thread(line: Testimony) -> None:
    """The same on a thread without a loop."""
    port = os.environ.get(RECORDER)
    if port is None:
        return
    if not hasattr(_of_thread, "socket"):
        _of_thread.socket = socket.create_connection(("127.0.0.1", int(port)))
    _of_thread.socket.sendall(encoded(line))
    if not _of_thread.socket.recv(1):
        raise ConnectionError("the recorder has gone")


@asynccontextmanager
async def body() -> AsyncIterator[None]:
    """Around the body of an async step: tell that it begins, and how it ended."""
    try:
        await tell(_begins())
        yield
        await tell(_ends(None))
    except BaseException as error:
        await tell(_ends(error))
        raise


@contextmanager
def body_in_thread() -> Iterator[None]:
    """The same around the body of a step that runs in a thread."""
    try:
        tell_from_thread(_begins())
        yield
        tell_from_thread(_ends(None))
    except BaseException as error:
        tell_from_thread(_ends(error))
        raise


def now() -> tuple[int, float]:
    """Who tells, and when."""
    return os.getpid(), time.monotonic()


def _begins() -> Began:
    at = _frame()
    step, claimed = at.super_step, at.super_step.claimed
    return Began(
        *now(), claimed.run, step.number, at.key, at.attempt, claimed.fence, step.host.worker, step.host.deployment
    )


def _ends(error: BaseException | None) -> Ended:
    at = _frame()
    step, claimed = at.super_step, at.super_step.claimed
    raised = None if error is None else type(error).__name__
    return Ended(*now(), claimed.run, step.number, at.key, at.attempt, claimed.fence, raised)


def _frame() -> StepFrame:
    at = frame.get()
    assert isinstance(at, StepFrame), "only the body of a step tells of itself"
    return at


def end_with_the_director() -> None:
    """Have this process end when the director has gone, however it went: nobody else would end it."""
    director = os.environ.get(DIRECTOR)
    if director is None or int(director) == os.getpid():
        return

    def watch() -> None:
        while os.getppid() == int(director):
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="chaos-watch", daemon=True).start()
