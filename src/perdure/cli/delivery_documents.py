"""Deliveries as JSON documents. The names are a contract: they are `DeliveryInfo`'s. Pure."""

from __future__ import annotations

from perdure.cli.waiting_documents import Document, jsonable, utc
from perdure.client.deliveries import DeliveryInfo
from perdure.core.deliveries import Delivery, delivery_id


def delivery_document(info: DeliveryInfo) -> Document:
    """A delivery."""
    return {
        "id": info.id,
        "run_id": info.run_id,
        "thread_id": info.thread_id,
        "agent": info.agent,
        "sink": info.sink,
        "partition": info.partition,
        "seq": info.seq,
        "key": info.key,
        "bill": info.bill,
        "payload": jsonable(info.payload),
        "state": info.state.value,
        "ready": info.ready,
        "attempts": info.attempts,
        "due_at": utc(info.due_at),
        "created_at": utc(info.created_at),
        "settled_at": utc(info.settled_at),
        "error": info.error,
        "worker": info.worker,
        "tenant": info.tenant,
    }


def handed_document(row: Delivery) -> Document:
    """A delivery, as its run's page lists it: `deliveries show` has all of it."""
    return {
        "id": delivery_id(row.id),
        "sink": row.sink,
        "partition": row.partition,
        "key": row.key,
        "bill": row.bill,
        "state": row.state.value,
        "attempts": row.attempts,
        "error": row.error,
    }
