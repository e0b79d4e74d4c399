"""Deliveries as a relay hands them over, and sources as a consumer takes from them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from perdure.runtime.sinks import Incoming, Outgoing, Source
from tests.support.waiting import PATIENCE_S


def item(payload: Any = None, *, key: str = "r1/ship", partition: str = "t1", attempt: int = 1) -> Outgoing:
    return Outgoing(
        id="d1",
        key=key,
        sink="orders",
        partition=partition,
        payload={"order": 7} if payload is None else payload,
        run_id="r1",
        thread_id="t1",
        agent="shop",
        tenant=None,
        attempt=attempt,
        created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )


class Taking:
    """What a source gives, one at a time."""

    def __init__(self, messages: AsyncIterator[Incoming]) -> None:
        self._messages = messages

    async def next(self) -> Incoming:
        async with asyncio.timeout(PATIENCE_S):
            return await anext(self._messages)


@asynccontextmanager
async def taking(source: Source) -> AsyncIterator[Taking]:
    """Receive from a source until this ends."""
    messages = source.receive()
    try:
        yield Taking(messages)
    finally:
        await messages.aclose()  # type: ignore[attr-defined]
        await source.close()
