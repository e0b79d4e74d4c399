"""Handing over: the sinks of a stage, in the place of those of its apps.

Each takes what a worker's relay gives it, and keeps it; nothing leaves the test. How often is tried, how long a try may
take and how many go at once are as the app's own sink has it. Faults strike at `sink:NAME` (every delivery to that
sink) or at a delivery's key, as they strike at a step: before its sink has it, in place of that, when the sink has it
and nobody knows, when that is on disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from perdure.core.deliveries import OPEN, Delivery, DeliveryFilter, DeliveryState, Settlement, delivery_id
from perdure.core.limits import LIST_ROWS_MAX
from perdure.runtime.sinks import Outgoing, Sink
from perdure.store.memory.outbox import Outbox
from perdure.testing.answers import answered
from perdure.testing.rehearsal.faults import Fault, Moment, striking

PREFIX: Final = "sink:"
"""Before a sink's name, where faults and counts mean what is handed over to it."""

SHOWN_MAX: Final = 10
"""Deliveries that a message tells of."""


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a sink has got."""

    sink: str
    key: str
    """What the other side knows it by."""
    payload: Any
    """Plain data; a bill's is what it says."""
    partition: str
    delivery_id: str
    run_id: str
    thread_id: str
    tenant: str | None
    attempt: int
    again: bool
    """The sink has had this key before: whoever gave it that died before it was on disk."""
    at: datetime


class StageSink(Sink):
    """A sink of a worker's on stage."""

    def __init__(self, own: Sink, take: Callable[[Outgoing], Awaitable[None]]) -> None:
        self.retry, self.timeout_s, self.concurrency = own.retry, own.timeout_s, own.concurrency
        self._take = take

    async def deliver(self, item: Outgoing) -> None:
        await self._take(item)


class Handing:
    """What all sinks of a stage have got, and the faults that strike there."""

    def __init__(
        self,
        faults: Sequence[Fault],
        handed_over: list[HandedOver],
        *,
        now: Callable[[], datetime],
        die: Callable[[], Awaitable[None]],
    ) -> None:
        self.tries: list[tuple[str, str]] = []
        """What was begun to be handed over, in order: the sink, as faults name it, and the key."""
        self._faults = faults
        self._handed_over = handed_over
        self._now = now
        self._die = die

    def sinks(self, own: Mapping[str, Sink]) -> dict[str, Sink]:
        """What stands in for these."""
        return {name: StageSink(sink, self._take) for name, sink in own.items()}

    async def _take(self, item: Outgoing) -> None:
        """A relay hands this over."""
        name = PREFIX + item.sink
        self.tries.append((name, item.key))
        for fault in striking(self._faults, Moment.BEFORE, name, item.key):
            await asyncio.sleep(fault.delay_s)
            if fault.crashes:
                await self._die()
        for fault in striking(self._faults, Moment.INSTEAD, name, item.key)[:1]:
            await answered(fault.answer, (item,), {})
        again = any((each.sink, each.key) == (item.sink, item.key) for each in self._handed_over)
        self._handed_over.append(
            HandedOver(
                item.sink, item.key, item.payload, item.partition, item.id, item.run_id, item.thread_id, item.tenant,
                item.attempt, again, self._now(),
            )
        )  # fmt: skip
        if any(fault.crashes for fault in striking(self._faults, Moment.IN, name, item.key)):
            await self._die()

    def settled(self, outbox: Outbox, settlements: Iterable[Settlement]) -> bool:
        """This is on disk; whether who said it dies, before it hears so."""
        over = [each.delivery for each in settlements if each.state not in OPEN]
        rows = [row for row in outbox.get(over) if row.state not in OPEN]
        struck = [fault for row in rows for fault in striking(self._faults, Moment.AFTER, PREFIX + row.sink, row.key)]
        return any(fault.crashes for fault in struck)


def still_open(outbox: Outbox) -> list[Delivery]:
    """What is neither delivered nor given up, some of it."""
    return [row for state in OPEN for row in outbox.page(DeliveryFilter(state=state, limit=SHOWN_MAX))]


def open_text(rows: Iterable[Delivery]) -> str:
    """What has not been handed over, for people."""
    return "; ".join(f"{_named(row)} is {row.state} after {row.attempts} tries{_why(row)}" for row in rows)


def not_once(
    outbox: Outbox, handed_over: Iterable[HandedOver], sink: str | None, *, by_key: bool
) -> list[str]:  # fmt: skip
    """What is wrong with saying that each delivery (to this sink) has arrived, and once."""
    rows = outbox.page(DeliveryFilter(sink=sink, limit=LIST_ROWS_MAX))
    if not rows:
        return [f"nothing was handed over{f' to sink {sink!r}' if sink is not None else ''}"]
    times = Counter((each.sink, each.key) for each in handed_over)
    return list(_not_once(rows, times, by_key=by_key))[:SHOWN_MAX]


def _not_once(rows: Iterable[Delivery], times: Mapping[tuple[str, str], int], *, by_key: bool) -> Iterator[str]:
    for row in rows:
        count = times.get((row.sink, row.key), 0)
        if row.state is not DeliveryState.DELIVERED:
            yield f"{_named(row)} is {row.state}{_why(row)}"
        elif count > 1 and not by_key:
            yield f"{_named(row)} was handed over {count} times under this key"


def _named(row: Delivery) -> str:
    return f"{delivery_id(row.id)} to sink {row.sink!r} (key {row.key!r})"


def _why(row: Delivery) -> str:
    return f": {row.error}" if row.error else ""
