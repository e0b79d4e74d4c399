"""Writes in company: a thousand starts, or messages, at a time share a few transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from perdure.core.changes import bytes_of
from perdure.core.requests import NewMessage, SendOutcome, StartOutcome, StartRun
from perdure.errors import StoreUnavailable
from perdure.runtime.group import GroupCommit
from perdure.store.protocol import Store

T = TypeVar("T")
R = TypeVar("R")

Persist = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""How to outwait a store that is away: for a while, or for ever."""


class Company(Generic[T, R]):
    """Puts things of one kind on disk, for all who ask on one event loop; each has its own outcome."""

    def __init__(
        self, what: str, write: Callable[[Sequence[T]], Awaitable[list[R]]], *, size: Callable[[T], int],
        persist: Persist,
    ) -> None:  # fmt: skip
        self._what = what
        self._write = write
        self._persist = persist
        self._group: GroupCommit[T, list[R | Exception]] = GroupCommit(self._write_batch, size=size)

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._group.run()

    def fail(self, error: Exception) -> None:
        """Answer whoever waits, and whoever comes, with this error."""
        self._group.fail(error)

    async def one(self, item: T) -> R:
        """Put one on disk."""
        batch = self._group.submit(item)
        place = len(batch.items) - 1
        outcome = (await asyncio.shield(batch.done))[place]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _write_batch(self, items: list[T]) -> list[R | Exception]:
        """One transaction for all; if the store refuses one of them, each for itself, so that it fails alone."""
        try:
            return list(await self._persist(self._what, lambda: self._write(items)))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [outcome for item in items for outcome in await self._write_batch([item])]


class Starts(Company[StartRun, StartOutcome]):
    """Puts runs on disk."""

    def __init__(self, store: Store, persist: Persist) -> None:
        super().__init__("starts", store.start, size=bytes_of, persist=persist)


class Sends(Company[NewMessage, SendOutcome]):
    """Puts messages into mailboxes, in the order in which they are given."""

    def __init__(self, store: Store, persist: Persist) -> None:
        super().__init__("sends", store.send, size=_bytes_of_message, persist=persist)


def _bytes_of_message(message: NewMessage) -> int:
    return len(message.payload) + sum(len(blob.data) for blob in message.blobs)
