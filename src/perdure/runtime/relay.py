"""The relay: hands over what runs have put into the outbox.

One runs in each worker whose app has sinks. It claims what is due, of each sink as much as that takes at once, hands it
over, and says what came of it; what failed is due again later, as its sink's `retry` says, and is dead after the last
try. A worker that dies in between leaves its deliveries to the others: the sink may see one twice, under the same key.

A delivery is no part of a run: a sink that hangs holds up its own partition, and takes up one place of its sink, until
its time is over. Nothing here keeps a run, or the delivery of another sink, from going on.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from perdure.core.codec import codec_for
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryState, Settlement, delivery_id
from perdure.core.errors import one_line
from perdure.core.limits import CLAIM_ROWS_MAX, RECOVERIES_MAX, RETRY_AFTER_S_MAX
from perdure.core.records import run_id
from perdure.core.retry import backoff_s, may_deliver_again
from perdure.core.transience import retry_after_s
from perdure.errors import StoreUnavailable, Undeliverable
from perdure.runtime.billing import bill_of
from perdure.runtime.info import moment
from perdure.runtime.payloads import load_payload
from perdure.runtime.service import came, first_of, serve
from perdure.runtime.sinks import Outgoing, Sink, within
from perdure.store.protocol import Hint
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.tenure import Tenure

UNSURE_S: Final = 60.0
"""For so long after a claim without an answer, it may have been done, or still be. Then claims go on, though nothing is
due: each gives back what this relay does not know of."""

STRIKES_MAX: Final = RECOVERIES_MAX
"""Deaths of workers in a row that had a delivery in their hands, before it is given up: as many as for runs. The last
of them it met as a suspect, without another suspect beside it."""

UNREAD_S: Final = 1.0
"""After how long what could not be read is read again."""

ERROR_CHARS: Final = 2_000
"""Of why a try failed, in its row."""


class Relay:
    """Delivers for one tenure."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure
        self._in_hand: dict[int, Delivery] = {}
        """Claimed, and what came of it is not on disk."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._settlements: list[Settlement] = []
        self._unsure_until_s = float("-inf")
        """Until then there may be deliveries that are its own and that it does not know of."""
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._broken_off = False
        """The worker has ended: nothing is noted any more."""
        self._deaf = tenure.store.listen(self._hear)

    async def run(self) -> None:
        """Deliver until cancelled; what is in flight then is broken off."""
        try:
            await serve("relay", self._tick)
        finally:
            self._deaf()
            self._broken_off = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self) -> None:
        """Claim nothing more; let what is in flight end, for the worker's grace, and settle it."""
        self._stopping.set()
        self._wake.set()
        await first_of(self._ended, self._tenure.lost, self._tenure.hurry, timeout_s=self._tenure.settings.grace_s)

    async def _tick(self) -> float:
        self._wake.clear()
        if self._settlements:
            await self._settle()
        if self._stopping.is_set():
            if not self._in_hand:
                self._ended.set()
            await self._wake.wait()
            return 0
        pause_s = await self._claim()
        if pause_s > 0:
            await came(self._wake, pause_s)
        return 0

    async def _claim(self) -> float:
        """Claim and launch what is due; returns how long there is nothing to do, unless something happens."""
        tenure, poll_s = self._tenure, self._tenure.settings.poll_s * random.uniform(0.8, 1.2)
        free = self._free()
        suspects = self._suspects()
        unsure = tenure.clock.monotonic() < self._unsure_until_s
        due_us = await tenure.store.next_delivery(list(free), suspects=suspects > 0) if free else None
        pause_s = min(poll_s, due_us / 1_000_000) if due_us else poll_s
        if due_us != 0 and not unsure:
            return pause_s
        await tenure.trust.regained()
        request = ClaimDeliveries(tenure.worker, tuple(free.items()), tuple(self._in_hand), suspects)
        try:
            claimed = await tenure.store.claim_deliveries(request)
        except StoreUnavailable:
            self._unsure_until_s = tenure.clock.monotonic() + UNSURE_S
            raise
        for delivery in claimed:
            self._launch(delivery)
        return 0 if claimed else pause_s  # somebody else was faster

    def _free(self) -> dict[str, int]:
        """Of each sink, how many more it takes at once."""
        busy = Counter(delivery.sink for delivery in self._in_hand.values())
        sinks = self._tenure.sinks.items()
        return {
            name: min(sink.concurrency - busy[name], CLAIM_ROWS_MAX)
            for name, sink in sinks
            if busy[name] < sink.concurrency
        }

    def _suspects(self) -> int:
        """How many more suspects it takes: one at a time."""
        return 0 if any(delivery.suspect for delivery in self._in_hand.values()) else 1

    def _launch(self, delivery: Delivery) -> None:
        self._in_hand[delivery.id] = delivery
        task = asyncio.create_task(self._deliver(delivery), name=f"delivery {delivery_id(delivery.id)}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        """One try, and what came of it."""
        try:
            settlement = await self._try(delivery)
        except BaseException as error:  # the edge of user code: what it says is noted
            if self._broken_off or isinstance(error, KeyboardInterrupt):
                raise
            settlement = self._failed(delivery, self._tenure.sinks[delivery.sink], error)
        self._settlements.append(settlement)
        self._wake.set()

    async def _try(self, delivery: Delivery) -> Settlement:
        """Hand it over. What was claimed as often as it may be tried is tried all the same: of which claims its sink
        has heard, nobody knows."""
        if delivery.strikes >= STRIKES_MAX:
            why = f"{delivery.strikes} workers in a row died with it in their hands"
            return Settlement(delivery.id, delivery.attempts, DeliveryState.DEAD, error=why)
        sink = self._tenure.sinks[delivery.sink]
        item = await self._read(delivery)
        await within(sink.timeout_s, functools.partial(sink.deliver, item), "its sink did not take it")
        return Settlement(delivery.id, delivery.attempts, DeliveryState.DELIVERED)

    async def _read(self, delivery: Delivery) -> Outgoing:
        """What is handed over. That the store is away is none of the sink's failures: it is waited for."""
        while True:
            try:
                return await self._outgoing(delivery)
            except StoreUnavailable as error:
                emit("delivery.unread", delivery=delivery_id(delivery.id), sink=delivery.sink, error=one_line(error))
                await asyncio.sleep(UNREAD_S)
                await self._tenure.trust.regained()

    async def _outgoing(self, delivery: Delivery) -> Outgoing:
        return Outgoing(
            id=delivery_id(delivery.id), key=delivery.key, sink=delivery.sink, partition=delivery.partition,
            payload=await self._content(delivery), run_id=run_id(delivery.run), thread_id=delivery.thread_id,
            agent=delivery.agent, tenant=delivery.tenant, attempt=delivery.attempts,
            created_at=moment(delivery.created_at),
        )  # fmt: skip

    async def _content(self, delivery: Delivery) -> Any:
        store = self._tenure.store
        if delivery.bill:
            return await bill_of(store, delivery)
        return codec_for(Any).decode(await load_payload(store, delivery.thread, delivery.payload))

    def _failed(self, delivery: Delivery, sink: Sink, error: BaseException) -> Settlement:
        """It is tried again, or given up."""
        final = isinstance(error, Undeliverable) or not may_deliver_again(sink.retry, error)
        why = one_line(error, ERROR_CHARS)
        if final or delivery.attempts >= sink.retry.attempts:
            return Settlement(delivery.id, delivery.attempts, DeliveryState.DEAD, error=why)
        spread = 1 + sink.retry.jitter * self._tenure.random.random()
        asked_s = _asked_s(error, self._tenure.clock.wall_us())
        delay_s = max(backoff_s(sink.retry, delivery.attempts) * spread, asked_s)
        return Settlement(delivery.id, delivery.attempts, DeliveryState.QUEUED, int(delay_s * 1_000_000), why)

    async def _settle(self) -> None:
        """Put on disk what has come of tries, and say so; what could not be is sent again."""
        settlements = list(self._settlements)
        await self._tenure.store.settle_deliveries(self._tenure.worker, settlements)
        del self._settlements[: len(settlements)]
        for each in settlements:
            if (delivery := self._in_hand.pop(each.delivery, None)) is not None:
                _tell(delivery, each)

    def _hear(self, hint: Hint) -> None:
        if hint is Hint.DELIVER:
            self._wake.set()


def _asked_s(error: BaseException, now_us: int) -> float:
    """How long the other side asked to wait: as elsewhere, believed up to a day."""
    try:
        return min(retry_after_s(error, now_us) or 0.0, RETRY_AFTER_S_MAX)
    except (Exception, SystemExit):  # the edge of user code: an attribute of an error may do anything
        return 0.0


def _tell(delivery: Delivery, settlement: Settlement) -> None:
    about = {"delivery": delivery_id(delivery.id), "sink": delivery.sink, "run": run_id(delivery.run)}
    match settlement.state:
        case DeliveryState.DELIVERED:
            emit("delivery.delivered", **about, attempt=delivery.attempts)
        case DeliveryState.DEAD:
            emit("delivery.dead", **about, attempts=delivery.attempts, error=settlement.error)
        case _:
            delay_s = round(settlement.delay_us / 1_000_000, 3)
            emit("delivery.failed", **about, attempt=delivery.attempts, delay_s=delay_s, error=settlement.error)
