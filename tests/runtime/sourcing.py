"""Sources for tests, and what is said of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from perdure import Incoming, Source, telemetry


class Belt(Source):
    """Gives what is put on it; what was neither taken nor rejected is given again when it is asked anew."""

    def __init__(self) -> None:
        self.left: dict[str, Any] = {}
        self.news: asyncio.Queue[str] = asyncio.Queue()
        self.taken: list[str] = []
        self.rejected: list[str] = []
        self.given: list[str] = []
        self.breaks_after: int | None = None
        self.deaf_times = 0
        self.closed = 0

    def put(self, id: str, data: Any) -> None:
        self.left[id] = data
        self.news.put_nowait(id)

    async def receive(self) -> AsyncIterator[Incoming]:
        while not self.news.empty():
            self.news.get_nowait()
        for id in list(self.left):
            yield self._item(id)
            self._break()
        while True:
            id = await self.news.get()
            if id in self.left:
                yield self._item(id)
                self._break()

    def _break(self) -> None:
        if self.breaks_after is not None and len(self.given) >= self.breaks_after:
            self.breaks_after = None
            raise ConnectionError("the broker is gone")

    def _item(self, id: str) -> Incoming:
        self.given.append(id)

        async def ack() -> None:
            if self.deaf_times:
                self.deaf_times -= 1
                raise ConnectionError("nobody hears")
            self.taken.append(id)
            self.left.pop(id, None)

        async def reject() -> None:
            self.rejected.append(id)
            self.left.pop(id, None)

        data = self.left[id]
        return Incoming(id, data, {}, ack, reject, unfit=data if isinstance(data, Exception) else None)

    async def close(self) -> None:
        self.closed += 1


@contextmanager
def told(*events: str) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What is said of these, meanwhile."""
    heard: list[tuple[str, dict[str, Any]]] = []
    deaf = telemetry.subscribe(lambda event, fields: heard.append((event, fields)) if event in events else None)
    try:
        yield heard
    finally:
        deaf()
