"""Scenarios: runs that only wait, and hold no worker while they do."""

from __future__ import annotations

import asyncio

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import NEVER_US
from perdure.core.records import IfBusy, RunState, WaitKind
from perdure.core.requests import RunFilter, Started, ThreadHeld
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    close,
    end,
    fail,
    hold,
    park,
    requeue,
    scenario,
    step,
    wait,
)

MINUTE_US = 60_000_000


class Parking(Harness):
    """What `ParkRun` promises, and what a claim does with parked runs."""

    @scenario
    async def test_a_parked_run_waits_without_a_worker(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        before = await bench.run(claimed.run)

        await bench.commit(worker, step(claimed, "a"), wait(claimed, "w", delay_s=60), park(claimed))

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert (run.state, run.worker, run.ready, run.reason) == (RunState.WAITING, None, True, None)
        assert (run.fence, run.attempt, run.deployment) == (before.fence, before.attempt, "v1")
        assert (run.recoveries, run.strikes, run.super_step, run.ended_at) == (0, 0, 1, None)
        assert (thread.head, thread.depth) == (claimed.run, 1)
        assert (await bench.worker_row(worker)).running == 0
        assert [each.id for each in await bench.store.list_runs(RunFilter(state=RunState.WAITING))] == [claimed.run]

    # -- until when ------------------------------------------------------------------------------------------

    @scenario
    async def test_a_parked_run_is_claimable_from_the_earliest_time_of_its_waits_on(self, bench: Bench) -> None:
        _, claimed = await bench.parked(
            "t",
            wait(key="late", delay_s=90),
            wait(key="early", kind=WaitKind.ANSWER, delay_s=60, interrupt=await bench.question()),
            wait(key="timeless", kind=WaitKind.MESSAGE),
        )

        waits = await bench.waits(claimed.run)
        assert (await bench.run(claimed.run)).ready_at == waits["early"].due_at
        assert waits["timeless"].due_at is None

    @scenario
    async def test_a_parked_run_is_claimable_from_its_deadline_on(self, bench: Bench) -> None:
        _, before = await bench.parked("before", wait(delay_s=90), agent="before", deadline_us=MINUTE_US)
        _, after = await bench.parked("after", wait(delay_s=30), agent="after", deadline_us=MINUTE_US)
        _, only = await bench.parked("only", wait(kind=WaitKind.MESSAGE), agent="only", deadline_us=MINUTE_US)

        runs = {run.thread_id: run for run in await bench.store.get_runs([before.run, after.run, only.run])}
        assert runs["before"].ready_at == runs["before"].deadline_at
        assert runs["after"].ready_at == (await bench.waits(after.run))["w"].due_at
        assert runs["only"].ready_at == runs["only"].deadline_at

    @scenario
    async def test_a_run_parked_without_a_time_is_never_due(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE))
        assert (await bench.run(claimed.run)).ready_at == NEVER_US

        await bench.advance_s(50 * 365 * 86_400)

        assert await bench.claim(worker) == []
        assert await bench.state(claimed.run) is RunState.WAITING

    @scenario
    async def test_the_time_of_a_wait_that_was_closed_wakes_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, "early", delay_s=30), wait(claimed, "m", WaitKind.MESSAGE))

        await bench.commit(worker, close(claimed, "early", None), park(claimed))

        assert (await bench.run(claimed.run)).ready_at == NEVER_US

    @scenario
    async def test_a_due_run_is_claimed_and_not_a_moment_early(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(delay_s=60))

        assert await bench.claim(worker) == []
        await bench.advance_s(50)
        assert await bench.claim(worker) == []
        await bench.advance_s(11)

        second = await bench.claim_one(worker)
        run = await bench.run(claimed.run)
        assert (second.run, second.fence, second.attempt) == (claimed.run, claimed.fence + 1, 2)
        assert (run.state, run.worker, run.recoveries, run.strikes) == (RunState.RUNNING, worker, 0, 0)
        assert await bench.claim(worker) == []

    @scenario
    async def test_a_claim_says_which_waits_are_over(self, bench: Bench) -> None:
        worker, claimed = await bench.parked(
            "t",
            wait(key="c", delay_s=600),
            wait(key="b", kind=WaitKind.MESSAGE, labels=("x", "y")),
            wait(key="a", delay_s=60),
            wait(key="d", kind=WaitKind.MESSAGE, labels=("z",)),
        )
        await bench.send("t", "z")
        await bench.advance_s(61)

        second = await bench.claim_one(worker)

        told = [(row.key, row.ready, row.due) for row in second.waits]
        assert told == [("a", True, True), ("b", False, False), ("c", False, False), ("d", True, False)]
        assert second.waits == tuple(await bench.store.waits([claimed.run]))
        assert second.waits[1].labels == ("x", "y") and second.waits[1].run == claimed.run

    @scenario
    async def test_a_claim_says_what_time_it_is(self, bench: Bench) -> None:
        before = await bench.store.now_us()
        _, claimed = await bench.begin("t", tenant="acme", priority=3)

        assert before <= claimed.now <= await bench.store.now_us()
        assert (claimed.tenant, claimed.priority, claimed.deadline_at, claimed.cancel) == ("acme", 3, None, None)
        assert claimed.waits == ()

    @scenario
    async def test_due_runs_take_their_place_among_the_queued_ones(self, bench: Bench) -> None:
        """By priority, then by the time from which they were claimable."""
        worker = await bench.worker()
        _, early = await bench.parked("early", wait(delay_s=30))
        await bench.advance_s(60)
        urgent, late = await bench.start("urgent", priority=1), await bench.start("late")

        order = [(await bench.claim(worker, limit=1))[0].run for _ in range(3)]

        assert order == [urgent, early.run, late]

    @scenario
    async def test_a_due_run_is_claimed_only_by_who_may_execute_it(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(delay_s=60), queue="default")
        await bench.advance_s(61)

        assert await bench.claim(await bench.worker(deployment="v2"), deployment="v2") == []
        assert await bench.claim(worker, agents=("other",)) == []
        assert await bench.claim(worker, queues=("other",)) == []

        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_many_due_runs_are_shared_among_claimers_once_each(self, bench: Bench) -> None:
        stores = await bench.clones(3)
        worker = await bench.worker()
        runs = await bench.start_many(60)
        claims = await bench.claim(worker)
        await bench.commit(worker, *(wait(each, delay_s=60) for each in claims), *(park(each) for each in claims))
        await bench.advance_s(61)
        workers = [await bench.worker(store) for store in stores]

        taken = await asyncio.gather(*(bench.claim(w, s, limit=40) for w, s in zip(workers, stores, strict=True)))

        rest = await bench.claim(worker)
        assert sorted(each.run for part in (*taken, rest) for each in part) == runs

    @scenario
    async def test_a_run_may_be_parked_again_and_again(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(key="w0", delay_s=60))
        for n in range(1, 4):
            await bench.advance_s(61)
            claimed = await bench.claim_one(worker)
            ended = close(claimed, f"w{n - 1}", record={"seq": n})

            await bench.commit(worker, ended, wait(claimed, f"w{n}", delay_s=60), park(claimed))

            assert await bench.claim(worker) == []
        assert set(await bench.steps(claimed.run)) == {"w0", "w1", "w2"}
        assert (await bench.run(claimed.run)).attempt == 4

    # -- not where something is ready ------------------------------------------------------------------------

    @scenario
    async def test_a_run_whose_time_has_come_is_not_parked(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, "late", delay_s=600), wait(claimed, "w", delay_s=60))
        await bench.advance_s(61)

        outcome = await bench.store.commit(worker, [step(claimed, "a"), park(claimed)])

        run = await bench.run(claimed.run)
        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
        assert (run.state, run.worker, run.fence) == (RunState.RUNNING, worker, claimed.fence)
        await bench.commit(worker, close(claimed, "w", record={"seq": 2}), end(claimed, waited=True))

    @scenario
    async def test_a_wait_that_is_over_when_it_is_opened_parks_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        past = await bench.store.now_us() - MINUTE_US

        for n, (delay_us, due_at) in enumerate([(0, None), (None, past), (MINUTE_US, past)]):
            opening = wait(claimed, f"w{n}", delay_us=delay_us, due_at=due_at)
            outcome = await bench.store.commit(worker, [opening, park(claimed)])

            assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
            assert await bench.state(claimed.run) is RunState.RUNNING
            await bench.commit(worker, close(claimed, f"w{n}", record={"seq": n + 1}))

    @scenario
    async def test_a_run_past_its_deadline_is_claimable_as_soon_as_it_is_parked(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", deadline_us=MINUTE_US)
        await bench.advance_s(61)

        await bench.commit(worker, wait(claimed, kind=WaitKind.MESSAGE), park(claimed))

        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_each_run_of_a_batch_is_parked_or_not_by_its_own_waits(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        old, ready, parked, other = await bench.claim(worker)
        await bench.commit(worker, requeue(old))
        await bench.claim_one(worker)

        outcome = await bench.store.commit(
            worker,
            [
                *(wait(each, delay_s=60) for each in (parked, other)),
                wait(ready, delay_us=0),
                *(park(each) for each in (old, ready, parked, other)),
            ],
        )

        assert outcome == CommitOutcome(lost=frozenset({old.run}), awake=frozenset({ready.run}))
        states = [run.state for run in await bench.store.get_runs([old.run, ready.run, parked.run, other.run])]
        assert states == [RunState.RUNNING, RunState.RUNNING, RunState.WAITING, RunState.WAITING]

    # -- repeated, and late ----------------------------------------------------------------------------------

    @scenario
    async def test_a_parking_may_be_sent_again_until_the_run_is_claimed_anew(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        batch: list[Change] = [step(claimed, "a"), wait(claimed, kind=WaitKind.MESSAGE), park(claimed)]
        await bench.commit(worker, *batch)
        parked = await bench.run(claimed.run)

        await bench.commit(worker, *batch)
        assert await bench.run(claimed.run) == parked

        await bench.send("t")
        woken = await bench.run(claimed.run)
        await bench.commit(worker, *batch)
        assert await bench.run(claimed.run) == woken and woken.state is RunState.QUEUED

        second = await bench.claim_one(worker)
        assert await bench.store.commit(worker, batch) == CommitOutcome(lost=frozenset({claimed.run}))
        assert await bench.store.commit(worker, [park(claimed)]) == CommitOutcome(lost=frozenset({claimed.run}))
        await bench.commit(worker, step(second, "b", seq=2))

    @scenario
    async def test_what_is_said_of_a_run_after_it_was_parked_is_a_no_op(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        late: list[Change] = [
            step(claimed, "late", seq=2),
            attempt(claimed, "late"),
            wait(claimed, "late", delay_s=1),
            close(claimed, "w", None),
            again(claimed, 2),
            hold(claimed),
            requeue(claimed),
            end(claimed),
            park(claimed),
        ]

        await bench.commit(worker, wait(claimed, delay_s=60), park(claimed))
        parked = await bench.run(claimed.run)
        for change in late:
            await bench.commit(worker, change)

        assert await bench.run(claimed.run) == parked and parked.state is RunState.WAITING
        assert set(await bench.waits(claimed.run)) == {"w"} and await bench.steps(claimed.run) == {}

    @scenario
    async def test_a_parking_comes_after_all_that_its_batch_says_of_the_run(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, wait(claimed, delay_s=60), park(claimed), step(claimed, "late", seq=2))

        assert (await bench.run(claimed.run)).state is RunState.WAITING
        assert set(await bench.steps(claimed.run)) == {"late"}

    @scenario
    async def test_a_parking_that_is_refused_takes_nothing_of_its_batch_with_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        changes: list[Change] = [wait(claimed), park(claimed), close(claimed, "other", None), requeue(claimed)]
        outcome = await bench.store.commit(worker, changes)

        assert outcome.awake == frozenset()
        assert (await bench.run(claimed.run)).state is RunState.QUEUED

    @scenario
    async def test_a_run_that_waits_for_nothing_is_not_parked(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        changes: list[Change] = [wait(claimed, "w", delay_s=60), park(claimed), close(claimed, "w", None)]
        outcome = await bench.store.commit(worker, changes)

        assert outcome.awake == {claimed.run}
        assert (await bench.run(claimed.run)).state is RunState.RUNNING

    @scenario
    async def test_a_parking_clears_the_strikes_that_the_run_had(self, bench: Bench) -> None:
        dead, _ = await bench.begin("t")
        await bench.die(dead)
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)
        assert (await bench.run(claimed.run)).strikes == 1

        await bench.commit(worker, wait(claimed, delay_s=60), park(claimed))

        run = await bench.run(claimed.run)
        assert (run.state, run.strikes, run.recoveries) == (RunState.WAITING, 0, 1)

    @scenario
    async def test_the_end_of_the_worker_that_parked_a_run_leaves_it_alone(self, bench: Bench) -> None:
        dead, one = await bench.parked("one", wait(delay_s=60))
        retired, two = await bench.parked("two", wait(delay_s=60))
        before = await bench.store.get_runs([one.run, two.run])

        assert await bench.store.give_back(dead, keep=[]) == 0
        assert await bench.die(dead) == ((), ())
        assert await bench.store.retire(retired) == 0

        assert await bench.store.get_runs([one.run, two.run]) == before
        await bench.advance_s(61)
        assert {each.run for each in await bench.claim(await bench.worker())} == {one.run, two.run}

    @scenario
    async def test_a_worker_that_dies_with_waiting_code_leaves_the_waits_to_the_next(self, bench: Bench) -> None:
        dead, claimed = await bench.begin("t")
        await bench.commit(dead, wait(claimed, delay_s=60))
        waits = await bench.store.waits([claimed.run])

        await bench.die(dead)

        second = await bench.claim_one(await bench.worker())
        assert list(second.waits) == waits and len(waits) == 1

    # -- its thread ------------------------------------------------------------------------------------------

    @scenario
    async def test_a_parked_run_keeps_its_turn_on_its_thread(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(delay_s=60))

        second = await bench.start("t")

        assert await bench.try_start("t", if_busy=IfBusy.JOIN) == Started(claimed.run, "t", False)
        assert await bench.try_start("t", if_busy=IfBusy.REJECT) == ThreadHeld(claimed.run, 2)
        assert await bench.claim(worker) == []
        await bench.advance_s(61)
        taken = await bench.claim_one(worker)
        await bench.commit(worker, end(taken, waited=True))
        assert (taken.run, (await bench.claim_one(worker)).run) == (claimed.run, second)

    @scenario
    async def test_a_retried_run_waits_for_a_parked_head(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second = await bench.start("t")
        await bench.commit(worker, fail(first))
        claimed = await bench.claim_one(worker)
        await bench.commit(worker, wait(claimed, delay_s=60), park(claimed))

        retried = await bench.store.retry(first.run, [])

        assert retried is not None and not retried.ready
        assert (await bench.thread("t")).head == second and await bench.claim(worker) == []
        await bench.advance_s(61)
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_sending_on_what_is_parked_changes_nothing(self, bench: Bench) -> None:
        _, claimed = await bench.parked("t", wait(delay_s=60))
        before = await bench.run(claimed.run)

        assert await bench.store.release(claimed.run) == before
        assert await bench.store.retry(claimed.run, []) == before

        assert await bench.run(claimed.run) == before

    @scenario
    async def test_the_next_due_time_is_that_of_the_run_parked_the_shortest(self, bench: Bench) -> None:
        assert await bench.store.next_due() is None
        await bench.parked("never", wait(kind=WaitKind.MESSAGE), agent="never")
        assert await bench.store.next_due() is None

        await bench.parked("late", wait(delay_s=600), agent="late")
        late = await bench.store.next_due()
        worker, _ = await bench.parked("early", wait(delay_s=60), agent="early")
        early = await bench.store.next_due()

        assert late is not None and 540_000_000 < late <= 600_000_000
        assert early is not None and 0 < early <= MINUTE_US
        await bench.advance_s(61)
        assert len(await bench.claim(worker, agents=("early",))) == 1
        left = await bench.store.next_due()
        assert left is not None and 480_000_000 < left <= 540_000_000
