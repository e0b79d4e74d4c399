"""Patience with a store that is away: for ever, where a worker must write what it has, or for a while, where somebody
waits for an answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from perdure.errors import StoreUnavailable
from perdure.runtime.service import BACKOFF_S_FIRST, BACKOFF_S_MAX, Backoff, Trouble

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long a verb that may be repeated outwaits a store that restarts, before it raises `StoreUnavailable`."""

PACED_MAX: Final = 10_000
"""Runs that are paced at once. Past that all begin anew."""


async def insist(service: str, attempt: Callable[[], Awaitable[None]]) -> None:
    """Call `attempt` until it succeeds once, however long the store is away; any other error is the caller's."""
    backoff = Backoff(service)
    while True:
        try:
            await attempt()
        except StoreUnavailable as error:
            await asyncio.sleep(backoff.failed(error))
        else:
            return backoff.succeeded()


async def outlast(service: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """The same, with what it returns."""
    found: list[T] = []

    async def once() -> None:
        found.append(await attempt())

    await insist(service, once)
    return found[0]


async def patiently(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """What is done again while the store restarts: ids may be left unused, and what was written is recognised."""
    backoff = Backoff(what)
    give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        try:
            outcome = await attempt()
        except StoreUnavailable as error:
            pause_s = backoff.failed(error)
            if asyncio.get_running_loop().time() + pause_s > give_up_at:
                raise
            await asyncio.sleep(pause_s)
        else:
            backoff.succeeded()
            return outcome


class Pace:
    """Pauses of runs that are handed back for a store that was away, growing for each by itself: what one of them meets
    may be its own (a full tablespace), and others that get through are no reason to ask again at once."""

    def __init__(self, service: str) -> None:
        self._trouble = Trouble(service)
        self._delays: dict[int, float] = {}

    def failed(self, run: int, error: StoreUnavailable) -> float:
        """Note a failure; returns how long to pause."""
        self._trouble.began(error)
        if len(self._delays) >= PACED_MAX:
            self._delays.clear()
        delay_s = self._delays.get(run, BACKOFF_S_FIRST)
        self._delays[run] = min(delay_s * 2, BACKOFF_S_MAX)
        return delay_s * random.uniform(0.5, 1.0)

    def succeeded(self, run: int) -> None:
        """Note that the store was there for this run."""
        self._trouble.ended()
        self._delays.pop(run, None)
