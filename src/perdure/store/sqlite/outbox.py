"""The outbox: deliveries as they enter their lanes, and as a relay takes and settles them.

What enters is decided in its order on what is there (keys and lanes, read as sets), and is then written as sets. A lane
has a row of its own, with its last number and how many of it are open; the first of them, alone, is `ready`. Bills
enter as the others do, when a run has ended, by whatever (`waiters.after_end`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from perdure.core import limits
from perdure.core.changes import Deliver
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, DeliveryState, NewDelivery, Settlement
from perdure.core.limits import CLAIM_ROWS_MAX, INLINE_BYTES_MAX, MIB
from perdure.core.requests import Bounce
from perdure.store.pages import ID_MAX, page_size
from perdure.store.protocol import Hint
from perdure.store.sqlite import rows
from perdure.store.sqlite.clock import MachineClock, look
from perdure.store.sqlite.transaction import Reader, Transaction, decode, encode

DELIVERIES_A_READ: Final = 64 * MIB // INLINE_BYTES_MAX
"""Deliveries in one answer. Their payloads travel as hex, and a text has its limit."""

UNDELIVERED: Final = frozenset({DeliveryState.QUEUED, DeliveryState.DELIVERING, DeliveryState.DEAD})
"""What somebody may have to see to, and what lies in an index of its own."""


class Lane(msgspec.Struct):
    """A lane while it is decided what enters and what leaves it."""

    sink: str
    partition: str
    last_seq: int = 0
    depth: int = 0
    changed: bool = False


class Lanes:
    """The lanes that a transaction has to do with."""

    def __init__(self, tx: Transaction, places: Iterable[tuple[str, str]]) -> None:
        self.tx = tx
        self.lanes = {place: Lane(*place) for place in places}
        for cursor in tx.spread("lanes_at", sorted(self.lanes)):
            for sink, partition, last_seq, depth in decode(cursor.fetchone()[0]):
                self.lanes[sink, partition] = Lane(sink, partition, last_seq, depth)

    def is_full(self, sink: str, partition: str) -> bool:
        """Whether no more may wait in this lane."""
        return self.lanes[sink, partition].depth >= limits.LANE_MAX

    def enter(self, sink: str, partition: str) -> tuple[int, bool]:
        """The number of the next delivery of a lane, and whether it is the head."""
        lane = self.lanes[sink, partition]
        lane.last_seq += 1
        lane.depth += 1
        lane.changed = True
        if lane.depth == 1:
            self.tx.hints.add(Hint.DELIVER)
        return lane.last_seq, lane.depth == 1

    def leave(self, sink: str, partition: str) -> None:
        """One delivery of a lane is over."""
        lane = self.lanes[sink, partition]
        assert lane.depth > 0, lane
        lane.depth -= 1
        lane.changed = True

    def write(self) -> None:
        """The rows of those that have changed."""
        changed = [each for each in self.lanes.values() if each.changed]
        self.tx.write("put_lanes", [(each.sink, each.partition, each.last_seq, each.depth) for each in changed])

    def promote(self) -> None:
        """Give the next of each of these lanes its turn. It has been due all the time."""
        if self.tx.write("promote_deliveries", sorted(self.lanes)):
            self.tx.hints.add(Hint.DELIVER)


class Outbox:
    """Deliveries that are handed over together."""

    def __init__(self, tx: Transaction, deliveries: Sequence[NewDelivery]) -> None:
        self.tx = tx
        self.keys: set[tuple[str, str]] = set()
        self.new: list[tuple[Any, ...]] = []
        self.blobs: list[tuple[int, bytes, bytes]] = []
        self.lanes = Lanes(tx, {(each.sink, each.partition) for each in deliveries})
        for cursor in tx.spread("known_deliveries", sorted({(each.key, each.sink) for each in deliveries})):
            self.keys |= {(sink, key) for sink, key in decode(cursor.fetchone()[0])}

    def why_not(self, delivery: NewDelivery) -> Bounce | None:
        """Why a delivery cannot enter its lane; None where it can, or has."""
        known = (delivery.sink, delivery.key) in self.keys
        return Bounce.FULL if not known and self.lanes.is_full(delivery.sink, delivery.partition) else None

    def deliver(self, change: Deliver) -> None:
        """Hand something over; nothing where its sink has had one with this key."""
        if self._enter(change.delivery, change.run, change.fence, bill=False):
            self.blobs += [(change.thread, blob.digest, blob.data) for blob in change.delivery.blobs]

    def bill(self, bill: NewDelivery, run: int, fence: int) -> None:
        """Hand over a run's bill, be its lane full or not."""
        self._enter(bill, run, fence, bill=True)

    def _enter(self, new: NewDelivery, run: int, fence: int, *, bill: bool) -> bool:
        if (new.sink, new.key) in self.keys:
            return False
        self.keys.add((new.sink, new.key))
        seq, ready = self.lanes.enter(new.sink, new.partition)
        place = (new.sink, new.partition, seq, new.key, bill, ready)
        self.new.append((new.id, run, fence, *place, new.payload, self.tx.now, self.tx.now))
        return True

    def write(self) -> None:
        """The rows of what is new."""
        if self.new:
            self.tx.write("put_blobs", self.blobs)
            self.tx.write("insert_deliveries", self.new)
            self.lanes.write()


def bill_ended(tx: Transaction, runs: Sequence[int]) -> None:
    """Hand over the bills of those of these runs that have ended and are billed."""
    due = tx.array("bills_due", runs=encode(runs))
    if not due:
        return
    tx.run("reserve_ids", count=len(due))
    first = tx.value("next_id") - len(due)
    bills = []
    for id, (run, fence, state, thread_id, sink, key, count) in enumerate(due, start=first):
        numbered = f"{key}:{count + 1}" if count else key
        bills.append((NewDelivery(id, sink, thread_id, numbered, state.encode("ascii")), run, fence))
    outbox = Outbox(tx, [bill for bill, _, _ in bills])
    for bill, run, fence in bills:
        outbox.bill(bill, run, fence)
    outbox.write()


# -- relays --------------------------------------------------------------------------------------------------


def claim_deliveries(tx: Transaction, request: ClaimDeliveries) -> list[Delivery]:
    """Put deliveries that are due into the worker's hands."""
    if not tx.value("is_alive", worker=request.worker):
        return []
    give_back(tx, request.worker, keep=request.keep)
    sinks = {sink: min(limit, CLAIM_ROWS_MAX) for sink, limit in request.sinks if limit > 0}
    few = max(0, request.suspects)
    suspects = tx.array("suspect_deliveries", sinks=encode(sinks), now=tx.now, limit=few) if few else []
    chosen = [id for id, _ in suspects]
    for sink, most in sinks.items():
        room = most - sum(1 for _, its in suspects if its == sink)
        chosen += tx.array("claimable_deliveries", sink=sink, now=tx.now, limit=room)
    if not chosen:
        return []
    tx.run("take_deliveries", ids=encode(chosen), worker=request.worker)
    taken = {each.id: each for each in _in_parts(tx, chosen)}
    return [taken[id] for id in chosen]


def give_back(tx: Transaction, worker: int, *, keep: Sequence[int] = (), struck: bool = False) -> None:
    """Queue again what a worker has in its hands, except what it keeps; `struck` says that it died with it."""
    if tx.run("return_deliveries", worker=worker, keep=encode(list(keep)), struck=int(struck), now=tx.now):
        tx.hints.add(Hint.DELIVER)


def settle_deliveries(tx: Transaction, worker: int, settlements: Sequence[Settlement]) -> None:
    """Write what came of tries, and give the lanes of those that are over their next heads."""
    told: dict[tuple[int, int], Settlement] = {}
    for each in settlements:
        told.setdefault((each.delivery, each.attempt), each)
    ids = encode(sorted({id for id, _ in told}))
    settled: list[tuple[Any, ...]] = []
    left: list[tuple[str, str]] = []
    for id, attempt, sink, partition in tx.array("deliveries_held", ids=ids, worker=worker):
        if (said := told.get((id, attempt))) is None:
            continue
        again = said.state is DeliveryState.QUEUED
        error = None if said.state is DeliveryState.DELIVERED else said.error
        settled.append((id, said.state, tx.now + said.delay_us if again else None, tx.now, error))
        if again and said.delay_us <= 0:
            tx.hints.add(Hint.DELIVER)
        if not again:
            left.append((sink, partition))
    tx.write("settle_deliveries", settled)
    if left:
        lanes = Lanes(tx, left)
        for place in left:
            lanes.leave(*place)
        lanes.write()
        lanes.promote()


def next_delivery(reader: Reader, sinks: Sequence[str], *, suspects: bool, clock: MachineClock) -> int | None:
    """How long until the next delivery to one of these sinks is due."""
    due = reader.value("next_delivery", sinks=encode(list(sinks)), suspects=int(suspects))
    return None if due is None else max(0, due - look(reader, clock).now)


# -- people --------------------------------------------------------------------------------------------------


def redeliver(tx: Transaction, deliveries: Sequence[int]) -> list[Delivery]:
    """Send dead deliveries on, at the ends of their lanes."""
    dead = {id: (sink, partition) for id, sink, partition in tx.array("dead_deliveries", ids=encode(list(deliveries)))}
    lanes = Lanes(tx, set(dead.values()))
    revived = [(id, *lanes.enter(*dead[id]), tx.now) for id in dict.fromkeys(deliveries) if id in dead]
    tx.write("revive_deliveries", revived)
    lanes.write()
    return list(_in_parts(tx, sorted(set(deliveries))))


def get_deliveries(reader: Reader, deliveries: Sequence[int]) -> list[Delivery]:
    return list(_in_parts(reader, sorted(set(deliveries))))


def _in_parts(reader: Reader, ids: Sequence[int]) -> Iterator[Delivery]:
    """These deliveries, in reads of a bounded size."""
    for start in range(0, len(ids), DELIVERIES_A_READ):
        part = encode(list(ids[start : start + DELIVERIES_A_READ]))
        yield from reader.records("get_deliveries", rows.DELIVERY, ids=part)


def overdue_deliveries(reader: Reader, *, before: int, limit: int) -> list[Delivery]:
    return reader.records("overdue_deliveries", rows.DELIVERY, before=before, limit=page_size(limit))


def deliveries(reader: Reader, where: DeliveryFilter) -> list[Delivery]:
    values: dict[str, Any] = {
        "state": where.state,
        "sink": where.sink,
        "partition": where.partition,
        "bill": where.bill,
        "tenant": where.tenant,
        "limit": page_size(where.limit),
        "after": where.after or 0,
        "before": ID_MAX if where.before is None else where.before,
    }
    place = {"run": where.run, "thread_id": where.thread_id}
    if where.key is not None:
        return reader.records("list_keyed_deliveries", rows.DELIVERY, **values, **place, key=where.key)
    if where.run is not None or where.thread_id is not None:
        return reader.records("list_run_deliveries", rows.DELIVERY, **values, **place)
    if where.state in UNDELIVERED:
        return reader.records("list_undelivered", rows.DELIVERY, **values)
    return reader.records("list_deliveries", rows.DELIVERY, **values)
