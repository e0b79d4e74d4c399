"""Sinks for tests: they do as their script says, and remember."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure import App, Outgoing, Retry, Sink
from perdure.core.deliveries import Delivery, DeliveryFilter, DeliveryState
from tests.runtime.world import until

QUICK = Retry(attempts=4, delay_s=0.01, jitter=0)


class Shelf(Sink):
    """Keeps what it gets; `script` says what it raises at each try, None for nothing."""

    retry = QUICK

    def __init__(self, *script: BaseException | None, **settings: Any) -> None:
        self.script = list(script)
        self.tries: list[Outgoing] = []
        self.items: list[Outgoing] = []
        self.closed = 0
        self.at_once = self.most_at_once = 0
        self.gate: asyncio.Event | None = None
        vars(self).update(settings)

    async def deliver(self, item: Outgoing) -> None:
        self.tries.append(item)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.script and (error := self.script.pop(0)) is not None:
                raise error
            self.items.append(item)
        finally:
            self.at_once -= 1

    async def close(self) -> None:
        self.closed += 1

    @property
    def payloads(self) -> list[Any]:
        return [item.payload for item in self.items]


async def outbox(app: App, **where: Any) -> list[Delivery]:
    client = await app._client()
    return await client.store.deliveries(DeliveryFilter(**where))


async def settled(app: App, count: int = 1, *, state: DeliveryState = DeliveryState.DELIVERED) -> list[Delivery]:
    """The deliveries in this state, once there are so many."""
    found: list[Delivery] = []

    async def are_there() -> bool:
        found[:] = await outbox(app, state=state)
        return len(found) >= count

    await until(are_there, f"{count} are {state.value}")
    return found


async def grows(what: Callable[[], int], count: int) -> None:
    """Wait until there are so many."""

    async def are_there() -> bool:
        return what() >= count

    await until(are_there, f"{count} of them")
