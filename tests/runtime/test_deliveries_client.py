"""The outbox from a client: what is listed, what one delivery says, and sending dead ones on."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from perdure.client.deliveries import delivery_filter, redeliver_all
from perdure.core.codec import encode
from perdure.core.deliveries import Billing, DeliveryState, delivery_id
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import run_id
from perdure.core.snapshot import spill
from perdure.errors import Conflict, NotFound, UsageError
from perdure.testing.conformance.harness import end, step
from perdure.testing.conformance.parcels import fetch_one, handed, meter, settled
from tests.runtime.desk import Desk, at_a_desk

QUEUED, DELIVERING = DeliveryState.QUEUED, DeliveryState.DELIVERING
DELIVERED, DEAD = DeliveryState.DELIVERED, DeliveryState.DEAD

EVERYTHING: dict[str, Any] = {
    "state": None, "sink": None, "partition": None, "key": None, "run_id": None, "thread_id": None, "tenant": None,
    "bill": None, "limit": 100, "after": None,
}  # fmt: skip


async def dead(desk: Desk, thread_id: str = "thread", **fields: Any) -> tuple[int, str]:
    """A delivery that was given up, and the worker that has it."""
    of_run = {name: fields.pop(name) for name in ("agent", "tenant") if name in fields}
    worker, claimed = await desk.bench.begin(thread_id, payload=encode([[], {}]), **of_run)
    (number,) = await handed(desk.bench, worker, claimed, **({"payload": encode({"cents": 5})} | fields))
    await settled(desk.bench, await fetch_one(desk.bench, worker), DEAD, error="HTTPError: 503")
    return worker, delivery_id(number)


@at_a_desk
async def test_a_delivery_is_shown_as_it_stands(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin(tenant="acme", payload=encode([[], {}]))
    first, second = await handed(desk.bench, worker, claimed, 2, payload=encode({"cents": 5}))
    await fetch_one(desk.bench, worker)

    one, two = await desk.app.delivery_info(f"d{first}"), await desk.app.delivery_info(f"d{second}")

    assert (one.id, one.run_id, one.thread_id, one.agent) == (f"d{first}", run_id(claimed.run), "thread", "agent")
    assert (one.sink, one.partition, one.seq, one.key) == ("bus", "p", 1, f"key of {first}")
    assert (one.payload, one.bill, one.tenant, one.error) == ({"cents": 5}, False, "acme", None)
    assert (one.state, one.attempts, one.worker, one.ready) == (DELIVERING, 1, f"w{worker}", True)
    assert (two.state, two.attempts, two.worker, two.ready, two.seq) == (QUEUED, 0, None, False, 2)
    assert one.created_at.tzinfo is UTC and two.settled_at is None


@at_a_desk
async def test_a_large_payload_is_shown_whole(desk: Desk) -> None:
    large = "x" * (2 * INLINE_BYTES_MAX)
    payload, blobs = spill(encode([large]))
    _, name = await dead(desk, payload=payload, blobs=blobs)

    assert (await desk.app.delivery_info(name)).payload == [large]


@at_a_desk
async def test_a_bill_says_what_its_sink_is_told(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin(billing=Billing("bills", "b1"), tenant="acme", payload=encode([[], {}]))
    await desk.bench.commit(worker, step(claimed, "a", meters=(meter("tokens", 7),)), end(claimed, encode(None)))

    (listed,) = await desk.app.deliveries(bill=True)
    told = (await desk.app.delivery_info(listed.id)).payload

    assert (listed.sink, listed.key, listed.bill) == ("bills", "b1", True)
    assert listed.payload == {"type": "bill", "run_id": run_id(claimed.run), "state": "completed"}
    assert (told["state"], told["tenant"], told["usage"]) == ("completed", "acme", {"tokens": "7"})
    assert await desk.app.deliveries(bill=False) == []


@at_a_desk
async def test_the_outbox_can_be_searched(desk: Desk) -> None:
    _, one = await dead(desk, "one", tenant="acme", partition="a", key="k1")
    worker, claimed = await desk.bench.begin("two")
    (number,) = await handed(desk.bench, worker, claimed, sink="mail", payload=encode(None))
    two, find = delivery_id(number), desk.app.deliveries

    assert [info.id for info in await find()] == [one, two]
    assert [info.id for info in await find(state="dead")] == [one]
    assert [info.id for info in await find(sink="mail")] == [two]
    assert [info.id for info in await find(partition="a")] == [one]
    assert [info.id for info in await find(key="k1")] == [one]
    assert [info.id for info in await find(run_id=run_id(claimed.run))] == [two]
    assert [info.id for info in await find(thread_id="one")] == [one]
    assert [info.id for info in await find(tenant="acme")] == [one]
    assert [info.id for info in await find(limit=1)] == [one]
    assert [info.id for info in await find(limit=1, after=one)] == [two]


@at_a_desk
async def test_what_no_delivery_can_be_is_refused_with_the_remedy(desk: Desk) -> None:
    for wrong, said in (
        (desk.app.deliveries(state="open"), "they are: queued"),
        (desk.app.deliveries(bill="yes"), "True, False or None"),  # type: ignore[arg-type]
        (desk.app.deliveries(run_id="d1"), "r42"),
        (desk.app.deliveries(sink=""), "sink"),
        (desk.app.deliveries(partition=""), "partition"),
        (desk.app.deliveries(key=""), "key"),
        (desk.app.deliveries(limit=0), "limit"),
        (desk.app.deliveries(after="e1"), "d42"),
        (desk.app.delivery_info("e1"), "d42"),
        (desk.app.redeliver("17"), "d42"),
    ):
        with pytest.raises(UsageError, match=said):
            await wrong
    for absent in (desk.app.delivery_info("d99999"), desk.app.redeliver("d99999")):
        with pytest.raises(NotFound, match="perdure deliveries list"):
            await absent


# -- sending on -----------------------------------------------------------------------------------------------------


@at_a_desk
async def test_a_dead_delivery_is_sent_on_under_its_key_at_the_end_of_its_lane(desk: Desk) -> None:
    worker, name = await dead(desk)
    before = await desk.app.delivery_info(name)

    after = await desk.app.redeliver(name)

    assert (after.state, after.attempts, after.key) == (QUEUED, 0, before.key)
    assert after.seq > before.seq and after.error == "HTTPError: 503"
    assert delivery_id((await fetch_one(desk.bench, worker)).id) == name


@at_a_desk
async def test_one_that_is_not_dead_is_a_conflict_that_says_why(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    (number,) = await handed(desk.bench, worker, claimed, payload=encode(None))
    name = delivery_id(number)

    with pytest.raises(Conflict, match="tried without you") as refused:
        await desk.app.redeliver(name)
    assert (refused.value.delivery_id, refused.value.state) == (name, QUEUED)

    claim = await fetch_one(desk.bench, worker)
    with pytest.raises(Conflict, match="relay has it in hand"):
        await desk.app.redeliver(name)

    await settled(desk.bench, claim)
    with pytest.raises(Conflict, match="sink has taken it"):
        await desk.app.redeliver(name)


@at_a_desk
async def test_all_that_a_filter_finds_dead_are_sent_on_once_each(desk: Desk) -> None:
    worker, one = await dead(desk, "one", partition="a")
    _, two = await dead(desk, "two", partition="b")
    client = await desk.app._client()

    assert await redeliver_all(client, delivery_filter(**(EVERYTHING | {"partition": "b"}))) == 1
    assert [info.id for info in await desk.app.deliveries(state="dead")] == [one]
    await settled(desk.bench, await fetch_one(desk.bench, worker), DEAD)
    assert await redeliver_all(client, delivery_filter(**EVERYTHING)) == 2
    assert [info.id for info in await desk.app.deliveries(state="queued")] == [one, two]
    assert await redeliver_all(client, delivery_filter(**EVERYTHING)) == 0
