"""Scenarios: what happens to the runs of the dead, the silent and the leaving."""

from __future__ import annotations

import asyncio
import unittest

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Claimed, RunState, WorkerState
from perdure.store import reasons
from perdure.testing.conformance.harness import (
    LEASE_S,
    Bench,
    Harness,
    again,
    attempt,
    end,
    eventually,
    hold,
    in_threads,
    requeue,
    scenario,
    step,
)


class Recovery(Harness):
    """What take-over, retiring and known deaths promise."""

    @scenario
    async def test_a_worker_whose_lease_ran_out_is_taken_over(self, bench: Bench) -> None:
        dead, claimed = await bench.begin()
        await bench.advance_s(LEASE_S - 5)
        assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
        await bench.advance_s(10)

        (taken,) = await bench.store.take_over([], recoveries_max=RECOVERIES_MAX)

        assert (taken.worker, taken.requeued, taken.held) == (dead, (claimed.run,), ())
        assert (await bench.worker_row(dead)).state is WorkerState.DEAD
        run = await bench.run(claimed.run)
        assert (run.state, run.worker, run.ready, run.recoveries, run.strikes) == (RunState.QUEUED, None, True, 1, 1)
        assert run.fence > claimed.fence
        again = await bench.claim_one(await bench.worker())
        assert (again.run, again.recoveries, again.strikes, again.attempt) == (claimed.run, 1, 1, 2)

    @scenario
    async def test_a_known_dead_worker_is_taken_over_before_its_lease_ends(self, bench: Bench) -> None:
        dead, claimed = await bench.begin()
        _, other = await bench.begin("elsewhere")

        assert await bench.die(dead) == ((claimed.run,), ())

        assert (await bench.run(other.run)).state is RunState.RUNNING

    @scenario
    async def test_a_run_taken_over_or_handed_back_keeps_its_place_in_the_queue(self, bench: Bench) -> None:
        dead, claimed = await bench.begin("first")
        _, handed_back = await bench.begin("second")
        places = [(await bench.run(run.run)).ready_at for run in (claimed, handed_back)]
        await bench.advance_s(1)

        await bench.die(dead)
        await bench.commit(handed_back_worker := (await bench.run(handed_back.run)).worker or 0, requeue(handed_back))

        assert handed_back_worker
        now = [(await bench.run(run.run)).ready_at for run in (claimed, handed_back)]
        assert all(after <= before for before, after in zip(places, now, strict=True))  # time may move by moving rows

    @scenario
    async def test_a_take_over_leaves_alone_what_the_dead_worker_gave_back(self, bench: Bench) -> None:
        dead = await bench.worker()
        await bench.start_many(4)
        ended, requeued, held, kept = await bench.claim(dead)
        await bench.commit(dead, end(ended), requeue(requeued), hold(held))

        assert await bench.die(dead) == ((kept.run,), ())

        states = [(await bench.run(run.run)).state for run in (ended, requeued, held)]
        assert states == [RunState.COMPLETED, RunState.QUEUED, RunState.HELD]

    @scenario
    async def test_a_second_take_over_does_nothing(self, bench: Bench) -> None:
        dead, claimed = await bench.begin()
        await bench.die(dead)
        before = await bench.run(claimed.run)
        await bench.advance_s(LEASE_S + 5)

        assert await bench.store.take_over([dead], recoveries_max=RECOVERIES_MAX) == []

        after = await bench.run(claimed.run)
        assert (after.fence, after.recoveries, after.state) == (before.fence, before.recoveries, RunState.QUEUED)

    @scenario
    async def test_suspects_that_are_unknown_or_ended_are_passed_over(self, bench: Bench) -> None:
        stopped = await bench.worker()
        await bench.store.retire(stopped)

        assert await bench.store.take_over([stopped, 10**15], recoveries_max=RECOVERIES_MAX) == []
        assert (await bench.worker_row(stopped)).state is WorkerState.STOPPED

    @scenario
    async def test_one_take_over_takes_every_dead_worker(self, bench: Bench) -> None:
        runs: dict[int, int] = {}
        for n in range(3):
            worker, claimed = await bench.begin(f"t{n}")
            runs[worker] = claimed.run

        taken = await bench.store.take_over(list(runs), recoveries_max=RECOVERIES_MAX)

        assert {each.worker: each.requeued for each in taken} == {worker: (run,) for worker, run in runs.items()}

    @scenario
    async def test_a_run_that_keeps_killing_its_workers_is_held_as_poison(self, bench: Bench) -> None:
        run = await bench.start("t")
        queued = await bench.start("t")
        for strike in range(1, 3):
            worker = await bench.worker()
            await bench.claim_one(worker)
            assert await bench.die(worker, recoveries_max=3) == ((run,), ())
            assert (await bench.run(run)).strikes == strike

        worker = await bench.worker()
        last = await bench.claim_one(worker)
        assert await bench.die(worker, recoveries_max=3) == ((), (run,))

        held = await bench.run(run)
        assert (held.state, held.reason, held.worker) == (RunState.HELD, "poison", None)
        assert (held.recoveries, held.strikes, held.detail) == (3, 3, reasons.poisoned(3))
        assert held.fence > last.fence
        assert (await bench.thread("t")).head == run
        assert await bench.claim(await bench.worker()) == []
        assert (await bench.run(queued)).state is RunState.QUEUED

    @scenario
    async def test_progress_resets_the_strikes(self, bench: Bench) -> None:
        run = await bench.start()
        for turn in range(6):
            worker = await bench.worker()
            claimed = await bench.claim_one(worker)
            await bench.commit(worker, step(claimed, f"step {turn}"))
            assert await bench.die(worker, recoveries_max=2) == ((run,), ())
            row = await bench.run(run)
            assert (row.recoveries, row.strikes) == (turn + 1, 0)

    @scenario
    async def test_a_new_super_step_is_progress(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, again(claimed, 2))

        await bench.die(worker, recoveries_max=1)

        run = await bench.run(claimed.run)
        assert (run.state, run.strikes, run.recoveries, run.super_step) == (RunState.QUEUED, 0, 1, 2)

    @scenario
    async def test_what_an_earlier_owner_recorded_is_not_progress(self, bench: Bench) -> None:
        first, claimed = await bench.begin()
        await bench.commit(first, step(claimed, "a"))
        await bench.die(first)
        second = await bench.worker()
        again = await bench.claim_one(second)
        await bench.commit(second, attempt(again, "b"))

        await bench.die(second)

        assert (await bench.run(claimed.run)).strikes == 1

    @scenario
    async def test_a_taken_over_run_brings_what_the_dead_worker_recorded(self, bench: Bench) -> None:
        dead, claimed = await bench.begin()
        await bench.commit(dead, step(claimed, "a", b"1"), attempt(claimed, "b"))
        await bench.die(dead)

        again = await bench.claim_one(await bench.worker())

        assert [(row.key, row.payload) for row in again.records] == [("a", b"1")]
        assert [(row.key, row.attempt) for row in again.attempts] == [("b", 1)]

    @scenario
    async def test_take_overs_at_once_take_each_worker_once(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        runs = await bench.start_many(20)
        workers = [await bench.worker() for _ in range(10)]
        for worker in workers:
            assert len(await bench.claim(worker, limit=2)) == 2

        answers = await asyncio.gather(*(store.take_over(workers, recoveries_max=5) for store in stores))
        # A take-over passes over a row that another one holds locked.
        answers.append(await bench.store.take_over(workers, recoveries_max=5))

        taken = [each for answer in answers for each in answer]
        assert sorted(each.worker for each in taken) == sorted(workers)
        assert sorted(run for each in taken for run in each.requeued) == sorted(runs)
        assert {run.recoveries for run in await bench.store.get_runs(runs)} == {1}

    @scenario
    async def test_a_take_over_and_a_commit_never_both_win(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(30):
            worker, claimed = await bench.begin(f"t{turn}", agent=f"agent-{turn}")
            batch: list[Change] = [step(claimed, "a"), end(claimed)]
            committing = bench.store.commit(worker, batch)
            taking = other.take_over([worker], recoveries_max=RECOVERIES_MAX)

            if turn % 2:
                outcome, taken = await asyncio.gather(committing, taking)
            else:
                taken, outcome = await asyncio.gather(taking, committing)

            await self._assert_one_won(bench, claimed, outcome, won=[run for each in taken for run in each.requeued])

    @scenario
    async def test_a_take_over_on_another_loop_and_a_commit_never_both_win(self, bench: Bench) -> None:
        begun = [await bench.begin(f"t{turn}") for turn in range(30)]
        outcomes: dict[int, CommitOutcome] = {}
        won: list[int] = []

        async def race(own: Bench, number: int) -> None:
            for worker, claimed in begun:
                if number == 0:
                    outcomes[claimed.run] = await own.store.commit(worker, [step(claimed, "a"), end(claimed)])
                else:
                    for taken in await own.store.take_over([worker], recoveries_max=RECOVERIES_MAX):
                        won.extend(taken.requeued)

        await in_threads(2, bench, race)

        for _, claimed in begun:
            await self._assert_one_won(bench, claimed, outcomes[claimed.run], won=won)

    async def _assert_one_won(self, bench: Bench, claimed: Claimed, outcome: CommitOutcome, *, won: list[int]) -> None:
        written = outcome == CommitOutcome()
        run = await bench.run(claimed.run)
        assert not (written and claimed.run in won)
        assert run.state is (RunState.COMPLETED if written else RunState.QUEUED)
        assert len(await bench.log(claimed.run)) == (3 if written else 1)

    @scenario
    async def test_a_claim_and_a_take_over_never_strand_a_run(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(20):
            run = await bench.start(f"t{turn}")
            worker = await bench.worker()

            await asyncio.gather(bench.claim(worker), other.take_over([worker], recoveries_max=RECOVERIES_MAX))
            await bench.store.take_over([worker], recoveries_max=RECOVERIES_MAX)

            row = await bench.run(run)
            assert (row.state, row.worker) == (RunState.QUEUED, None)
            keeper = await bench.worker()
            await bench.commit(keeper, end(await bench.claim_one(keeper)))

    # -- retiring --------------------------------------------------------------------------------------------

    @scenario
    async def test_a_retiring_worker_gives_its_runs_back_uncounted(self, bench: Bench) -> None:
        retired, claimed = await bench.begin()

        assert await bench.store.retire(retired) == 1

        run = await bench.run(claimed.run)
        assert (run.state, run.worker, run.recoveries, run.strikes) == (RunState.QUEUED, None, 0, 0)
        assert run.fence > claimed.fence
        assert (await bench.claim_one(await bench.worker())).run == claimed.run

    @scenario
    async def test_retiring_again_does_nothing(self, bench: Bench) -> None:
        retired, dead = await bench.worker(), await bench.worker()
        assert await bench.store.retire(retired) == 0
        await bench.die(dead)

        assert await bench.store.retire(retired) == 0 == await bench.store.retire(dead)
        assert await bench.store.retire(10**15) == 0
        assert (await bench.worker_row(dead)).state is WorkerState.DEAD

    # -- giving back -----------------------------------------------------------------------------------------

    @scenario
    async def test_a_worker_gives_back_what_it_never_heard_of(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        known, *unheard = await bench.claim(worker)
        _, other = await bench.begin("elsewhere")

        assert await bench.store.give_back(worker, keep=[known.run, 10**15]) == 2

        for claimed in unheard:
            run = await bench.run(claimed.run)
            assert (run.state, run.worker, run.ready, run.recoveries, run.strikes) == (
                RunState.QUEUED,
                None,
                True,
                0,
                0,
            )
            assert run.fence > claimed.fence
        assert (await bench.store.commit(worker, [step(unheard[0], "a")])).lost == {unheard[0].run}
        await bench.commit(worker, step(known, "a"))
        assert (await bench.run(other.run)).state is RunState.RUNNING
        assert {again.run for again in await bench.claim(worker)} == {claimed.run for claimed in unheard}

    @scenario
    async def test_a_claim_that_comes_after_a_give_back_it_was_sent_before_takes_nothing(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        await bench.store.give_back(worker, keep=[], ticket=3)

        assert await bench.claim(worker, ticket=2) == []
        assert await bench.claim(await bench.worker(), ticket=0, limit=1)

        (claimed,) = await bench.claim(worker, ticket=3)
        await bench.commit(worker, end(claimed))

    @scenario
    async def test_a_give_back_that_comes_after_a_later_one_takes_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        assert await bench.store.give_back(worker, keep=[claimed.run], ticket=5) == 0

        assert await bench.store.give_back(worker, keep=[], ticket=4) == 0

        await bench.commit(worker, end(claimed))

    @scenario
    async def test_giving_back_nothing_is_harmless(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        assert await bench.store.give_back(worker, keep=[claimed.run]) == 0
        assert await bench.store.give_back(await bench.worker(), keep=[]) == 0
        assert await bench.store.give_back(10**15, keep=[]) == 0

        await bench.commit(worker, end(claimed))

    @scenario
    async def test_a_worker_that_kept_nothing_gives_everything_back(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        assert await bench.store.give_back(worker, keep=[]) == 1 == await bench.store.give_back(worker, keep=[]) + 1

        assert await bench.store.renew(worker, 1_000_000)
        assert (await bench.claim_one(worker)).fence > claimed.fence

    # -- known deaths ----------------------------------------------------------------------------------------

    @scenario
    async def test_an_attended_worker_is_not_silent_while_its_store_lives(self, bench: Bench) -> None:
        own = await bench.clone()
        worker = await bench.worker(own)

        attended = await own.attend(worker)

        assert (await bench.worker_row(worker)).session is attended
        assert await bench.store.silent_workers() == []

    @scenario
    async def test_a_crashed_worker_is_silent_until_it_is_taken_over(self, bench: Bench) -> None:
        own = await bench.clone()
        worker = await bench.worker(own)
        if not await own.attend(worker):
            raise unittest.SkipTest("this store cannot see a death before the lease ends")
        await bench.worker()

        await bench.crash(own)

        async def seen() -> bool:
            return await bench.store.silent_workers() == [worker]

        await eventually(seen)
        assert (await bench.worker_row(worker)).state is WorkerState.ALIVE
        await bench.die(worker)
        assert await bench.store.silent_workers() == []

    @scenario
    async def test_a_retired_worker_is_not_silent(self, bench: Bench) -> None:
        own = await bench.clone()
        worker = await bench.worker(own)
        await own.attend(worker)

        await own.retire(worker)
        await own.close()

        assert await bench.store.silent_workers() == []
