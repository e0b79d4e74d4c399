"""The outbox for people: what runs have handed over, what waits for its sink, and what was given up.

A delivery that its sink refuses for good, or for too long, is dead: it waits for a person, and its lane goes on without
it. Whoever has mended the cause sends it on, under the same key, at the end of its lane; what is on its way already, or
delivered, is not sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from msgspec.structs import replace

from perdure.client.connection import Client
from perdure.client.requests import page_limit, run_number
from perdure.core.deliveries import Delivery, DeliveryFilter, DeliveryState, delivery_id
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import parse_id, run_id, worker_id
from perdure.core.shown import shown
from perdure.errors import Conflict, NotFound, UsageError
from perdure.runtime.billing import bill_of
from perdure.runtime.info import maybe, moment, plain
from perdure.runtime.patience import patiently
from perdure.runtime.payloads import load_payload
from perdure.runtime.settings import check_name
from perdure.runtime.starting import checked_id
from perdure.store.protocol import Store


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """A delivery, as it was when it was read."""

    id: str
    """Its name: `d42`."""
    run_id: str
    """The run that handed it over."""
    thread_id: str
    agent: str
    sink: str
    partition: str
    """With the sink, its lane: deliveries of a lane go one after another."""
    seq: int
    """Its place in its lane."""
    key: str
    """What the sink knows it by: the same in every try."""
    bill: bool
    """Whether it says what its run has used."""
    payload: Any
    """Plain data. Of a bill all that it says, as its sink gets it; in a listing its `type`, `run_id` and `state` alone.
    """
    state: DeliveryState
    """`queued`, `delivering`, `delivered` or `dead`."""
    ready: bool
    """Whether it is its turn in its lane."""
    attempts: int
    """How often it was tried."""
    due_at: datetime
    """When it may be tried next, where it is queued."""
    created_at: datetime
    settled_at: datetime | None
    """When its last try ended."""
    error: str | None
    """Why its last try failed."""
    worker: str | None
    """Whose relay has it."""
    tenant: str | None


# -- reading --------------------------------------------------------------------------------------------------------


def delivery_filter(
    *, state: str | None, sink: str | None, partition: str | None, key: str | None, run_id: str | None,
    thread_id: str | None, tenant: str | None, bill: bool | None, limit: int, after: str | None,
) -> DeliveryFilter:  # fmt: skip
    """Which deliveries to list; a name that nothing can have is refused."""
    if bill is not None and not isinstance(bill, bool):
        raise UsageError(f"bill is {shown(bill)}; it is True, False or None")
    return DeliveryFilter(
        state=None if state is None else _state(state),
        sink=None if sink is None else check_name("a sink's name", sink),
        partition=None if partition is None else checked_id("a partition", partition),
        key=None if key is None else checked_id("a delivery's key", key),
        run=None if run_id is None else run_number(run_id),
        thread_id=None if thread_id is None else checked_id("a thread id", thread_id),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        bill=bill,
        limit=page_limit(limit),
        after=None if after is None else delivery_number(after),
    )


async def listed(client: Client, where: DeliveryFilter) -> list[DeliveryInfo]:
    """A page of the outbox."""
    return [await _info(client.store, row) for row in await client.store.deliveries(where)]


async def found(client: Client, delivery: str) -> DeliveryInfo:
    """One delivery, whatever its state."""
    (row,) = await _rows(client, [delivery])
    return await _info(client.store, row, bill=await bill_of(client.store, row) if row.bill else None)


def delivery_number(name: object) -> int:
    """The number behind a delivery's id."""
    number = parse_id("d", name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(
            f"{shown(name)} is not a delivery's id: they look like d42 (`perdure deliveries list` shows them)"
        )
    return number


OVERDUE_US: Final = 60_000_000
"""A delivery that has been due for so long is not just about to be taken."""

AROUND: Final = 500
"""So many ids from a delivery's, on either side (one that was sent on goes behind newer ones), the one before it in its
lane is looked for."""


async def due_since(store: Store, row: Delivery) -> int | None:
    """Since when a delivery could have been taken, and nobody did: it is due, and it was its turn. None for one that
    waits for its time or its turn, or that is not queued."""
    if row.state is not DeliveryState.QUEUED or not row.ready:
        return None
    where = DeliveryFilter(
        sink=row.sink, partition=row.partition, after=max(row.id - AROUND - 1, 0), before=row.id + AROUND,
        limit=2 * AROUND,
    )  # fmt: skip
    lane = await store.deliveries(where) if row.seq > 1 else ()
    turn = max((each.settled_at or 0 for each in lane if each.id != row.id and each.seq < row.seq), default=0)
    since = max(row.due_at, turn)
    return since if since < await store.now_us() else None


# -- sending on -----------------------------------------------------------------------------------------------------


async def redeliver(client: Client, deliveries: Sequence[str]) -> list[DeliveryInfo]:
    """Send dead deliveries on, in this order: all of these, or none where one of them is not there or not dead. Returns
    them as they are then, by id."""
    rows = await _rows(client, deliveries)
    for row in rows:
        if row.state is not DeliveryState.DEAD:
            raise _not_dead(row)
    return [await _info(client.store, row) for row in await _sent_on(client, rows)]


async def redeliver_all(client: Client, where: DeliveryFilter) -> int:
    """Send on every dead delivery that the filter finds, each once, oldest first; how many those were."""
    count = 0
    page = replace(where, state=DeliveryState.DEAD, limit=LIST_ROWS_MAX)
    while rows := await client.store.deliveries(page):
        count += len(await _sent_on(client, rows))
        page = replace(page, after=rows[-1].id)
    return count


async def _sent_on(client: Client, rows: Sequence[Delivery]) -> list[Delivery]:
    """Once more with the same ids it finds them sent on."""
    numbers = [row.id for row in rows]
    return await patiently("redeliver", lambda: client.store.redeliver(numbers))


_WHY_NOT: Final = {
    DeliveryState.QUEUED: "it waits for its turn or its time, and is tried without you",
    DeliveryState.DELIVERING: "a relay has it in hand; if that dies, another one tries it again",
    DeliveryState.DELIVERED: "its sink has taken it",
}


def _not_dead(row: Delivery) -> Conflict:
    """Why a delivery in this state is not sent on."""
    name = delivery_id(row.id)
    return Conflict(
        f"delivery {name} ({row.key!r} to sink {row.sink}) is {row.state}, and only a dead one is sent on: "
        f"{_WHY_NOT[row.state]} (`perdure deliveries show {name}`)",
        delivery_id=name, run_id=run_id(row.run), state=row.state,
    )  # fmt: skip


async def _rows(client: Client, deliveries: Sequence[str]) -> list[Delivery]:
    """These deliveries, each once, in the order given; `NotFound` for the first that is not there."""
    numbers = list(dict.fromkeys(delivery_number(name) for name in deliveries))
    rows = {row.id: row for row in await client.store.get_deliveries(numbers)}
    for number in numbers:
        if number not in rows:
            name = delivery_id(number)
            raise NotFound(
                f"no delivery {name} in {client.store.url}; `perdure deliveries list` shows those there are", id=name
            )
    return [rows[number] for number in numbers]


# -- views ----------------------------------------------------------------------------------------------------------


async def _info(store: Store, row: Delivery, *, bill: dict[str, Any] | None = None) -> DeliveryInfo:
    """A view of a delivery; `bill` is what one says, where that was made."""
    if row.bill:
        payload = bill or {"type": "bill", "run_id": run_id(row.run), "state": row.payload.decode("ascii")}
    else:
        payload = plain(await load_payload(store, row.thread, row.payload))
    return DeliveryInfo(
        id=delivery_id(row.id), run_id=run_id(row.run), thread_id=row.thread_id, agent=row.agent, sink=row.sink,
        partition=row.partition, seq=row.seq, key=row.key, bill=row.bill, payload=payload, state=row.state,
        ready=row.ready, attempts=row.attempts, due_at=moment(row.due_at), created_at=moment(row.created_at),
        settled_at=maybe(row.settled_at), error=row.error,
        worker=None if row.worker is None else worker_id(row.worker), tenant=row.tenant,
    )  # fmt: skip


def _state(text: str) -> DeliveryState:
    if not isinstance(text, str) or text not in tuple(DeliveryState):
        raise UsageError(f"{shown(text)} is not a state of a delivery; they are: {', '.join(DeliveryState)}")
    return DeliveryState(text)
