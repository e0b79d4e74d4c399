"""The outbox, as rows: what runs hand over to sinks, each once in the store and at least once at its sink.

A delivery's row is written in the commit of the step that asked for it (`Deliver`), or, for a bill, in the one that
ends its run. A relay claims it, hands it over, and says what came of it:

    queued -> delivering -> delivered | dead
                         -> queued                      tried again, later, under the same key
    dead -> queued                                      sent on by a person

A **lane** is a sink and a partition. Its deliveries go one after another, in the order of their commits (`seq`): only
its head, the first that is neither delivered nor dead, is `ready`. One that is dead lets the next go on. (The outbox
beside the state is Pat Helland's, 2007; a head per lane is how a thread keeps its runs in order.)
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from perdure.core.limits import SUSPECT_STRIKES
from perdure.core.records import Blob


class DeliveryState(StrEnum):
    """Where a delivery is."""

    QUEUED = "queued"
    DELIVERING = "delivering"
    """In a relay's hands; its worker may have died since."""
    DELIVERED = "delivered"
    """Its sink has taken it."""
    DEAD = "dead"
    """Given up: its sink has refused it for good, or for too long. It waits for a person."""


OPEN: Final = frozenset({DeliveryState.QUEUED, DeliveryState.DELIVERING})
"""Those that hold their lane."""


class NewDelivery(msgspec.Struct, frozen=True, gc=False):
    """Something to be handed over. `id` is a fresh number from `reserve_ids`; `key` is what the sink knows it by, and
    unique there; `blobs` are those of the run's thread that the payload refers to."""

    id: int
    sink: str
    partition: str
    key: str
    payload: bytes
    blobs: tuple[Blob, ...] = ()


class Billing(msgspec.Struct, frozen=True, gc=False):
    """Where a run's bill goes, and the key of its first one; the n-th of a run that was sent on after its end has `:n`
    behind it."""

    sink: str
    key: str


class Delivery(msgspec.Struct, frozen=True):
    """A delivery's row."""

    id: int
    run: int
    thread: int
    thread_id: str
    agent: str
    tenant: str | None
    sink: str
    partition: str
    seq: int
    """Its place in its lane, from 1, in the order of commits."""
    key: str
    bill: bool
    """It was written by the end of its run, and says what that has used. Its payload is the state in which the run has
    ended, as ASCII; whoever delivers it makes the bill of the meters."""
    fence: int
    """Of the claim that wrote it (of a bill: the run's when it ended)."""
    payload: bytes
    """Encoded; a large one is a reference to a blob of the thread, as in a checkpoint."""
    state: DeliveryState
    ready: bool
    """It is the head of its lane."""
    attempts: int
    """How often it was claimed."""
    strikes: int
    """How often its worker has died in a row with it in its hands."""
    due_at: int
    """Not before then is it claimed."""
    created_at: int
    settled_at: int | None
    """When somebody last said what came of it."""
    error: str | None
    """Why its last try failed; None for one that was delivered."""
    worker: int | None
    """Whose relay has it."""

    @property
    def suspect(self) -> bool:
        """So many workers have died with it that it may be why."""
        return self.strikes >= SUSPECT_STRIKES


class DeliveryFilter(msgspec.Struct, frozen=True):
    """Which deliveries to list, oldest id first, from after one id to before another. None means any."""

    state: DeliveryState | None = None
    sink: str | None = None
    partition: str | None = None
    key: str | None = None
    run: int | None = None
    thread_id: str | None = None
    tenant: str | None = None
    bill: bool | None = None
    limit: int = 100
    after: int | None = None
    before: int | None = None


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """What a worker's relay is ready to hand over now: for each sink, at most so many. `keep` are those that it has in
    its hands; what else the store thinks it has is from a claim whose answer was lost, and is queued again first."""

    worker: int
    sinks: tuple[tuple[str, int], ...]
    keep: tuple[int, ...] = ()
    suspects: int = 1
    """At most this many with `strikes >= SUSPECT_STRIKES` among them, and of a sink no more than its limit."""


class Settlement(msgspec.Struct, frozen=True):
    """What came of a try: `delivered`, `dead`, or `queued` again after `delay_us`. `attempt` is the row's `attempts` as
    it was claimed."""

    delivery: int
    attempt: int
    state: DeliveryState
    delay_us: int = 0
    error: str | None = None


def delivery_id(id: int) -> str:
    """The name of a delivery outside: `"d"` and its number."""
    return f"d{id}"
