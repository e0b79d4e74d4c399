"""The end of a relay: what becomes of the deliveries that its worker had in its hands."""

from __future__ import annotations

from perdure.core.limits import SUSPECT_STRIKES
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import Bench, Harness, hints, scenario
from perdure.testing.conformance.parcels import (
    DEAD,
    DELIVERED,
    QUEUED,
    SINK,
    fetch,
    fetch_one,
    handed,
    lane,
    row_of,
    said,
    settled,
)


class Orphaning(Harness):
    """Deliveries whose relay has ended."""

    @scenario
    async def test_a_dead_workers_deliveries_are_tried_by_others(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other = await bench.worker()
        first, second = await handed(bench, worker, claimed, 2)
        (elsewhere,) = await handed(bench, worker, claimed, partition="q")
        tries = {row.id: row for row in await fetch(bench, worker)}
        assert tries.keys() == {first, elsewhere}

        async with hints(await bench.clone()) as hint:
            await bench.die(worker)
            await hint(Hint.DELIVER)

        found = await row_of(bench, first)
        assert (found.state, found.worker, found.ready, found.attempts) == (QUEUED, None, True, 1)
        await bench.store.settle_deliveries(worker, [said(each) for each in tries.values()])
        fetched = await fetch(bench, other)
        assert {(row.id, row.attempts) for row in fetched} == {(first, 2), (elsewhere, 2)}
        assert await lane(bench) == [first, second]

    @scenario
    async def test_a_retiring_worker_gives_its_deliveries_back(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        relay, other = await bench.worker(), await bench.worker()
        (delivery,) = await handed(bench, worker, claimed)
        fetched = await fetch_one(bench, relay)

        assert await bench.store.retire(relay) == 0

        await settled(bench, fetched)
        again = await fetch_one(bench, other)
        assert (again.id, again.worker, again.attempts) == (delivery, other, 2)

    @scenario
    async def test_a_delivery_counts_the_workers_that_died_in_a_row_with_it_in_their_hands(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await handed(bench, worker, claimed, 2)
        (elsewhere,) = await handed(bench, worker, claimed, partition="q")

        for strikes in range(3):
            relay = await bench.worker()
            fetched = await fetch(bench, relay)
            assert {(row.id, row.strikes) for row in fetched} == {(first, strikes), (elsewhere, strikes)}
            await bench.die(relay)

        assert [(await row_of(bench, each)).strikes for each in (first, second, elsewhere)] == [3, 0, 3]

    @scenario
    async def test_of_those_with_which_workers_keep_dying_a_relay_takes_one_at_a_time(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ids = [(await handed(bench, worker, claimed, partition=f"{n}"))[0] for n in range(3)]
        for _ in range(SUSPECT_STRIKES):
            relay = await bench.worker()
            assert len(await fetch(bench, relay)) == 3
            await bench.die(relay)
        (elsewhere,) = await handed(bench, worker, claimed, sink="mail")
        (sound,) = await handed(bench, worker, claimed, partition="sound")
        both = ((SINK, 100), ("mail", 100))

        one = await fetch(bench, worker, *both)

        assert {row.id for row in one} == {ids[0], elsewhere, sound}
        assert {row.id: row.suspect for row in one} == {ids[0]: True, elsewhere: False, sound: False}
        keep = [row.id for row in one]
        assert await bench.store.next_delivery([SINK]) == 0
        assert await bench.store.next_delivery([SINK], suspects=False) is None
        assert await fetch(bench, worker, *both, keep=keep, suspects=0) == []
        assert await fetch(bench, worker, ("mail", 100), keep=keep) == [], "it is of another sink"
        other = await bench.worker()
        assert [row.id for row in await fetch(bench, other, (SINK, 1))] == [ids[1]]
        await bench.die(other)
        assert [row.id for row in await fetch(bench, worker, keep=keep)] == [ids[2]], "that other one came back later"

    @scenario
    async def test_a_suspect_takes_one_of_the_places_of_its_sink(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (suspect,) = await handed(bench, worker, claimed, partition="suspect")
        for _ in range(SUSPECT_STRIKES):
            relay = await bench.worker()
            await fetch_one(bench, relay)
            await bench.die(relay)
        sound = [(await handed(bench, worker, claimed, partition=f"{n}"))[0] for n in range(2)]

        assert {row.id for row in await fetch(bench, worker, (SINK, 2))} == {suspect, sound[0]}

    @scenario
    async def test_however_many_suspects_a_relay_takes_no_sink_gets_more_than_its_limit(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ids = [(await handed(bench, worker, claimed, partition=f"{n}"))[0] for n in range(3)]
        (elsewhere,) = await handed(bench, worker, claimed, sink="mail")
        for _ in range(SUSPECT_STRIKES):
            relay = await bench.worker()
            assert len(await fetch(bench, relay, (SINK, 100), ("mail", 100))) == 4
            await bench.die(relay)
        (sound,) = await handed(bench, worker, claimed, partition="sound")

        first = await fetch(bench, worker, (SINK, 2), ("mail", 5), suspects=10)
        rest = await fetch(bench, await bench.worker(), (SINK, 5), ("mail", 0), suspects=10)

        assert {row.id for row in first} == {*ids[:2], elsewhere}
        assert {row.id for row in rest} == {ids[2], sound}

    @scenario
    async def test_only_a_death_is_a_strike_and_whatever_came_of_a_try_wipes_them_out(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (delivery,) = await handed(bench, worker, claimed)

        async def strikes() -> int:
            return (await row_of(bench, delivery)).strikes

        async def die_with_it() -> None:
            relay = await bench.worker()
            await fetch_one(bench, relay)
            await bench.die(relay)

        await die_with_it()
        retiring = await bench.worker()
        assert (await fetch_one(bench, retiring)).strikes == 1
        await bench.store.retire(retiring)
        assert await strikes() == 1
        await fetch_one(bench, worker)
        again = await fetch_one(bench, worker)  # the claim before was lost
        assert (again.attempts, again.strikes) == (4, 1)
        await settled(bench, again, QUEUED, error="503")
        assert await strikes() == 0
        await die_with_it()
        await die_with_it()
        assert await strikes() == 2
        await settled(bench, await fetch_one(bench, worker), DEAD, error="gone")
        assert await strikes() == 0
        await bench.store.redeliver([delivery])
        await die_with_it()
        assert await strikes() == 1
        await settled(bench, await fetch_one(bench, worker))
        assert await strikes() == 0

    @scenario
    async def test_runs_that_are_given_back_leave_deliveries_alone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        (delivery,) = await handed(bench, worker, claimed)
        fetched = await fetch_one(bench, worker)

        await bench.store.give_back(worker, keep=[])

        assert await row_of(bench, delivery) == fetched
        await settled(bench, fetched)
        assert (await row_of(bench, delivery)).state is DELIVERED
