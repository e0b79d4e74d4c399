"""Scenarios: taking runs, and the order of a thread."""

from __future__ import annotations

import asyncio

from perdure.core.limits import CLAIM_ROWS_MAX, PRIORITY_MAX, RECOVERIES_MAX, SUSPECT_STRIKES
from perdure.core.records import Claimed, Kind, RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    end,
    fail,
    hold,
    in_threads,
    requeue,
    scenario,
    step,
)


class Claiming(Harness):
    """What `claim` promises, and whose turn it is on a thread."""

    @scenario
    async def test_a_claim_owns_the_run(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        run = await bench.run(claimed.run)

        assert (run.state, run.worker, run.fence, run.attempt) == (RunState.RUNNING, worker, claimed.fence, 1)
        assert (run.deployment, run.recoveries, run.strikes) == ("v1", 0, 0)
        assert run.started_at is not None and run.started_at >= run.created_at
        assert (await bench.worker_row(worker)).running == 1

    @scenario
    async def test_a_claim_brings_what_a_new_run_needs(self, bench: Bench) -> None:
        worker = await bench.worker()
        run = await bench.start("t", payload=b"in")

        claimed = await bench.claim_one(worker)

        row = await bench.run(run)
        assert claimed == Claimed(
            run=run,
            thread=row.thread,
            thread_id="t",
            agent="agent",
            fence=row.fence,
            super_step=1,
            attempt=1,
            recoveries=0,
            strikes=0,
            created_at=row.created_at,
            arguments=b"in",
            state=None,
            records=(),
            attempts=(),
            now=claimed.now,
            waits=(),
            tenant=None,
            priority=0,
            deadline_at=None,
            cancel=None,
        )

    @scenario
    async def test_a_claim_brings_the_records_and_tries_of_its_super_step(self, bench: Bench) -> None:
        worker, first = await bench.begin("t", payload=b"in")
        await bench.commit(worker, step(first, "old"), attempt(first, "old try"))
        await bench.commit(worker, again(first, 2, b"again", state=b"state"))
        await bench.commit(
            worker,
            step(first, "c", b"3", super_step=2, seq=1, digest=-(2**63), attempt=2),
            step(first, "a", b"1", super_step=2, seq=2, failed=True, digest=2**63 - 1),
            step(first, "b", b"", super_step=2, seq=3, started_at=11, ended_at=12),
            attempt(first, "f", 2, super_step=2),
            attempt(first, "f", 1, super_step=2, error=b"boom", ended_at=9),
            attempt(first, "e", 1, super_step=2),
        )
        await bench.die(worker)

        second = await bench.claim_one(await bench.worker())

        assert (second.super_step, second.arguments, second.state) == (2, b"again", b"state")
        assert [(row.key, row.payload, row.failed) for row in second.records] == [
            ("c", b"3", False),
            ("a", b"1", True),
            ("b", b"", False),
        ]
        assert [row.digest for row in second.records] == [-(2**63), 2**63 - 1, 7]
        kept = second.records[2]
        assert (kept.run, kept.super_step, kept.kind, kept.seq) == (first.run, 2, Kind.STEP, 3)
        assert (kept.fence, kept.worker, kept.attempt) == (first.fence, worker, 1)
        assert (kept.started_at, kept.ended_at, kept.state) == (11, 12, None)
        tries = [(row.key, row.attempt, row.error, row.fence, row.ended_at) for row in second.attempts]
        assert tries == [
            ("e", 1, None, first.fence, None),
            ("f", 1, b"boom", first.fence, 9),
            ("f", 2, None, first.fence, None),
        ]

    @scenario
    async def test_a_new_run_is_given_the_state_its_thread_was_left_in(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, end(first, state=b"state"))
        await bench.start("t")

        assert (await bench.claim_one(worker)).state == b"state"

    @scenario
    async def test_each_claim_raises_the_fence(self, bench: Bench) -> None:
        worker, first = await bench.begin()
        await bench.commit(worker, requeue(first))

        second = await bench.claim_one(worker)

        assert second.fence > first.fence
        assert second.attempt == 2

    @scenario
    async def test_the_start_of_a_run_is_when_it_was_first_claimed(self, bench: Bench) -> None:
        worker, first = await bench.begin()
        started_at = (await bench.run(first.run)).started_at
        await bench.commit(worker, requeue(first))
        await bench.advance_s(1)

        await bench.claim_one(worker)

        run = await bench.run(first.run)
        assert started_at is not None and run.started_at == started_at

    @scenario
    async def test_the_highest_priority_is_claimed_first_then_the_oldest(self, bench: Bench) -> None:
        worker = await bench.worker()
        order = {
            "old": await bench.start("a"),
            "high": await bench.start("b", priority=PRIORITY_MAX),
            "low": await bench.start("c", priority=-PRIORITY_MAX),
        }
        await bench.advance_s(1)
        order["new"] = await bench.start("d")
        names = {run: name for name, run in order.items()}

        taken = [(await bench.claim_one(worker, limit=1)).run for _ in order]

        assert [names[run] for run in taken] == ["high", "old", "new", "low"]

    @scenario
    async def test_what_was_ready_first_is_claimed_before_what_was_started_first(self, bench: Bench) -> None:
        worker = await bench.worker()
        late = await bench.start("a", delay_us=20_000_000)
        early = await bench.start("b", delay_us=10_000_000)
        await bench.advance_s(30)

        taken = [(await bench.claim_one(worker, limit=1)).run for _ in range(2)]

        assert taken == [early, late]

    @scenario
    async def test_runs_ready_at_one_moment_are_claimed_by_id(self, bench: Bench) -> None:
        worker = await bench.worker()
        asked = [await bench.ask(f"t{n}") for n in range(10)]
        await bench.store.start(list(reversed(asked)))

        taken = [(await bench.claim_one(worker, limit=1)).run for _ in asked]

        ready = {run.id: run.ready_at for run in await bench.store.get_runs(taken)}
        assert taken == sorted(taken, key=lambda run: (ready[run], run))

    @scenario
    async def test_a_claim_takes_no_more_than_its_limit(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(5)

        assert await bench.claim(worker, limit=0) == []
        assert len(await bench.claim(worker, limit=3)) == 3
        assert len(await bench.claim(worker, limit=3)) == 2
        assert await bench.claim(worker, limit=3) == []

    @scenario
    async def test_one_claim_takes_no_more_than_the_most_there_may_be(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(CLAIM_ROWS_MAX + 1)

        assert len(await bench.claim(worker, limit=10 * CLAIM_ROWS_MAX)) == CLAIM_ROWS_MAX
        assert len(await bench.claim(worker, limit=-1)) == 0
        assert len(await bench.claim(worker)) == 1

    @scenario
    async def test_an_agent_or_a_queue_that_is_named_twice_counts_once(self, bench: Bench) -> None:
        worker = await bench.worker()
        runs = await bench.start_many(3)

        claimed = await bench.claim(worker, agents=("agent", "agent"), queues=("default", "default"), limit=2)

        assert [each.run for each in claimed] == runs[:2]

    @scenario
    async def test_a_delayed_run_is_not_claimed_before_its_time(self, bench: Bench) -> None:
        worker = await bench.worker()
        run = await bench.start(delay_us=60_000_000)

        assert await bench.claim(worker) == []
        await bench.advance_s(61)
        assert (await bench.claim_one(worker)).run == run

    @scenario
    async def test_a_claim_takes_only_the_agents_and_queues_it_names(self, bench: Bench) -> None:
        worker = await bench.worker()
        wanted = {await bench.start("t1", agent="a", queue="x"), await bench.start("t2", agent="b", queue="y")}
        await bench.start("t3", agent="c", queue="x")
        await bench.start("t4", agent="a", queue="z")

        claimed = await bench.claim(worker, agents=("a", "b"), queues=("x", "y"))

        assert {run.run for run in claimed} == wanted

    @scenario
    async def test_a_run_is_pinned_to_the_deployment_that_first_claimed_it(self, bench: Bench) -> None:
        old, claimed = await bench.begin()
        await bench.commit(old, requeue(claimed))
        new = await bench.worker(deployment="v2")

        assert await bench.claim(new, deployment="v2") == []
        assert (await bench.claim_one(old, deployment="v1")).run == claimed.run

    @scenario
    async def test_a_claim_takes_few_suspects(self, bench: Bench) -> None:
        suspects = set(await self._suspects(bench, 3))
        innocent = {await bench.start(f"innocent-{n}") for n in range(3)}
        worker = await bench.worker()

        first = {claimed.run for claimed in await bench.claim(worker, suspects=1)}
        assert first >= innocent and len(first & suspects) == 1
        assert await bench.claim(worker, suspects=0) == []
        assert {claimed.run for claimed in await bench.claim(worker, suspects=5)} == suspects - first

    @scenario
    async def test_suspects_do_not_use_up_the_limit_of_a_claim(self, bench: Bench) -> None:
        await self._suspects(bench, 5)
        innocent = {await bench.start(f"innocent-{n}") for n in range(4)}
        worker = await bench.worker()

        claimed = await bench.claim(worker, limit=5, suspects=1)

        assert len(claimed) == 5 and {run.run for run in claimed} > innocent

    async def _suspects(self, bench: Bench, count: int) -> list[int]:
        runs = await bench.start_many(count)
        for _ in range(SUSPECT_STRIKES):
            worker = await bench.worker()
            assert len(await bench.claim(worker)) == count
            await bench.die(worker, recoveries_max=RECOVERIES_MAX)
        return runs

    @scenario
    async def test_two_workers_never_share_a_run(self, bench: Bench) -> None:
        runs = await bench.start_many(100)
        stores = await bench.clones(4)
        workers = [await bench.worker(store) for store in stores]

        async def drain(n: int) -> list[int]:
            taken: list[int] = []
            while claimed := await bench.claim(workers[n], stores[n], limit=7):
                taken += [run.run for run in claimed]
            return taken

        taken = await asyncio.gather(*(drain(n) for n in range(4)))
        # A store may pass over a run that another claim holds for an instant.
        taken.append([run.run for run in await bench.claim(workers[0])])

        assert sorted(run for each in taken for run in each) == sorted(runs)

    @scenario
    async def test_workers_on_other_loops_never_share_a_run(self, bench: Bench) -> None:
        runs = await bench.start_many(100)
        taken: list[int] = []

        async def drain(own: Bench, number: int) -> None:
            worker = await own.worker()
            while claimed := await own.claim(worker, limit=7):
                taken.extend(run.run for run in claimed)

        await in_threads(4, bench, drain)
        taken += [run.run for run in await bench.claim(await bench.worker())]

        assert sorted(taken) == sorted(runs)

    # -- the order of a thread -------------------------------------------------------------------------------

    @scenario
    async def test_a_thread_runs_one_run_at_a_time_in_order(self, bench: Bench) -> None:
        worker = await bench.worker()
        runs = [await bench.start("t") for _ in range(4)]
        done: list[int] = []

        for left in range(3, -1, -1):
            claimed = await bench.claim_one(worker)
            assert (await bench.thread("t")).head == claimed.run
            await bench.commit(worker, end(claimed))
            assert (await bench.thread("t")).depth == left
            done.append(claimed.run)

        assert done == runs
        assert (await bench.thread("t")).head is None

    @scenario
    async def test_a_priority_does_not_overtake_on_a_thread(self, bench: Bench) -> None:
        worker = await bench.worker()
        first = await bench.start("t", priority=0)
        await bench.start("t", priority=9)

        assert (await bench.claim_one(worker)).run == first

    @scenario
    async def test_the_end_of_a_run_makes_the_next_one_ready(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        second, third = await bench.start("t"), await bench.start("t")

        await bench.commit(worker, fail(claimed))

        assert (await bench.thread("t")).head == second
        assert [run.ready for run in await bench.store.get_runs([second, third])] == [True, False]
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_an_idle_thread_takes_a_new_head(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, end(claimed))

        run = await bench.start("t")

        thread = await bench.thread("t")
        assert (thread.head, thread.depth, thread.last_ordinal) == (run, 1, 2)
        assert (await bench.claim_one(worker)).run == run

    @scenario
    async def test_a_requeued_run_stays_the_head_of_its_thread(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("t")

        await bench.commit(worker, requeue(claimed, delay_s=60))

        assert (await bench.thread("t")).head == claimed.run
        assert await bench.claim(worker) == []
        await bench.advance_s(61)
        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_many_ends_in_one_batch_promote_each_threads_next(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        firsts = await bench.claim(worker)
        nexts = [await bench.start(f"thread-{n}") for n in range(20)]

        await bench.commit(worker, *(end(claimed) for claimed in firsts))

        assert sorted(run.run for run in await bench.claim(worker)) == sorted(nexts)

    @scenario
    async def test_a_held_run_blocks_its_thread_until_it_is_released(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        second = await bench.start("t")
        await bench.commit(worker, hold(claimed))
        assert await bench.claim(worker) == []

        released = await bench.store.release(claimed.run)

        assert released is not None and released.state is RunState.QUEUED
        again = await bench.claim_one(worker)
        assert again.run == claimed.run
        await bench.commit(worker, end(again))
        assert (await bench.claim_one(worker)).run == second
