"""Scenarios: deliveries, from the step that asks for one to its place in its lane."""

from __future__ import annotations

import asyncio

from perdure.core.changes import Change, CommitOutcome
from perdure.core.deliveries import Billing, Delivery, DeliveryFilter
from perdure.core.records import RunState, WaitKind
from perdure.core.requests import Bounce
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    blob,
    end,
    hints,
    in_threads,
    park,
    requeue,
    scenario,
    step,
    wait,
)
from perdure.testing.conformance.parcels import (
    DELIVERED,
    QUEUED,
    SINK,
    deliver,
    fetch_one,
    handed,
    lane,
    parcel,
    row_of,
    settled,
)


class Delivering(Harness):
    """What `Deliver` promises."""

    # -- asked for -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_delivery_is_in_the_outbox_as_it_was_asked_for(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", tenant="acme")
        large, with_it = blob(b"large" * 10_000), blob(b"result" * 10_000)
        new = await parcel(bench, "k 🦉", sink="the bus", partition="🦉", payload=b"\0data", blobs=(large,))
        before = await bench.store.now_us()

        await bench.commit(worker, deliver(claimed, "s", new, seq=3, blobs=(with_it,)))

        found = await row_of(bench, new.id)
        assert before <= found.created_at <= await bench.store.now_us()
        assert found == Delivery(
            id=new.id,
            run=claimed.run,
            thread=claimed.thread,
            thread_id="t",
            agent="agent",
            tenant="acme",
            sink="the bus",
            partition="🦉",
            seq=1,
            key="k 🦉",
            bill=False,
            fence=claimed.fence,
            payload=b"\0data",
            state=QUEUED,
            ready=True,
            attempts=0,
            strikes=0,
            due_at=found.created_at,
            created_at=found.created_at,
            settled_at=None,
            error=None,
            worker=None,
        )
        record = (await bench.log(claimed.run))[-1]
        assert (record.key, record.seq, record.payload) == ("s", 3, b"asked")
        kept = await bench.store.blobs(claimed.thread, [large.digest, with_it.digest])
        assert kept == {each.digest: each.data for each in (large, with_it)}

    @scenario
    async def test_a_lane_keeps_the_order_of_commits_whatever_the_numbers(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        parcels = [await parcel(bench) for _ in range(6)]
        order = [parcels[number] for number in (3, 1, 5, 0, 4, 2)]

        await bench.commit(worker, *(deliver(claimed, f"a{each.id}", each) for each in order[:3]))
        await bench.commit(worker, deliver(claimed, "b", order[3]), step(claimed, "s"))
        await bench.commit(worker, *(deliver(claimed, f"c{each.id}", each) for each in order[4:]))

        assert await lane(bench) == [each.id for each in order]
        assert (await row_of(bench, order[0].id)).seq == 1

    @scenario
    async def test_lanes_of_other_sinks_and_partitions_do_not_wait_for_each_other(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        lanes = [("bus", "p"), ("bus", "q"), ("mail", "p"), ("bus", ""), ("bu", "sp")]
        parcels = [await parcel(bench, sink=sink, partition=partition) for sink, partition in lanes * 2]

        await bench.commit(worker, *(deliver(claimed, f"d{each.id}", each) for each in parcels))

        for number, (sink, partition) in enumerate(lanes):
            both = [parcels[number].id, parcels[number + len(lanes)].id]
            assert await lane(bench, sink, partition) == both

    @scenario
    async def test_runs_of_one_batch_share_a_lane_in_the_order_of_the_batch(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(5)
        claims = [each for _ in range(3) for each in await bench.claim(worker, limit=2)]
        assert len(claims) == 5
        parcels = [await parcel(bench) for _ in range(20)]
        turns = [claims[number * 3 % 5] for number in range(20)]

        await bench.commit(worker, *(deliver(each, f"d{p.id}", p) for each, p in zip(turns, parcels, strict=True)))

        assert await lane(bench) == [each.id for each in parcels]
        rows = await bench.store.get_deliveries([each.id for each in parcels])
        assert [row.run for row in rows] == [each.run for each in turns]

    # -- keys ------------------------------------------------------------------------------------------------

    @scenario
    async def test_a_key_that_its_sink_has_had_is_that_delivery(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (first,) = await handed(bench, worker, claimed, key="k")
        before, put = await row_of(bench, first), blob(b"unwanted" * 10_000)
        same = await parcel(bench, "k", payload=b"other", blobs=(put,))
        elsewhere = await parcel(bench, "k", partition="another")
        other_sink = await parcel(bench, "k", sink="mail")

        await bench.commit(worker, deliver(claimed, "same", same), deliver(claimed, "elsewhere", elsewhere))
        await bench.commit(worker, deliver(claimed, "other sink", other_sink))

        assert (await bench.steps(claimed.run)).keys() >= {"same", "elsewhere", "other sink"}
        assert await bench.store.get_deliveries([same.id, elsewhere.id]) == []
        assert await row_of(bench, first) == before
        assert await lane(bench, "mail") == [other_sink.id]
        assert await bench.store.blobs(claimed.thread, [put.digest]) == {}

    @scenario
    async def test_a_key_is_known_for_ever_and_to_every_run(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (first,) = await handed(bench, worker, claimed, key="k")
        await settled(bench, await fetch_one(bench, worker))
        await bench.commit(worker, end(claimed))
        other, theirs = await bench.begin("another")
        again = await parcel(bench, "k")

        await bench.commit(other, deliver(theirs, "s", again))

        assert await bench.steps(theirs.run) == {"s": b"asked"}
        assert await bench.store.get_deliveries([again.id]) == []
        assert (await row_of(bench, first)).state is DELIVERED
        assert await lane(bench) == []

    @scenario
    async def test_of_one_key_that_a_batch_has_twice_the_first_is_delivered(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        first, second = await bench.claim(worker)
        parcels = [await parcel(bench, "k", payload=b"1"), await parcel(bench, "k", payload=b"2")]
        between = await parcel(bench)

        batch = [deliver(first, "s", parcels[0]), deliver(first, "b", between), deliver(second, "s", parcels[1])]
        await bench.commit(worker, *batch)

        assert await lane(bench) == [parcels[0].id, between.id]
        assert await bench.steps(second.run) == {"s": b"asked"}

    # -- full lanes ------------------------------------------------------------------------------------------

    @scenario
    async def test_a_full_lane_bounces_a_delivery_alone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        fits, known, over, elsewhere = [await parcel(bench, partition=name) for name in ("p", "p", "p", "q")]
        with self.lane_max(2):
            await bench.commit(worker, deliver(claimed, "known", known))

            batch: list[Change] = [
                deliver(claimed, "fits", fits),
                deliver(claimed, "over", over),
                deliver(claimed, "known again", await parcel(bench, known.key)),
                deliver(claimed, "elsewhere", elsewhere),
                step(claimed, "s"),
            ]
            outcome = await bench.store.commit(worker, batch)

            assert outcome == CommitOutcome(bounced={(claimed.run, 1, "over"): Bounce.FULL})
            assert (await bench.steps(claimed.run)).keys() == {"known", "fits", "known again", "elsewhere", "s"}
            assert await lane(bench) == [known.id, fits.id] and await lane(bench, SINK, "q") == [elsewhere.id]

    @scenario
    async def test_a_lane_has_room_again_when_one_of_it_is_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        with self.lane_max(2):
            first, second = await handed(bench, worker, claimed, 2)
            third = deliver(claimed, "third", await parcel(bench))
            fetched = await fetch_one(bench, worker)
            assert fetched.id == first
            assert (await bench.store.commit(worker, [third])).bounced
            await settled(bench, fetched)

            await bench.commit(worker, third)

            assert await lane(bench) == [second, third.delivery.id]

    # -- again, too late, and beside others ------------------------------------------------------------------

    @scenario
    async def test_a_batch_with_deliveries_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        parcels = [await parcel(bench) for _ in range(3)]
        going_on: list[Change] = [deliver(claimed, "a", parcels[0]), deliver(claimed, "b", parcels[1])]
        ending: list[Change] = [deliver(claimed, "c", parcels[2]), end(claimed)]

        with self.lane_max(3):
            for batch in (going_on, going_on, ending, ending):
                await bench.commit(worker, *batch)

        assert await lane(bench) == [each.id for each in parcels]
        assert await bench.state(claimed.run) is RunState.COMPLETED

    @scenario
    async def test_a_delivery_on_record_may_be_sent_again_after_a_new_claim_and_its_end(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = deliver(claimed, "s", await parcel(bench))
        await bench.commit(worker, asked)
        await settled(bench, await fetch_one(bench, worker))
        await bench.commit(worker, requeue(claimed))
        await bench.claim_one(worker)
        before = await row_of(bench, asked.delivery.id)

        await bench.commit(worker, asked)

        assert await row_of(bench, asked.delivery.id) == before
        assert before.state is DELIVERED

    @scenario
    async def test_an_old_fence_hands_nothing_over(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        lost, sound = await bench.claim(worker)
        await bench.store.give_back(worker, keep=[sound.run])
        late, fine = await parcel(bench, "k"), await parcel(bench)

        outcome = await bench.store.commit(worker, [deliver(lost, "s", late), deliver(sound, "s", fine)])

        assert outcome == CommitOutcome(lost=frozenset({lost.run}))
        assert await lane(bench) == [fine.id]
        assert await bench.steps(lost.run) == {}
        second = await bench.claim_one(worker)
        anew = await parcel(bench, "k")
        await bench.commit(worker, deliver(second, "s", anew))
        assert await lane(bench) == [fine.id, anew.id]

    @scenario
    async def test_a_dead_worker_hands_nothing_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        new = await parcel(bench)
        await bench.die(worker)

        assert await bench.store.commit(worker, [deliver(claimed, "s", new)]) == CommitOutcome(alive=False)

        assert await bench.store.get_deliveries([new.id]) == [] == await lane(bench)

    @scenario
    async def test_a_run_that_is_refused_hands_nothing_over_and_holds_up_nobody(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        first, sound = await bench.claim(worker)
        await bench.commit(worker, step(first, "known"))
        await bench.store.give_back(worker, keep=[sound.run])
        bad = await bench.claim_one(worker)
        parcels = [await parcel(bench) for _ in range(3)]

        batch: list[Change] = [
            deliver(bad, "a", parcels[0]),
            deliver(sound, "b", parcels[1]),
            step(bad, "known"),
            deliver(sound, "c", parcels[2]),
        ]
        outcome = await bench.store.commit(worker, batch)

        assert list(outcome.refused) == [bad.run] and not outcome.bounced
        assert await lane(bench) == [parcels[1].id, parcels[2].id]
        assert await bench.store.get_deliveries([parcels[0].id]) == []
        assert (await bench.steps(bad.run)).keys() == {"known"}

    @scenario
    async def test_a_delivery_whose_record_is_another_one_is_not_handed_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await parcel(bench), await parcel(bench)

        await bench.commit(worker, deliver(claimed, "s", first), deliver(claimed, "s", second, seq=2))
        await bench.commit(worker, step(claimed, "r"), deliver(claimed, "r", second))

        assert await lane(bench) == [first.id]
        assert await bench.steps(claimed.run) == {"s": b"asked", "r": b"result"}

    @scenario
    async def test_what_comes_after_the_end_of_its_run_is_not_handed_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        before, after = await parcel(bench), await parcel(bench)

        await bench.commit(worker, deliver(claimed, "a", before), end(claimed), deliver(claimed, "b", after))

        assert await lane(bench) == [before.id]
        assert await bench.steps(claimed.run) == {"a": b"asked"}

    @scenario
    async def test_a_run_that_is_to_be_cancelled_may_still_hand_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        new = await parcel(bench)

        outcome = await bench.store.commit(worker, [deliver(claimed, "s", new)])

        assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))
        assert await lane(bench) == [new.id]

    @scenario
    async def test_who_waits_for_a_run_that_hands_over_and_ends_in_one_batch_is_not_left_waiting(
        self, bench: Bench
    ) -> None:
        for number, billing in enumerate((None, Billing(SINK, "bill"))):
            worker, waiting = await bench.begin(f"w{number}", agent=f"waiting {number}")
            ending = await bench.start(f"e{number}", agent=f"ending {number}", billing=billing)
            claimed = await bench.claim_one(worker, agents=(f"ending {number}",))
            opening = wait(waiting, "w", WaitKind.RUN, target=ending)

            batch: list[Change] = [opening, park(waiting), deliver(claimed, "s", await parcel(bench)), end(claimed)]
            outcome = await bench.store.commit(worker, batch)

            state = await bench.state(waiting.run)
            assert state is (RunState.RUNNING if outcome.awake else RunState.QUEUED)

    @scenario
    async def test_a_delivery_that_is_claimable_is_told(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        async with hints(await bench.clone()) as hint:
            await handed(bench, worker, claimed)
            await hint(Hint.DELIVER)

    @scenario
    async def test_commits_that_share_lanes_in_opposite_orders_all_come_through(self, bench: Bench) -> None:
        names = ["a", "b", "c"]

        async def commit_in_turn(own: Bench, number: int) -> None:
            worker, claimed = await own.begin(f"t{number}", agent=f"agent {number}")
            order = names if number % 2 else names[::-1]
            for _ in range(8):
                parcels = [await parcel(own, partition=name) for name in order]
                await own.commit(worker, *(deliver(claimed, f"d{each.id}", each) for each in parcels))
                await asyncio.sleep(0)

        await in_threads(3, bench, commit_in_turn)

        for name in names:
            assert len(await lane(bench, SINK, name)) == 24
        rows = await bench.store.deliveries(DeliveryFilter(partition="a"))
        for run in {row.run for row in rows}:
            mine = [row for row in rows if row.run == run]
            assert [row.seq for row in mine] == sorted(row.seq for row in mine)
