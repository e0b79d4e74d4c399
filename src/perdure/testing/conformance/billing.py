"""Scenarios: bills, which the end of a run writes, whoever ends it and however often."""

from __future__ import annotations

from typing import Any

from perdure.core import deliveries
from perdure.core.changes import Change, CommitOutcome
from perdure.core.deliveries import Delivery, DeliveryFilter
from perdure.core.effects import EffectState
from perdure.core.records import IfBusy, RunState
from perdure.core.requests import ForkRun, Started
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    cancelled,
    end,
    fail,
    hints,
    hold,
    intend,
    parent,
    park,
    requeue,
    scenario,
    settle,
    step,
    undo,
    wait,
)
from perdure.testing.conformance.parcels import DELIVERED, QUEUED, SINK, deliver, fetch, handed, lane, parcel, settled


def billed(key: str = "bill") -> dict[str, Any]:
    """What a start says about its run's bill."""
    return {"billing": deliveries.Billing(SINK, key)}


async def bills(bench: Bench, run: int | None = None) -> list[Delivery]:
    """The bills of a run, or all, in the order of their numbers."""
    return await bench.store.deliveries(DeliveryFilter(bill=True, run=run))


async def said_in(bench: Bench, run: int) -> list[tuple[str, bytes]]:
    """The keys of a run's bills and the ends that they tell."""
    return [(row.key, row.payload) for row in await bills(bench, run)]


class Billing(Harness):
    """What `StartRun.billing` promises."""

    @scenario
    async def test_the_end_of_a_run_writes_its_bill(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", tenant="acme", **billed())
        assert await bills(bench) == []
        before, number = await bench.store.now_us(), await bench.store.reserve_ids(1)

        async with hints(await bench.clone()) as hint:
            await bench.commit(worker, end(claimed))
            await hint(Hint.DELIVER)

        (found,) = await bills(bench)
        assert before <= found.created_at <= await bench.store.now_us()
        assert number < found.id < await bench.store.reserve_ids(1)
        assert found == Delivery(
            id=found.id,
            run=claimed.run,
            thread=claimed.thread,
            thread_id="t",
            agent="agent",
            tenant="acme",
            sink=SINK,
            partition="t",
            seq=1,
            key="bill",
            bill=True,
            fence=claimed.fence,
            payload=b"completed",
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

    @scenario
    async def test_every_end_in_a_workers_hands_is_billed_once(self, bench: Bench) -> None:
        endings = {"completed": end, "failed": fail, "cancelled": cancelled}
        for state, ending in endings.items():
            worker, claimed = await bench.begin(state, **billed(f"bill {state}"))
            for _ in range(2):
                await bench.commit(worker, step(claimed, "s"), ending(claimed))
            assert await said_in(bench, claimed.run) == [(f"bill {state}", state.encode())]

    @scenario
    async def test_a_run_without_billing_has_no_bill(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, end(claimed))
        await bench.cancel(await bench.start("t"))

        assert await bench.store.deliveries(DeliveryFilter()) == []

    @scenario
    async def test_a_run_that_goes_on_or_is_kept_has_no_bill(self, bench: Bench) -> None:
        worker = await bench.worker()
        asked = [await bench.ask(f"t{n}", **billed(f"bill {n}")) for n in range(5)]
        await bench.store.start(asked)
        requeued, held, parked, given_back, lost = await bench.claim(worker)

        await bench.commit(worker, requeue(requeued, 60), hold(held), wait(parked, delay_s=60), park(parked))
        await bench.store.give_back(worker, keep=[lost.run])
        await bench.die(worker, recoveries_max=1)

        assert await bench.state(lost.run) is RunState.HELD and await bench.state(given_back.run) is RunState.QUEUED
        assert await bills(bench) == []

    @scenario
    async def test_runs_that_end_in_one_batch_are_billed_each(self, bench: Bench) -> None:
        worker = await bench.worker()
        asked = [
            await bench.ask(f"t{n}", billing=deliveries.Billing("mail" if n % 3 else SINK, f"bill {n}"))
            if n % 2
            else await bench.ask(f"t{n}")
            for n in range(20)
        ]
        await bench.store.start(asked)
        claims = await bench.claim(worker)

        await bench.commit(worker, *(end(each) for each in claims))

        found = await bills(bench)
        assert {(row.run, row.sink, row.key, row.partition) for row in found} == {
            (ask.id, ask.billing.sink, ask.billing.key, ask.thread_id) for ask in asked if ask.billing is not None
        }
        assert len(found) == len({row.id for row in found}) == 10 and all(row.ready for row in found)

    # -- ends that no worker writes --------------------------------------------------------------------------

    @scenario
    async def test_a_run_that_is_cancelled_before_it_begins_is_billed(self, bench: Bench) -> None:
        run = await bench.start("t", **billed())

        async with hints(await bench.clone()) as hint:
            for _ in range(2):
                await bench.cancel(run)
            await hint(Hint.DELIVER)

        (found,) = await bills(bench, run)
        assert (found.key, found.payload, found.fence, found.ready) == ("bill", b"cancelled", 0, True)

    @scenario
    async def test_a_held_run_that_is_cancelled_is_billed(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed())
        await bench.commit(worker, hold(claimed))

        await bench.cancel(claimed.run)

        (found,) = await bills(bench, claimed.run)
        assert (found.payload, found.fence) == (b"cancelled", claimed.fence)

    @scenario
    async def test_a_run_that_is_to_be_cancelled_is_billed_when_it_has_ended(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed())
        await bench.cancel(claimed.run)
        told = CommitOutcome(cancelled=frozenset({claimed.run}))
        assert await bench.store.commit(worker, [end(claimed)]) == told
        assert await bills(bench) == []

        assert await bench.store.commit(worker, [cancelled(claimed)]) == told

        assert await said_in(bench, claimed.run) == [("bill", b"cancelled")]

    @scenario
    async def test_what_is_cancelled_with_its_parent_is_billed(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed("parent"))
        given = parent(claimed, worker)
        child = await bench.start("child", parent=given, **billed("child"))
        unbilled = await bench.start("unbilled", parent=given)

        await bench.cancel(claimed.run)

        assert [(row.run, row.key, row.partition) for row in await bills(bench)] == [(child, "child", "child")]
        assert await bench.state(unbilled) is RunState.CANCELLED

    @scenario
    async def test_runs_that_another_displaces_are_billed(self, bench: Bench) -> None:
        for if_busy in (IfBusy.INTERRUPT, IfBusy.ROLLBACK):
            name = if_busy.value
            worker, claimed = await bench.begin(name, **billed(f"{name} 1"))
            queued = await bench.start(name, **billed(f"{name} 2"))

            last = await bench.start(name, if_busy=if_busy, displaced=b"displaced", **billed(f"{name} 3"))

            assert await said_in(bench, queued) == [(f"{name} 2", b"cancelled")]
            assert await said_in(bench, claimed.run) == [] == await said_in(bench, last)
            outcome = await bench.store.commit(worker, [cancelled(claimed)])
            assert not outcome.lost
            assert await said_in(bench, claimed.run) == [(f"{name} 1", b"cancelled")]
            again = await bench.claim_one(worker)
            await bench.commit(worker, end(again))
            assert await said_in(bench, last) == [(f"{name} 3", b"completed")]
            assert len(await lane(bench, SINK, name)) == 3

    # -- again -----------------------------------------------------------------------------------------------

    @scenario
    async def test_every_end_of_a_run_that_is_sent_on_has_a_bill_of_its_own(self, bench: Bench) -> None:
        worker, first = await bench.begin("t", **billed("b"))
        await bench.commit(worker, fail(first))
        await bench.store.retry(first.run, [])
        second = await bench.claim_one(worker)
        await bench.commit(worker, fail(second))
        await bench.store.retry(first.run, [])
        third = await bench.claim_one(worker)
        await bench.commit(worker, end(third))

        found = await bills(bench, first.run)
        assert [(row.key, row.payload, row.fence) for row in found] == [
            ("b", b"failed", first.fence),
            ("b:2", b"failed", second.fence),
            ("b:3", b"completed", third.fence),
        ]
        assert await lane(bench, SINK, "t") == [row.id for row in found]

    @scenario
    async def test_a_run_that_is_cancelled_after_it_was_sent_on_has_a_second_bill(self, bench: Bench) -> None:
        run = await bench.start("t", **billed("b"))
        await bench.cancel(run)
        await bench.store.retry(run, [])
        assert [row.key for row in await bills(bench, run)] == ["b"]

        await bench.cancel(run)

        assert await said_in(bench, run) == [("b", b"cancelled"), ("b:2", b"cancelled")]

    @scenario
    async def test_a_run_that_was_sent_on_only_to_undo_has_a_second_bill(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed("b"))
        effect = await bench.done(worker, claimed)
        await bench.commit(worker, undo(claimed), intend(claimed, effect, undo=True))
        await bench.commit(worker, settle(claimed, effect, EffectState.UNDO_FAILED), fail(claimed))
        await bench.store.retry(claimed.run, [], undo=True)
        second = await bench.claim_one(worker)

        await bench.commit(worker, fail(second))

        assert await said_in(bench, claimed.run) == [("b", b"failed"), ("b:2", b"failed")]

    @scenario
    async def test_an_end_that_is_not_written_is_not_billed(self, bench: Bench) -> None:
        worker, first = await bench.begin("t", **billed())
        await bench.commit(worker, step(first, "known"))
        await bench.store.give_back(worker, keep=[])
        second = await bench.claim_one(worker)
        refused = await bench.store.commit(worker, [step(second, "known"), end(second)])
        lost = await bench.store.commit(worker, [end(first)])

        assert refused.refused.keys() == {first.run} and lost.lost == {first.run}
        assert await bills(bench) == []

    # -- lanes and keys --------------------------------------------------------------------------------------

    @scenario
    async def test_no_lane_is_too_full_for_a_bill(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed())
        queued = await bench.start("t", **billed("another"))
        with self.lane_max(2):
            first, second = await handed(bench, worker, claimed, 2, partition="t")

            await bench.commit(worker, end(claimed))
            await bench.cancel(queued)

            (bill,), (another,) = await bills(bench, claimed.run), await bills(bench, queued)
            assert await lane(bench, SINK, "t") == [first, second, bill.id, another.id]
            for _ in range(3):
                (fetched,) = await fetch(bench, worker)
                await settled(bench, fetched)
            other, theirs = await bench.begin("other")
            (third,) = await handed(bench, other, theirs, partition="t")
            over = deliver(theirs, "over", await parcel(bench, partition="t"))
            assert (await bench.store.commit(other, [over])).bounced
        assert await lane(bench, SINK, "t") == [another.id, third]

    @scenario
    async def test_a_bill_comes_after_what_its_run_has_handed_over_before(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed())
        (first,) = await handed(bench, worker, claimed, partition="t")
        second = await parcel(bench, partition="t")
        batch: list[Change] = [deliver(claimed, "s", second), end(claimed)]

        for _ in range(2):
            await bench.commit(worker, *batch)

        (bill,) = await bills(bench)
        assert await lane(bench, SINK, "t") == [first, second.id, bill.id]

    @scenario
    async def test_a_bill_whose_key_its_sink_has_had_is_that_delivery_and_its_run_ends(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed("k"))
        (known,) = await handed(bench, worker, claimed, key="k")
        (fetched,) = await fetch(bench, worker)
        await settled(bench, fetched)

        await bench.commit(worker, end(claimed))

        assert await bench.state(claimed.run) is RunState.COMPLETED
        assert [(row.id, row.state) for row in await bench.store.deliveries(DeliveryFilter())] == [(known, DELIVERED)]

    @scenario
    async def test_a_fork_has_a_bill_of_its_own(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", **billed("first"))
        await bench.commit(worker, end(claimed))
        ask = await bench.ask("fork", **billed("second"))
        await bench.store.fork(ForkRun(ask, 1, None, ()))

        await bench.commit(worker, end(await bench.claim_one(worker)))

        assert [(row.run, row.key) for row in await bills(bench)] == [(claimed.run, "first"), (ask.id, "second")]

    @scenario
    async def test_a_bill_is_the_one_that_its_runs_start_has_asked_for(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", key="k", **billed("first"))
        assert await bench.try_start("t", key="k", **billed("second")) == Started(claimed.run, "t", False)
        assert await bench.try_start("t", if_busy=IfBusy.JOIN, **billed("third")) == Started(claimed.run, "t", False)

        await bench.commit(worker, end(claimed))

        assert await said_in(bench, claimed.run) == [("first", b"completed")]
