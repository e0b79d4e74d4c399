"""Fresh numbers for what is about to be written: runs, threads, questions, messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from perdure.core.limits import ID_BLOCK
from perdure.runtime.patience import patiently
from perdure.store.protocol import Store


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
