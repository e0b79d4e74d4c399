"""Scenarios: two things at once, of which exactly one may win, and neither may be lost."""

from __future__ import annotations

import asyncio

from perdure.core.changes import Change
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import IfBusy, RunState
from perdure.core.requests import Started, ThreadHeld
from perdure.testing.conformance.harness import (
    LEASE_S,
    Bench,
    Harness,
    again,
    blob,
    end,
    fail,
    hold,
    in_threads,
    requeue,
    scenario,
    step,
)

TURNS = 12
"""How often a race is run; the two sides start in turn."""


class Racing(Harness):
    """What holds when verbs meet."""

    @scenario
    async def test_a_run_started_while_its_thread_ends_another_is_not_stranded(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(TURNS):
            worker, claimed = await bench.begin(f"t{turn}")
            ask = await bench.ask(f"t{turn}")
            ending, starting = bench.store.commit(worker, [end(claimed)]), other.start([ask])

            await (asyncio.gather(ending, starting) if turn % 2 else asyncio.gather(starting, ending))

            thread = await bench.thread(f"t{turn}")
            assert (thread.head, thread.depth) == (ask.id, 1)
            assert (await bench.claim_one(worker)).run == ask.id

    @scenario
    async def test_threads_that_start_and_end_runs_at_once_strand_none(self, bench: Bench) -> None:
        """One side keeps starting runs on a few threads, the other claims and ends them."""
        asked = [await bench.ask(f"t{n % 3}") for n in range(60)]
        ended: list[int] = []

        async def work(own: Bench, number: int) -> None:
            if number == 0:
                for first in range(0, len(asked), 3):
                    await own.store.start(asked[first : first + 3])
                return
            worker = await own.worker()
            for _ in range(20):
                claimed = await own.claim(worker)
                await own.commit(worker, *(end(each) for each in claimed))
                ended.extend(each.run for each in claimed)

        await in_threads(3, bench, work)
        worker = await bench.worker()
        while claimed := await bench.claim(worker):
            await bench.commit(worker, *(end(each) for each in claimed))
            ended += [each.run for each in claimed]

        assert sorted(ended) == sorted(ask.id for ask in asked)
        assert [(await bench.thread(f"t{n}")).depth for n in range(3)] == [0, 0, 0]

    @scenario
    async def test_a_retry_that_meets_the_claim_of_the_next_run_undoes_no_state(self, bench: Bench) -> None:
        """Either the retried run goes first, from its own state, or it is not sent on."""
        other = await bench.clone()
        for turn in range(TURNS):
            worker, first = await bench.begin(f"t{turn}")
            second = await bench.start(f"t{turn}")
            await bench.commit(worker, again(first, 2, state=b"of the first"), fail(first, super_step=3))
            retrying, claiming = other.retry(first.run, []), bench.claim(worker)

            if turn % 2:
                retried, claimed = await asyncio.gather(retrying, claiming)
            else:
                claimed, retried = await asyncio.gather(claiming, retrying)

            assert retried is not None
            while not claimed:  # it looked while the retry held the rows
                claimed = await bench.claim(worker)
            sent_on = retried.state is RunState.QUEUED
            assert [each.run for each in claimed] == [first.run if sent_on else second]
            await bench.commit(worker, end(claimed[0], super_step=9))
            await bench.commit(worker, *(end(each) for each in await bench.claim(worker)))

    @scenario
    async def test_joins_at_once_on_an_idle_thread_make_one_run(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        for turn in range(TURNS // 3):
            asked = [await bench.ask(f"t{turn}", if_busy=IfBusy.JOIN) for _ in stores]

            answers = await asyncio.gather(*(store.start([ask]) for store, ask in zip(stores, asked, strict=True)))

            started = [answer for (answer,) in answers if isinstance(answer, Started)]
            assert len(started) == 4 and len({answer.run for answer in started}) == 1
            assert [answer.created for answer in started].count(True) == 1

    @scenario
    async def test_rejecting_starts_at_once_on_an_idle_thread_let_one_through(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        for turn in range(TURNS // 3):
            asked = [await bench.ask(f"t{turn}", if_busy=IfBusy.REJECT) for _ in stores]

            answers = await asyncio.gather(*(store.start([ask]) for store, ask in zip(stores, asked, strict=True)))

            (winner,) = [answer for (answer,) in answers if isinstance(answer, Started)]
            assert [answer for (answer,) in answers if answer != winner] == [ThreadHeld(winner.run, 1)] * 3

    @scenario
    async def test_many_workers_commit_at_once(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        await bench.start_many(40)
        workers = [await bench.worker(store) for store in stores]
        claims = [await bench.claim(worker, limit=10) for worker in workers]

        async def work(n: int) -> None:
            for number in range(5):
                batch: list[Change] = [step(claimed, f"k{number}", seq=number + 1) for claimed in claims[n]]
                assert not (await stores[n].commit(workers[n], batch)).lost

        await asyncio.gather(*(work(n) for n in range(4)))

        for claimed in (claimed for taken in claims for claimed in taken):
            assert len(await bench.steps(claimed.run)) == 5

    @scenario
    async def test_the_same_blob_may_be_put_from_two_sides_at_once(self, bench: Bench) -> None:
        other = await bench.clone()
        worker, claimed = await bench.begin("t")
        for turn in range(TURNS):
            same = blob(f"blob {turn}".encode())
            ask = await bench.ask("t", blobs=(same,))

            outcome, _ = await asyncio.gather(
                bench.store.commit(worker, [step(claimed, f"k{turn}", seq=turn + 1, blobs=(same,))]),
                other.start([ask]),
            )

            assert not outcome.refused and not outcome.lost
            assert await bench.store.blobs(claimed.thread, [same.digest]) == {same.digest: same.data}

    @scenario
    async def test_a_renewal_and_a_take_over_of_an_ended_lease_never_both_win(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(TURNS):
            worker = await bench.worker()
            await bench.advance_s(LEASE_S + 5)
            lease_us = int(LEASE_S * 1_000_000)
            renewing, taking = bench.store.renew(worker, lease_us), other.take_over([], recoveries_max=RECOVERIES_MAX)

            if turn % 2:
                renewed, taken = await asyncio.gather(renewing, taking)
            else:
                taken, renewed = await asyncio.gather(taking, renewing)

            assert not (renewed and worker in [each.worker for each in taken])
            await bench.store.retire(worker)

    @scenario
    async def test_retries_at_once_send_a_run_on_once(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(TURNS // 2):
            worker, claimed = await bench.begin(f"t{turn}", agent=f"agent-{turn}")
            await bench.commit(worker, fail(claimed))

            await asyncio.gather(bench.store.retry(claimed.run, []), other.retry(claimed.run, []))

            thread = await bench.thread(f"t{turn}")
            assert (thread.head, thread.depth) == (claimed.run, 1)

    @scenario
    async def test_a_retry_and_a_start_on_one_thread_leave_one_head(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(TURNS):
            worker, claimed = await bench.begin(f"t{turn}")
            await bench.commit(worker, fail(claimed))
            ask = await bench.ask(f"t{turn}")
            retrying, starting = bench.store.retry(claimed.run, []), other.start([ask])

            await (asyncio.gather(retrying, starting) if turn % 2 else asyncio.gather(starting, retrying))

            assert (await bench.thread(f"t{turn}")).head == claimed.run
            for run in (claimed.run, ask.id):
                taken = await bench.claim_one(worker)
                assert taken.run == run
                await bench.commit(worker, end(taken))

    @scenario
    async def test_giving_back_and_taking_over_count_a_run_once(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(TURNS):
            worker, claimed = await bench.begin(f"t{turn}", agent=f"agent-{turn}")
            ending = bench.store.retire(worker) if turn % 3 else bench.store.give_back(worker, keep=[])

            given, taken = await asyncio.gather(ending, other.take_over([worker], recoveries_max=RECOVERIES_MAX))

            requeued = [run for each in taken for run in each.requeued]
            run = await bench.run(claimed.run)
            assert given + len(requeued) == 1
            assert (run.state, run.recoveries) == (RunState.QUEUED, len(requeued))

    @scenario
    async def test_a_release_and_a_claim_share_the_run_once(self, bench: Bench) -> None:
        other = await bench.clone()
        worker = await bench.worker()
        await bench.start()
        for _ in range(TURNS):
            claimed = await bench.claim_one(worker)
            await bench.commit(worker, hold(claimed))

            _, taken = await asyncio.gather(other.release(claimed.run), bench.claim(worker))

            again = taken[0] if taken else await bench.claim_one(worker)
            assert again.run == claimed.run and again.fence > claimed.fence
            await bench.commit(worker, requeue(again))
