"""Bills: what a run has used, once for each time that it has ended.

The end of a run that is billed writes a delivery without content (`Delivery.bill`). The content is made when it is
handed over, of the meters that the run's claims have written since its last bill: they do not change any more, so every
try makes the same.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.core.deliveries import Delivery, DeliveryFilter
from perdure.core.meters import UsageBy, UsageFilter, quantity
from perdure.core.records import run_id
from perdure.runtime.info import moment
from perdure.store.protocol import Store


async def bill_of(store: Store, delivery: Delivery) -> dict[str, Any]:
    """The content of a bill."""
    before = await _earlier(store, delivery)
    (run,) = await store.get_runs([delivery.run])
    return {
        "type": "bill",
        "run_id": run_id(delivery.run),
        "thread_id": delivery.thread_id,
        "agent": delivery.agent,
        "tenant": delivery.tenant,
        "state": delivery.payload.decode("ascii"),
        "number": len(before) + 1,
        "created_at": moment(run.created_at).isoformat(),
        "ended_at": moment(delivery.created_at).isoformat(),
        "usage": await _usage(store, delivery, after_fence=max(before, default=None)),
    }


async def _earlier(store: Store, delivery: Delivery) -> list[int]:
    """The fences of the run's earlier bills. Bills of a run that nobody has claimed between two cancellations have one
    fence."""
    where = DeliveryFilter(run=delivery.run, bill=True)
    found: list[int] = []
    while page := await store.deliveries(where):
        found += [row.fence for row in page if (row.fence, row.id) < (delivery.fence, delivery.id)]
        where = replace(where, after=page[-1].id)
    return found


async def _usage(store: Store, delivery: Delivery, *, after_fence: int | None) -> dict[str, str]:
    where = UsageFilter(UsageBy.RUN, run=delivery.run, after_fence=after_fence, fence=delivery.fence)
    found: dict[str, str] = {}
    while page := await store.usage(where):
        found |= {row.name: str(quantity(row.quantity)) for row in page}
        where = replace(where, after=(page[-1].group, page[-1].name))
    return found
