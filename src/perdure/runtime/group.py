"""Group commit: while one batch is in flight, the next one collects.

Whatever wants to be written goes into the open batch. An idle group flushes a single item at once; a busy one lets
hundreds share a flush, and the busier it is the larger the batches get. Batches are flushed one at a time, in order,
so items become durable in the order they were submitted. All items of a batch share one future: waiting for
durability costs a future per flush, not per item. (The idea is as old as write-ahead logs; in this field Oban's and
River's batched acknowledgements come nearest.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from perdure.core.limits import COMMIT_BYTES_MAX, COMMIT_ROWS_MAX, PENDING_BYTES_MAX, PENDING_ROWS_MAX
from perdure.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")


class Batch(Generic[T, R]):
    """Items that are flushed together. `done` resolves to the flush's result once they are durable."""

    __slots__ = ("bytes", "done", "items")

    def __init__(self, done: asyncio.Future[R]) -> None:
        self.items: list[T] = []
        self.bytes = 0
        self.done = done


class GroupCommit(Generic[T, R]):
    """Collects items into batches and flushes them one batch at a time, in order."""

    def __init__(
        self, flush: Callable[[list[T]], Awaitable[R]], *, size: Callable[[T], int], rows_max: int = COMMIT_ROWS_MAX
    ) -> None:
        self._flush = flush
        self._size = size
        self._rows_max = rows_max
        self._batches: deque[Batch[T, R]] = deque()
        self._work = asyncio.Event()
        self._pending = 0
        self._pending_bytes = 0
        self._flushing: Batch[T, R] | None = None
        self._room: asyncio.Event = asyncio.Event()
        self._room.set()
        self._closed: Exception | None = None

    @property
    def pending(self) -> int:
        """Items that are not durable yet."""
        return self._pending

    @property
    def is_full(self) -> bool:
        """Whether so much is pending that whoever can wait should."""
        return self._pending >= PENDING_ROWS_MAX or self._pending_bytes >= PENDING_BYTES_MAX

    def submit(self, item: T) -> Batch[T, R]:
        """Put the item into the open batch; never waits. Its place in `Batch.items` is its place in the result."""
        if self._closed is not None:
            return self._refused(item, self._closed)
        size = self._size(item)
        batch = self._open_batch(size)
        batch.items.append(item)
        batch.bytes += size
        self._pending += 1
        self._pending_bytes += size
        self._work.set()
        return batch

    async def room(self) -> None:
        """Wait until it is not full: back-pressure for whoever can wait."""
        while self.is_full:
            self._room.clear()
            await self._room.wait()

    async def flushed(self) -> None:
        """Wait until everything submitted so far is durable (or was refused)."""
        while self._pending:
            self._room.clear()
            await self._room.wait()

    async def run(self) -> None:
        """Flush batches for ever. `flush` is to retry what can be retried; what it raises goes to the batch's
        waiters, and ends neither the group nor the other batches. Cancelling ends the group: `fail` then answers
        whoever still waits."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._batches:
                await self._flush_one(self._batches.popleft())

    def fail(self, error: Exception) -> None:
        """End the group: every pending item, and every later one, is answered with `error`. Whether the batch in flight
        is written nobody knows, and nobody waits to learn it."""
        self._closed = error
        if self._flushing is not None:
            self._settle_failed(self._flushing, error)
        while self._batches:
            self._settle_failed(self._batches.popleft(), error)

    def _open_batch(self, size: int) -> Batch[T, R]:
        if self._batches:
            last = self._batches[-1]
            if len(last.items) < self._rows_max and last.bytes + size <= COMMIT_BYTES_MAX:
                return last
        batch: Batch[T, R] = Batch(asyncio.get_running_loop().create_future())
        self._batches.append(batch)
        return batch

    def _refused(self, item: T, error: Exception) -> Batch[T, R]:
        batch: Batch[T, R] = Batch(asyncio.get_running_loop().create_future())
        batch.items.append(item)
        batch.done.set_exception(error)
        batch.done.exception()  # seen here, for the case that nobody waits for it
        return batch

    async def _flush_one(self, batch: Batch[T, R]) -> None:
        self._flushing = batch
        try:
            result = await self._flush(batch.items)
        except asyncio.CancelledError:
            self._settle_failed(batch, self._closed or StoreUnavailable("the writer ended before this was written"))
            raise
        except Exception as error:
            self._settle_failed(batch, error)
        else:
            if not batch.done.done():
                batch.done.set_result(result)
                self._settled(batch)
        finally:
            self._flushing = None

    def _settle_failed(self, batch: Batch[T, R], error: Exception) -> None:
        if not batch.done.done():
            batch.done.set_exception(error)
            batch.done.exception()  # seen here, for the case that nobody waits for it
            self._settled(batch)

    def _settled(self, batch: Batch[T, R]) -> None:
        self._pending -= len(batch.items)
        self._pending_bytes -= batch.bytes
        self._room.set()
