"""`deliver`: hand something over to a sink, once the step that says so is on disk.

The delivery is a row in the commit of its record, so it is there exactly if the run knows of it. A relay hands it over
afterwards (`relay.py`); the run does not wait for that, and nothing that the sink does can fail it.
"""

from __future__ import annotations

from typing import Any, Final

from perdure.core.changes import Deliver
from perdure.core.codec import codec_for
from perdure.core.deliveries import NewDelivery
from perdure.core.labels import message_bytes
from perdure.core.limits import ID_CHARS_MAX, LANE_MAX
from perdure.core.shown import did_you_mean, shown
from perdure.core.snapshot import spill
from perdure.errors import OutboxFull, UsageError
from perdure.runtime.dispatching import idempotency_key
from perdure.runtime.recording import Call
from perdure.runtime.settings import check_name
from perdure.runtime.superstep import SuperStep

_KEY: Final = codec_for(str)


async def deliver(sink: str, payload: Any, *, key: str | None = None, partition: str | None = None) -> str:
    """Hand this over to a sink of the app: on disk, in one commit with this step, when it returns; delivered after
    that, at least once, under one key, which is returned.

    `payload`: JSON-shaped data, or a value of a type that can be recorded. `key`: what the other side is to know it by;
    a sink gets one delivery of a key, the first (without one it gets a key of its own). `partition`: deliveries to one
    sink with one partition arrive in the order of their commits; by default it is the thread. Raises `OutboxFull` where
    very many wait there already.
    """
    name = check_name("a sink's name", sink)
    chosen = None if key is None else check_name("a delivery's key", key, ID_CHARS_MAX)
    where = None if partition is None else check_name("a partition", partition, ID_CHARS_MAX)
    whole = message_bytes(payload)
    call = await Call.of("deliver", f"deliver:{name}", (whole, chosen, where))
    at = call.at
    if call.record is not None:
        made: str = await at.replay(call.record, _KEY.decode)
        return made
    _known(at, name)
    claimed = at.claimed
    chosen = chosen or idempotency_key(at.host.random)
    shortened, blobs = spill(whole)
    delivery = NewDelivery(await at.host.ids.take(1), name, where or claimed.thread_id, chosen, shortened, blobs)
    at.check()
    change = Deliver(
        claimed.run, claimed.fence, claimed.thread, at.number, call.key, call.result(_KEY.encode(chosen)), delivery
    )  # fmt: skip
    if await call.done(change) is None:
        return chosen
    record = call.failed(
        OutboxFull(
            f"{LANE_MAX:,} deliveries wait for sink {name!r} in partition {delivery.partition!r}, as many as may; see "
            f"what holds them up (`perdure deliveries list --sink {name}`), or spread them over partitions",
            sink=name, partition=delivery.partition, limit=LANE_MAX,
        )
    )  # fmt: skip
    at.submit(record)
    raise call.raised(record)


def _known(at: SuperStep, name: str) -> None:
    """A sink that nobody has registered would keep its deliveries for ever."""
    sinks = at.host.sinks
    if name in sinks:
        return
    guess = did_you_mean(name, sinks)
    known = ", ".join(map(repr, sorted(sinks))) or "none"
    raise UsageError(
        f"there is no sink {shown(name)}{guess} on this worker's app; registered are: {known}. Register it before the "
        f"worker starts: app.sink({name!r}, ...)"
    )
