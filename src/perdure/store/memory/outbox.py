"""The outbox: its rows, and the lanes that give them their turn.

A lane is a list of open deliveries in the order of their commits; its first one, alone, is `ready`. What becomes
claimable is told to whoever made the outbox.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from perdure.core import limits
from perdure.core.changes import Deliver
from perdure.core.deliveries import (
    OPEN,
    Billing,
    ClaimDeliveries,
    Delivery,
    DeliveryFilter,
    DeliveryState,
    NewDelivery,
    Settlement,
)
from perdure.core.records import Run
from perdure.core.requests import Bounce
from perdure.store.pages import page_size

Lane = tuple[str, str]
"""A sink and a partition."""


class Outbox:
    """What runs have handed over. Whoever reads or writes holds the lock of the tables that it belongs to."""

    def __init__(self, on_claimable: Callable[[], None]) -> None:
        self._on_claimable = on_claimable
        self._rows: dict[int, Delivery] = {}
        self._keys: dict[tuple[str, str], int] = {}
        """Sink and key to delivery."""
        self._open: dict[Lane, list[int]] = defaultdict(list)
        self._last_seq: dict[Lane, int] = defaultdict(int)
        self._bills: dict[int, int] = defaultdict(int)
        """How many a run has."""

    # -- what commits write ----------------------------------------------------------------------------------

    def bounce(self, new: NewDelivery) -> Bounce | None:
        """Why the delivery cannot be taken; None where it can, or has been."""
        known = (new.sink, new.key) in self._keys
        return Bounce.FULL if not known and len(self._open[new.sink, new.partition]) >= limits.LANE_MAX else None

    def put(self, change: Deliver, run: Run, *, now: int) -> bool:
        """Put a delivery at the end of its lane; False where its sink has had one with this key."""
        return self._put(change.delivery, run, fence=change.fence, bill=False, now=now)

    def bill(self, run: Run, billing: Billing, id: int, *, now: int) -> None:
        """Put the bill of a run that has ended at the end of its lane, also of a full one."""
        number = self._bills[run.id] + 1
        key = billing.key if number == 1 else f"{billing.key}:{number}"
        new = NewDelivery(id, billing.sink, run.thread_id, key, run.state.value.encode("ascii"))
        if self._put(new, run, fence=run.fence, bill=True, now=now):
            self._bills[run.id] = number

    def _put(self, new: NewDelivery, run: Run, *, fence: int, bill: bool, now: int) -> bool:
        if (new.sink, new.key) in self._keys:
            return False
        self._keys[new.sink, new.key] = new.id
        row = Delivery(
            id=new.id,
            run=run.id,
            thread=run.thread,
            thread_id=run.thread_id,
            agent=run.agent,
            tenant=run.tenant,
            sink=new.sink,
            partition=new.partition,
            seq=0,
            key=new.key,
            bill=bill,
            fence=fence,
            payload=new.payload,
            state=DeliveryState.QUEUED,
            ready=False,
            attempts=0,
            strikes=0,
            due_at=now,
            created_at=now,
            settled_at=None,
            error=None,
            worker=None,
        )
        self._enter(row, now=now)
        return True

    # -- what relays and people do ---------------------------------------------------------------------------

    def claim(self, request: ClaimDeliveries, *, now: int) -> list[Delivery]:
        """Take what is due, those that are due longest first, but suspects before the others."""
        self.give_back(request.worker, keep=request.keep, now=now)
        due = {sink: self._due(sink, now=now) for sink, limit in request.sinks if limit > 0}
        suspects = sorted((row for rows in due.values() for row in rows if row.suspect), key=_since)
        places = dict(request.sinks)
        fitting = [row for row in suspects if _number(row, suspects) < places[row.sink]]
        chosen = fitting[: max(0, request.suspects)]
        for sink, limit in request.sinks:
            room = max(0, limit - sum(row.sink == sink for row in chosen))
            chosen += [row for row in due.get(sink, ()) if not row.suspect][:room]
        return [
            self._set(row, state=DeliveryState.DELIVERING, worker=request.worker, attempts=row.attempts + 1)
            for row in chosen
        ]

    def give_back(self, worker: int, *, keep: Sequence[int] = (), struck: bool = False, now: int) -> None:
        """Queue again what the worker has in its hands, but for what it is to keep; `struck`: it died with it."""
        for row in [row for row in self._rows.values() if row.worker == worker and row.id not in keep]:
            self._set(row, state=DeliveryState.QUEUED, worker=None, due_at=now, strikes=row.strikes + struck)
            self._on_claimable()

    def settle(self, worker: int, said: Settlement, *, now: int) -> None:
        """What came of a try; nothing where that is not this worker's any more."""
        row = self._rows.get(said.delivery)
        if row is None or (row.worker, row.attempts) != (worker, said.attempt):
            return
        error = None if said.state is DeliveryState.DELIVERED else said.error
        row = self._set(row, state=said.state, worker=None, settled_at=now, error=error, strikes=0)
        if said.state in OPEN:
            assert said.state is DeliveryState.QUEUED, said
            self._set(row, due_at=now + said.delay_us)
            return
        self._open[row.sink, row.partition].remove(row.id)
        self._set(row, ready=False)
        self._give_turn((row.sink, row.partition))

    def redeliver(self, delivery: int, *, now: int) -> None:
        """Send a dead delivery on, at the end of its lane."""
        row = self._rows.get(delivery)
        if row is not None and row.state is DeliveryState.DEAD:
            revived = msgspec.structs.replace(row, state=DeliveryState.QUEUED, attempts=0, strikes=0, due_at=now)
            self._enter(revived, now=now)

    # -- lanes -----------------------------------------------------------------------------------------------

    def _enter(self, row: Delivery, *, now: int) -> None:
        """Put a row at the end of its lane."""
        assert row.due_at <= now
        lane = row.sink, row.partition
        self._last_seq[lane] += 1
        self._set(row, seq=self._last_seq[lane])
        self._open[lane].append(row.id)
        self._give_turn(lane)

    def _give_turn(self, lane: Lane) -> None:
        """Make the first of a lane ready, if it is not yet."""
        head = next((self._rows[each] for each in self._open[lane]), None)
        if head is not None and not head.ready:
            self._set(head, ready=True)
            self._on_claimable()

    def _set(self, row: Delivery, **fields: object) -> Delivery:
        self._rows[row.id] = msgspec.structs.replace(row, **fields)
        return self._rows[row.id]

    # -- reading ---------------------------------------------------------------------------------------------

    def next_due(self, sinks: Iterable[str], *, suspects: bool, now: int) -> int | None:
        """How long until the next one of these sinks is due."""
        waiting = (row.due_at - now for row in self._waiting() if row.sink in sinks and (suspects or not row.suspect))
        first = min(waiting, default=None)
        return None if first is None else max(0, first)

    def get(self, deliveries: Iterable[int]) -> list[Delivery]:
        return [self._rows[each] for each in sorted(set(deliveries)) if each in self._rows]

    def page(self, where: DeliveryFilter) -> list[Delivery]:
        """Deliveries, oldest id first."""
        return [row for row in self.get(self._rows) if _matches(row, where)][: page_size(where.limit)]

    def overdue(self, before: int, *, limit: int) -> list[Delivery]:
        """Those whose turn it is, and that were due before then."""
        return sorted((row for row in self._waiting() if row.due_at < before), key=_since)[: page_size(limit)]

    def _due(self, sink: str, *, now: int) -> list[Delivery]:
        due = (row for row in self._waiting() if row.sink == sink and row.due_at <= now)
        return sorted(due, key=_since)

    def _waiting(self) -> Iterable[Delivery]:
        heads = (self._rows[lane[0]] for lane in self._open.values() if lane)
        return (row for row in heads if row.state is DeliveryState.QUEUED)


def _number(row: Delivery, rows: Sequence[Delivery]) -> int:
    """How many of these to the same sink come before this one."""
    return sum(each.sink == row.sink for each in rows[: rows.index(row)])


def _since(row: Delivery) -> tuple[int, int]:
    return row.due_at, row.id


def _matches(row: Delivery, where: DeliveryFilter) -> bool:
    return (
        (where.after is None or row.id > where.after)
        and (where.before is None or row.id < where.before)
        and (where.state is None or row.state is where.state)
        and (where.sink is None or row.sink == where.sink)
        and (where.partition is None or row.partition == where.partition)
        and (where.key is None or row.key == where.key)
        and (where.run is None or row.run == where.run)
        and (where.thread_id is None or row.thread_id == where.thread_id)
        and (where.tenant is None or row.tenant == where.tenant)
        and (where.bill is None or row.bill is where.bill)
    )
