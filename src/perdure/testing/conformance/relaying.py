"""Scenarios: deliveries in the hands of relays, and what becomes of them and of those behind them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

from perdure.core.deliveries import DeliveryFilter, Settlement
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import PATIENCE_S, Bench, Harness, hints, in_threads, scenario
from perdure.testing.conformance.parcels import (
    DEAD,
    DELIVERED,
    DELIVERING,
    QUEUED,
    SINK,
    deliver,
    fetch,
    fetch_one,
    handed,
    lane,
    parcel,
    row_of,
    said,
    settled,
)

UNKNOWN = 10**15


class Relaying(Harness):
    """What the verbs of the outbox promise."""

    @scenario
    async def test_what_nobody_takes_is_found_behind_any_backlog_by_how_long_it_is_due(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        backlog = await handed(bench, worker, claimed, 5)
        (mail,) = await handed(bench, worker, claimed, sink="mail")
        (bus,) = await handed(bench, worker, claimed, partition="q")
        (taken,) = await handed(bench, worker, claimed, sink="taken")
        (later,) = await handed(bench, worker, claimed, sink="later")
        await fetch(bench, worker, ("taken", 1))
        (tried,) = await fetch(bench, worker, ("later", 1), keep=[taken])
        await settled(bench, tried, QUEUED, delay_s=600)
        soon = await bench.store.now_us() + 1
        due = {each: (await row_of(bench, each)).due_at for each in (backlog[0], mail, bus)}
        expected = sorted(due, key=lambda each: (due[each], each))

        assert [row.id for row in await bench.store.overdue_deliveries(soon)] == expected
        assert [row.id for row in await bench.store.overdue_deliveries(soon, limit=2)] == expected[:2]
        assert await bench.store.overdue_deliveries(min(due.values())) == []
        assert [row.id for row in await bench.store.overdue_deliveries(soon + 700 * 10**6)] == [*expected, later]
        around = DeliveryFilter(after=backlog[0], before=mail, limit=10)
        assert [row.id for row in await bench.store.deliveries(around)] == backlog[1:]
        for more in ({"state": QUEUED}, {"run": claimed.run}, {"thread_id": "t"}):
            narrowed = msgspec.structs.replace(around, **more)
            assert [row.id for row in await bench.store.deliveries(narrowed)] == backlog[1:]
        keyed = DeliveryFilter(key=(await row_of(bench, mail)).key)
        assert len(await bench.store.deliveries(msgspec.structs.replace(keyed, before=mail + 1))) == 1
        assert await bench.store.deliveries(msgspec.structs.replace(keyed, before=mail)) == []

    # -- claiming --------------------------------------------------------------------------------------------

    @scenario
    async def test_the_head_of_a_lane_alone_is_claimed(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await handed(bench, worker, claimed, 2)
        before = await row_of(bench, first)

        fetched = await fetch_one(bench, worker)

        assert (fetched.id, fetched.state, fetched.worker, fetched.attempts) == (first, DELIVERING, worker, 1)
        assert (fetched.payload, fetched.key, fetched.seq) == (before.payload, before.key, before.seq)
        assert fetched == await row_of(bench, first)
        assert await fetch(bench, worker, keep=[first]) == []
        assert await lane(bench) == [first, second]

    @scenario
    async def test_a_relay_takes_of_each_sink_as_many_as_it_asks_for_those_due_longest_first(
        self, bench: Bench
    ) -> None:
        worker, claimed = await bench.begin("t")
        ids = {
            sink: [(await handed(bench, worker, claimed, sink=sink, partition=f"{n}"))[0] for n in (3, 1, 2)]
            for sink in ("bus", "mail", "fax")
        }

        fetched = await fetch(bench, worker, ("bus", 2), ("mail", 100), ("nobody", 5), ("none", 0))

        taken = [row.id for row in fetched]
        assert sorted(taken) == sorted([*ids["bus"][:2], *ids["mail"]])
        rest = await fetch(bench, worker, ("fax", 0), ("bus", 100), keep=taken)
        assert [row.id for row in rest] == ids["bus"][2:]

    @scenario
    async def test_a_worker_that_is_not_alive_gets_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (delivery,) = await handed(bench, worker, claimed)
        dead, retired = await bench.worker(), await bench.worker()
        await bench.die(dead)
        await bench.store.retire(retired)

        for each in (dead, retired, UNKNOWN):
            assert await fetch(bench, each) == []
        assert (await row_of(bench, delivery)).state is QUEUED

    @scenario
    async def test_what_a_worker_does_not_know_of_is_queued_again_by_its_next_claim(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        kept, lost, elsewhere = [
            (await handed(bench, worker, claimed, partition=name, sink=sink))[0]
            for name, sink in (("a", SINK), ("b", SINK), ("a", "mail"))
        ]
        tries = {row.id: row for row in await fetch(bench, worker, (SINK, 9), ("mail", 9))}

        fetched = await fetch(bench, worker, keep=[kept])

        assert [(row.id, row.attempts) for row in fetched] == [(lost, 2)]
        assert (await row_of(bench, kept)).state is DELIVERING
        other = await row_of(bench, elsewhere)
        assert (other.state, other.worker, other.ready) == (QUEUED, None, True)
        await settled(bench, tries[lost])
        assert (await row_of(bench, lost)).state is DELIVERING
        await settled(bench, fetched[0])
        assert (await row_of(bench, lost)).state is DELIVERED

    @scenario
    async def test_a_claim_leaves_alone_what_other_workers_have(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.worker()
        (delivery,) = await handed(bench, worker, claimed)
        await fetch_one(bench, worker)

        assert await fetch(bench, other) == []

        found = await row_of(bench, delivery)
        assert (found.worker, found.attempts) == (worker, 1)

    # -- settling --------------------------------------------------------------------------------------------

    @scenario
    async def test_a_delivery_that_was_taken_gives_its_turn_to_the_next(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second, third = await handed(bench, worker, claimed, 3)
        fetched, before = await fetch_one(bench, worker), await bench.store.now_us()

        async with hints(await bench.clone()) as hint:
            await settled(bench, fetched)
            await hint(Hint.DELIVER)

        found = await row_of(bench, first)
        assert (found.state, found.ready, found.worker, found.error) == (DELIVERED, False, None, None)
        assert (found.attempts, found.seq) == (1, 1)
        assert found.settled_at is not None and before <= found.settled_at <= await bench.store.now_us()
        assert await lane(bench) == [second, third]
        assert (await fetch_one(bench, worker)).id == second

    @scenario
    async def test_a_delivery_that_is_given_up_holds_up_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await handed(bench, worker, claimed, 2)

        await settled(bench, await fetch_one(bench, worker), DEAD, error="410 Gone 🦉")

        found = await row_of(bench, first)
        assert (found.state, found.ready, found.worker, found.error) == (DEAD, False, None, "410 Gone 🦉")
        assert found.settled_at is not None
        assert (await fetch_one(bench, worker)).id == second

    @scenario
    async def test_a_delivery_that_failed_is_tried_again_later_and_its_lane_waits(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await handed(bench, worker, claimed, 2)

        await settled(bench, await fetch_one(bench, worker), QUEUED, delay_s=5, error="503")

        found = await row_of(bench, first)
        assert (found.state, found.ready, found.worker, found.error) == (QUEUED, True, None, "503")
        assert found.settled_at is not None and found.due_at - found.settled_at == 5_000_000
        assert await fetch(bench, worker) == []
        await bench.advance_s(6)
        fetched = await fetch_one(bench, worker)
        assert (fetched.id, fetched.attempts, fetched.error) == (first, 2, "503")
        await settled(bench, fetched)
        assert (await row_of(bench, first)).error is None
        assert await lane(bench) == [second]

    @scenario
    async def test_only_the_try_that_is_in_hand_can_be_settled(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.worker()
        first, second = await handed(bench, worker, claimed, 2)
        fetched = await fetch_one(bench, worker)
        before = await row_of(bench, first)
        stale = Settlement(first, 2, DELIVERED)

        await bench.store.settle_deliveries(other, [said(fetched)])
        await bench.store.settle_deliveries(worker, [stale, Settlement(second, 0, DEAD), Settlement(UNKNOWN, 1, DEAD)])

        assert await row_of(bench, first) == before
        assert await lane(bench) == [first, second]

    @scenario
    async def test_what_was_said_of_a_try_may_be_said_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ids = [(await handed(bench, worker, claimed, 2, partition=name))[0] for name in ("a", "b", "c")]
        fetched = {row.id: row for row in await fetch(bench, worker)}
        states = (DELIVERED, DEAD, QUEUED)
        group = [said(fetched[id], state, 5, error="why") for id, state in zip(ids, states, strict=True)]
        await bench.store.settle_deliveries(worker, [*group, group[0]])
        before = await bench.store.deliveries(DeliveryFilter())

        await bench.store.settle_deliveries(worker, group)
        await bench.store.settle_deliveries(worker, [])

        assert await bench.store.deliveries(DeliveryFilter()) == before
        rows = await bench.store.get_deliveries(ids)
        assert [(row.state, row.error) for row in rows] == list(zip(states, (None, "why", "why"), strict=True))

    @scenario
    async def test_a_lane_that_is_empty_again_goes_on_counting(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (first,) = await handed(bench, worker, claimed)
        await settled(bench, await fetch_one(bench, worker))

        (second,) = await handed(bench, worker, claimed)

        assert (await row_of(bench, second)).seq > (await row_of(bench, first)).seq
        assert (await fetch_one(bench, worker)).id == second

    # -- waiting ---------------------------------------------------------------------------------------------

    @scenario
    async def test_a_relay_learns_when_the_next_is_due(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        assert await bench.store.next_delivery([SINK]) is None
        await handed(bench, worker, claimed, 2)
        assert await bench.store.next_delivery(["mail"]) is None and await bench.store.next_delivery([]) is None
        assert await bench.store.next_delivery([SINK, "mail"]) == 0

        fetched = await fetch_one(bench, worker)

        assert await bench.store.next_delivery([SINK]) is None
        await settled(bench, fetched, QUEUED, delay_s=60)
        left = await bench.store.next_delivery([SINK])
        assert left is not None and 30_000_000 < left <= 60_000_000
        await handed(bench, worker, claimed, sink="mail")
        assert await bench.store.next_delivery(["mail", SINK]) == 0
        await bench.advance_s(61)
        assert await bench.store.next_delivery([SINK]) == 0

    # -- people ----------------------------------------------------------------------------------------------

    @scenario
    async def test_a_dead_delivery_is_sent_on_at_the_end_of_its_lane(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await handed(bench, worker, claimed, 2)
        await settled(bench, await fetch_one(bench, worker), DEAD, error="why")
        before = await row_of(bench, first)

        with self.lane_max(1):
            (row,) = await bench.store.redeliver([first])

        assert row == await row_of(bench, first)
        assert (row.state, row.attempts, row.ready, row.worker) == (QUEUED, 0, False, None)
        assert (row.key, row.created_at, row.payload) == (before.key, before.created_at, before.payload)
        assert await lane(bench) == [second, first]
        with self.lane_max(2):
            await settled(bench, await fetch_one(bench, worker))
            fetched = await fetch_one(bench, worker)
            assert (fetched.id, fetched.attempts) == (first, 1)
            (third,) = await handed(bench, worker, claimed)
        assert await lane(bench) == [first, third]

    @scenario
    async def test_a_dead_delivery_that_is_alone_is_claimable_at_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (delivery,) = await handed(bench, worker, claimed)
        await settled(bench, await fetch_one(bench, worker), DEAD)

        async with hints(await bench.clone()) as hint:
            await bench.store.redeliver([delivery])
            await hint(Hint.DELIVER)

        assert await lane(bench) == [delivery]
        assert (await fetch_one(bench, worker)).id == delivery

    @scenario
    async def test_deliveries_are_sent_on_in_the_order_given_and_named_by_id(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ids = await handed(bench, worker, claimed, 4)
        for _ in ids:
            await settled(bench, await fetch_one(bench, worker), DEAD)
        order = [ids[2], ids[0], ids[3]]

        rows = await bench.store.redeliver([order[0], UNKNOWN, order[1], order[0], order[2]])

        assert [row.id for row in rows] == sorted(order)
        assert await lane(bench) == order
        assert (await row_of(bench, ids[1])).state is DEAD

    @scenario
    async def test_only_dead_deliveries_are_sent_on(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        names = ("delivered", "tried", "waiting", "in hand")
        ids = [(await handed(bench, worker, claimed, partition=name))[0] for name in names]
        tries = {row.id: row for row in await fetch(bench, worker)}
        await settled(bench, tries[ids[0]])
        await settled(bench, tries[ids[1]], QUEUED, delay_s=60)
        await settled(bench, tries[ids[2]], QUEUED)
        before = await bench.store.get_deliveries(ids)

        assert await bench.store.redeliver(ids) == before

        assert await bench.store.get_deliveries(ids) == before

    # -- reading ---------------------------------------------------------------------------------------------

    @scenario
    async def test_deliveries_are_listed_by_what_they_are(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("a", tenant="acme")
        other, theirs = await bench.begin("b")
        mine = await handed(bench, worker, claimed, 3)
        (keyed,) = await handed(bench, other, theirs, key="k", partition="q")
        (sunk,) = await handed(bench, other, theirs, sink="mail", key="k")
        await settled(bench, (await fetch(bench, worker))[0])

        async def listed(**fields: Any) -> list[int]:
            return [row.id for row in await bench.store.deliveries(DeliveryFilter(**fields))]

        assert await listed() == sorted([*mine, keyed, sunk])
        assert await listed(sink="mail") == [sunk] and await listed(partition="q") == [keyed]
        assert await listed(key="k") == [keyed, sunk] and await listed(key="k", sink=SINK) == [keyed]
        assert await listed(run=claimed.run) == mine and await listed(thread_id="b") == [keyed, sunk]
        assert await listed(tenant="acme") == mine and await listed(tenant="other") == []
        assert await listed(state=DELIVERED) == mine[:1]
        assert await listed(state=DELIVERING) == [keyed] and await listed(state=QUEUED) == [*mine[1:], sunk]
        assert await listed(bill=True) == [] and await listed(bill=False, run=theirs.run) == [keyed, sunk]
        assert await listed(limit=2) == mine[:2] and await listed(limit=2, after=mine[1]) == [mine[2], keyed]
        assert await listed(limit=0) == [] == await listed(limit=-1)
        assert await listed(after=sunk) == []

    @scenario
    async def test_deliveries_are_found_by_id(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ids = await handed(bench, worker, claimed, 3)

        rows = await bench.store.get_deliveries([ids[2], UNKNOWN, ids[0], ids[2]])

        assert [row.id for row in rows] == [ids[0], ids[2]]
        assert await bench.store.get_deliveries([]) == []

    # -- at once ---------------------------------------------------------------------------------------------

    @scenario
    async def test_relays_at_once_never_get_the_same_try_and_keep_every_lane_in_order(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        names = ["a", "b", "c", "d"]
        lanes = {name: await handed(bench, worker, claimed, 6, partition=name) for name in names}
        tried: Counter[tuple[int, int]] = Counter()
        delivered: list[tuple[str, int]] = []

        async def drain(own: Bench, number: int) -> None:
            relay = await own.worker()
            async with asyncio.timeout(PATIENCE_S):
                while len(delivered) < 24:
                    for row in await fetch(own, relay, (SINK, 2)):
                        tried[row.id, row.attempts] += 1
                        delivered.append((row.partition, row.id))
                        await settled(own, row)

        await in_threads(3, bench, drain)

        assert set(tried.values()) == {1} and len(tried) == 24
        for name in names:
            assert [id for partition, id in delivered if partition == name] == lanes[name]
            assert await lane(bench, SINK, name) == []

    @scenario
    async def test_a_lane_that_empties_while_it_fills_gives_every_turn(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (head,) = await handed(bench, worker, claimed)
        other = await bench.clone()
        for turn in range(12):
            fetched, new = await fetch_one(bench, worker), await parcel(bench)
            assert fetched.id == head

            await asyncio.gather(
                bench.commit(worker, deliver(claimed, f"turn {turn}", new)),
                other.settle_deliveries(worker, [said(fetched, DELIVERED if turn % 2 else DEAD)]),
            )

            head = new.id
            assert await lane(bench) == [head]

    @scenario
    async def test_a_claim_of_deliveries_and_a_take_over_never_strand_one(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.clone()
        for turn in range(10):
            (delivery,) = await handed(bench, worker, claimed, partition=f"{turn}")
            relay, heir = await bench.worker(), await bench.worker()

            fetched, _ = await asyncio.gather(
                fetch(bench, relay), other.take_over([relay], recoveries_max=5)
            )  # fmt: skip
            await bench.store.take_over([relay], recoveries_max=5)  # the first passes over a row that is locked
            await asyncio.gather(*(settled(bench, each) for each in fetched))

            found = await row_of(bench, delivery)
            assert (found.state, found.worker) == (QUEUED, None)
            again = await fetch_one(bench, heir)
            assert (again.id, again.attempts) == (delivery, len(fetched) + 1)
            await settled(bench, again)

    @scenario
    async def test_an_outcome_and_a_take_over_never_both_count(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.clone()
        for turn in range(10):
            (delivery,) = await handed(bench, worker, claimed, partition=f"{turn}")
            relay, heir = await bench.worker(), await bench.worker()
            fetched = await fetch_one(bench, relay)

            await asyncio.gather(settled(bench, fetched), other.take_over([relay], recoveries_max=5))

            found = await row_of(bench, delivery)
            assert (found.state, found.worker) in ((QUEUED, None), (DELIVERED, None))
            left = await fetch(bench, heir)
            assert [row.id for row in left] == ([delivery] if found.state is QUEUED else [])
            await asyncio.gather(*(settled(bench, each) for each in left))
