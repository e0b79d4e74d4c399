"""The one loop: every background service is a `tick`, and this sleeps, backs off, logs and stops for all of them.

A tick that fails is not the end of its service. An unreachable store is ordinary, as is a broker that is down: one line
when it goes, one when it comes back. Anything else is a bug in perdure or its driver: logged with its traceback, and
tried again, because a service that dies silently is worse than one that complains.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from perdure.core.errors import one_line
from perdure.errors import StoreUnavailable
from perdure.telemetry import emit, logger

BACKOFF_S_FIRST = 0.05
BACKOFF_S_MAX = 2.0


def _is_away(error: Exception) -> bool:
    return isinstance(error, StoreUnavailable)


class Trouble:
    """The log lines of one service. What is ordinary is told once, each kind of error, until all is well again.
    `foreign`: it runs somebody else's code, whose other errors are told once as well, with their traceback."""

    def __init__(
        self, service: str, *, is_ordinary: Callable[[Exception], bool] = _is_away, foreign: bool = False
    ) -> None:
        self._service = service
        self._is_ordinary = is_ordinary
        self._foreign = foreign
        self._told: set[type[Exception]] = set()

    def began(self, error: Exception) -> None:
        """It has failed."""
        again = type(error) in self._told
        self._told.add(type(error))
        if self._is_ordinary(error):
            if not again:
                emit("service.failed", service=self._service, error=one_line(error))
        elif not (again and self._foreign):
            logger.error("%s failed; it goes on", self._service, exc_info=error)

    def ended(self) -> None:
        """All is well."""
        if self._told:
            emit("service.recovered", service=self._service)
            self._told.clear()


class Backoff:
    """Growing, jittered pauses between failures of one service, and its log lines."""

    def __init__(self, service: str, trouble: Trouble | None = None) -> None:
        self._service = service
        self._trouble = trouble or Trouble(service)
        self._delay_s = BACKOFF_S_FIRST

    def failed(self, error: Exception) -> float:
        """Note a failure; returns how long to pause."""
        self._trouble.began(error)
        pause_s = self._delay_s * random.uniform(0.5, 1.0)
        self._delay_s = min(self._delay_s * 2, BACKOFF_S_MAX)
        return pause_s

    def succeeded(self) -> None:
        """Note a success."""
        self._trouble.ended()
        self._delay_s = BACKOFF_S_FIRST


async def serve(service: str, tick: Callable[[], Awaitable[float]], *, backoff: Backoff | None = None) -> None:
    """Call `tick` until cancelled, pausing after each for the seconds it returns. A tick that goes on for long may say
    of this `backoff` that it has succeeded."""
    backoff = backoff or Backoff(service)
    while True:
        try:
            pause_s = await tick()
        except Exception as error:
            pause_s = backoff.failed(error)
        else:
            backoff.succeeded()
        await asyncio.sleep(pause_s)


async def came(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether the event is set, now or within so long."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until one of these events is set, or for so long."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def undisturbed(last: Coroutine[Any, Any, None]) -> None:
    """See this through, also when cancelled meanwhile: for letting go of what would be lost otherwise."""
    task = asyncio.ensure_future(last)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()
