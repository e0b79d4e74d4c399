"""The stage and agents that hand over: recording sinks, faults at them, bills, and crashes at every place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import App, Retry, RunFailed, Sink, Undeliverable, UsageError
from perdure.core.limits import RECOVERIES_MAX
from perdure.runtime.sinks import Outgoing
from perdure.testing import (
    NeverEnded,
    answer_step,
    crash_after,
    crash_before,
    crash_in,
    fail_step,
    rehearse,
    slow_step,
)

app = App("handing", store="memory://staged-handing", billing="bills")


class Abroad(Sink):
    """What no test may reach."""

    retry = Retry(attempts=3, delay_s=600, max_delay_s=3600, jitter=0)
    timeout_s = 30.0

    async def deliver(self, item: Outgoing) -> None:
        raise AssertionError(f"{item} has left the test")


for name in ("orders", "mails", "bills"):
    app.sink(name, Abroad())


@perdure.step
async def price(item: str) -> int:
    perdure.meter("tokens", 100, model="small")
    perdure.meter("usd", 0.25)
    return len(item)


@app.agent
async def order(item: str) -> str:
    cents = await price(item)
    await perdure.deliver("orders", {"item": item, "cents": cents}, key=f"order {item}")
    await perdure.deliver("mails", f"you have bought {item}")
    return item


@app.agent
async def chatty(count: int) -> None:
    for n in range(count):
        await perdure.deliver("orders", n)


class Patient(Sink):
    """With the outbox's own patience."""

    async def deliver(self, item: Outgoing) -> None:
        raise AssertionError(f"{item} has left the test")


async def one_order(key: str) -> None:
    await perdure.deliver("orders", key, partition=key, key=key)


def of(stage: Any, sink: str) -> list[Any]:
    return [each.payload for each in stage.handed_over if each.sink == sink]


def test_a_stage_records_what_is_handed_over_in_the_place_of_the_apps_sinks() -> None:
    with rehearse(app) as stage:
        assert stage.run(order, "tea", thread_id="t-1", tenant="acme") == "tea"
        stage.hand_over()
        (first,) = [each for each in stage.handed_over if each.sink == "orders"]
        assert (first.key, first.payload, first.partition) == ("order tea", {"item": "tea", "cents": 3}, "t-1")
        assert (first.run_id, first.thread_id, first.tenant) == (stage.deliveries()[0].run_id, "t-1", "acme")
        assert (first.attempt, first.again) == (1, False)
        assert of(stage, "mails") == ["you have bought tea"]
        stage.assert_delivered_once()
        assert stage.count("sink:orders") == stage.count("order tea") == 1


def test_deliveries_of_one_lane_arrive_in_order() -> None:
    with rehearse(app, fail_step("sink:orders", ConnectionError, nth=2)) as stage:
        stage.run(chatty, 5)
        stage.assert_delivered_once("orders")
        assert of(stage, "orders") == [0, 1, 2, 3, 4]


def test_a_bill_says_what_its_run_has_used() -> None:
    with rehearse(app) as stage:
        stage.run(order, "tea", tenant="acme")
        stage.hand_over()
        (bill,) = of(stage, "bills")
        assert (bill["state"], bill["tenant"], bill["usage"]) == ("completed", "acme", {"tokens": "100", "usd": "0.25"})
        assert {row.name: int(row.quantity * 100) for row in stage.usage("tenant")} == {"tokens": 10_000, "usd": 25}


PLACES = ["price", "deliver:orders", "deliver:mails"]
CRASHES = [crash_before, crash_in, crash_after]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("crash", CRASHES)
def test_a_worker_that_dies_anywhere_hands_over_once_and_bills_once(crash: Callable[..., Any], place: str) -> None:
    with rehearse(app, crash(place)) as stage:
        assert stage.run(order, "tea") == "tea"
        stage.assert_delivered_once()
        assert stage.crashes == 1
        assert [len(of(stage, sink)) for sink in ("orders", "mails", "bills")] == [1, 1, 1]
        assert of(stage, "bills")[0]["usage"] == {"tokens": "100", "usd": "0.25"}


@pytest.mark.parametrize(("crash", "begun", "got"), list(zip(CRASHES, [2, 2, 1], [1, 2, 1], strict=True)))
@pytest.mark.parametrize("place", ["sink:orders", "order tea"])
def test_a_worker_that_dies_while_it_hands_over_does_so_again(
    crash: Callable[..., Any], begun: int, got: int, place: str
) -> None:
    with rehearse(app, crash(place)) as stage:
        stage.run(order, "tea")
        stage.assert_delivered_once("orders", by_key=True)
        assert (stage.count("sink:orders"), len(of(stage, "orders")), stage.crashes) == (begun, got, 1)
        if got > 1:
            assert [each.again for each in stage.handed_over if each.sink == "orders"] == [False, True]
            with pytest.raises(AssertionError, match=r"'order tea'.*handed over 2 times"):
                stage.assert_delivered_once("orders")


def test_a_sink_that_fails_is_tried_again_when_its_policy_says() -> None:
    with rehearse(app, fail_step("sink:orders", ConnectionError("no route"), times=2)) as stage:
        before = stage.now
        stage.run(order, "tea")
        stage.assert_delivered_once("orders")
        (got,) = [each for each in stage.handed_over if each.sink == "orders"]
        assert (got.attempt, round((got.at - before).total_seconds() / 60)) == (3, 30)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (fail_step("sink:orders", ConnectionError("no route"), times=3), "ConnectionError: no route"),
        (fail_step("sink:orders", Undeliverable("no such customer")), "no such customer"),
        (slow_step("sink:orders", "1h", times=3), "did not take it within 30 s"),
        (answer_step("sink:orders", lambda item: Undeliverable(f"not {item.key}")), "not order tea"),
    ],
)
def test_a_delivery_that_is_given_up_is_dead_and_can_be_sent_on(fault: Any, why: str) -> None:
    with rehearse(app, fault) as stage:
        stage.run(order, "tea")
        with pytest.raises(AssertionError, match=f"to sink 'orders'.* is dead: .*{why}"):
            stage.assert_delivered_once()
        (dead,) = stage.deliveries("dead", sink="orders")
        assert (dead.payload["item"], of(stage, "mails")) == ("tea", ["you have bought tea"])
        if fault.times <= 3:
            stage.play(lambda: app.redeliver(dead.id))
            stage.assert_delivered_once("orders")


def test_a_delivery_that_kills_its_workers_is_given_up_alone() -> None:
    """All that are in a worker's hands with it meet its first deaths; they are not given up with it."""
    many = App("deadly", store="memory://staged-deadly")
    many.sink("orders", Patient())
    agent = many.agent(one_order)
    with rehearse(many, crash_before("deadly", times=20)) as stage:
        for name in ("a", "deadly", *"bcdefgh"):
            stage.start(agent, name)
        stage.hand_over()
        assert [(each.key, each.error) for each in stage.deliveries("dead")] == [
            ("deadly", "5 workers in a row died with it in their hands")
        ]
        assert {each.key for each in stage.handed_over} == {*"abcdefgh"}
        assert stage.crashes == RECOVERIES_MAX


def test_what_is_not_handed_over_in_time_is_named() -> None:
    with rehearse(app, fail_step("sink:orders", ConnectionError("no route"))) as stage:
        stage.run(order, "tea")
        with pytest.raises(NeverEnded, match=r"'order tea'\) is queued after 1 tries: ConnectionError: no route"):
            stage.hand_over(within="1m")


def test_nothing_handed_over_is_not_handed_over_once() -> None:
    with rehearse(app) as stage:
        with pytest.raises(AssertionError, match="nothing was handed over to sink 'orders'"):
            stage.assert_delivered_once("orders")
        with pytest.raises(UsageError, match=r"no app on this stage has a sink 'oders'.*'orders'"):
            stage.assert_delivered_once("oders")


def test_a_fault_at_a_sink_that_never_struck_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"before the body 'sink:oders' .did you mean 'sink:orders'"):
        with rehearse(app, crash_before("sink:oders")) as stage:
            stage.run(order, "tea")
            stage.hand_over()


def test_an_app_gets_its_own_sinks_back() -> None:
    with rehearse(app) as stage:
        stage.run(order, "tea")
    assert all(isinstance(sink, Abroad) for sink in app.sinks.values())


def test_a_new_version_hands_over_what_the_old_one_left() -> None:
    with rehearse(app, fail_step("sink:orders", ConnectionError)) as stage:
        stage.run(order, "tea")
        stage.advance("1m")
        stage.deploy("v2")
        stage.assert_delivered_once()
        assert [each.attempt for each in stage.handed_over if each.sink == "orders"] == [2]


def test_an_outbox_that_is_handed_over_all_at_once_takes_no_time() -> None:
    with rehearse(app) as stage:
        before = stage.now
        for n in range(50):
            stage.start(order, f"item {n}")
        stage.advance("1s")
        stage.assert_delivered_once()
        assert (len(of(stage, "orders")), (stage.now - before).total_seconds()) == (50, pytest.approx(1, abs=0.5))


def test_apps_on_one_stage_share_their_sinks_and_children_are_billed() -> None:
    shop, post = App("shop", store="memory://shop", billing="bills"), App("post", store="memory://post")
    shop.sink("bills", Abroad())
    post.sink("vans", Abroad())

    @post.agent
    async def parcel(item: str) -> str:
        return await perdure.deliver("vans", item, key=f"parcel {item}")

    @shop.agent
    async def sale(item: str) -> str:
        key: str = await perdure.call(parcel, item)
        return key

    with rehearse(shop, crash_after("deliver:vans"), apps=[post]) as stage:
        assert stage.run(sale, "tea") == "parcel tea"
        stage.assert_delivered_once()
        assert sorted(each.payload["agent"] for each in stage.handed_over if each.sink == "bills") == ["parcel", "sale"]
        assert of(stage, "vans") == ["tea"]


def test_deliveries_of_an_app_that_registers_no_sink_are_refused_as_in_production() -> None:
    bare = App("bare", store="memory://bare")

    @bare.agent
    async def agent() -> None:
        await perdure.deliver("orders", "tea")

    with rehearse(bare) as stage:
        with pytest.raises(RunFailed, match=r"there is no sink 'orders'.*app.sink"):
            stage.run(agent)


class UnavailableError(Exception):
    """What a webhook's server says of itself."""

    status_code = 500


hourly = App("hourly", store="memory://staged-hourly")


hourly.sink("hook", Patient())


@hourly.agent
async def telling(count: int) -> int:
    for n in range(count):
        await perdure.deliver("hook", n)
    return count


def test_a_sink_that_answers_500_for_an_hour_loses_nothing_and_no_run_waits_for_it() -> None:
    tries = 14
    with rehearse(hourly, fail_step("sink:hook", UnavailableError, times=tries)) as stage:
        assert stage.run(telling, 3, thread_id="t") == 3
        [first] = [row for row in stage.deliveries() if row.seq == 1]
        assert first.state == "queued", "the run has ended, and nothing is delivered"
        stage.hand_over()
        stage.assert_delivered_once("hook")
        assert of(stage, "hook") == [0, 1, 2]
        first, *others = sorted(stage.deliveries(), key=lambda row: row.seq)
        assert (first.attempts, [row.attempts for row in others]) == (tries + 1, [1, 1])
        assert first.settled_at is not None
        assert (first.settled_at - first.created_at).total_seconds() > 3600
