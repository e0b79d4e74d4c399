"""Fresh numbers for what is about to be written: runs, threads, questions, messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from perdure.core.limits import ID_BLOCK
from perdure.errors import StoreUnavailable
from perdure.runtime.service import Backoff
from perdure.store.protocol import Store

T = TypeVar("T")

PATIENCE_S = 10.0
"""How long a verb that may be repeated outwaits a store that restarts, before it raises `StoreUnavailable`."""


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


class IdSource(Protocol):
    """Where fresh numbers come from."""

    async def take(self, count: int) -> int: ...


class Ids:
    """Hands out store-wide unique numbers, reserved in blocks that grow with use."""

    def __init__(self, store: Store, persist: Callable[..., Awaitable[int]] = patiently) -> None:
        self._store = store
        self._persist = persist
        self._next = 0
        self._end = 0
        self._block = 10
        self._lock = asyncio.Lock()

    async def take(self, count: int) -> int:
        """The first of `count` consecutive ids."""
        async with self._lock:
            if self._next + count > self._end:
                block = max(count, self._block)
                self._next = await self._persist("ids", lambda: self._store.reserve_ids(block))
                self._end = self._next + block
                self._block = min(self._block * 2, ID_BLOCK)
            first = self._next
            self._next += count
            return first
