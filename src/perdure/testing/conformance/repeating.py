"""Scenarios: batches that are sent again, and what a batch says twice or too late."""

from __future__ import annotations

from perdure.core.changes import Change, CommitOutcome
from perdure.core.records import Claimed, RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    blob,
    end,
    fail,
    hold,
    requeue,
    scenario,
    step,
)


class Repeating(Harness):
    """What `commit` promises about work that is done already."""

    @scenario
    async def test_every_kind_of_change_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        put = blob(b"data")
        batches: list[list[Change]] = [
            [step(claimed, "a", blobs=(put,))],
            [attempt(claimed, "b", error=b"boom", ended_at=9)],
            [step(claimed, "b", failed=True, seq=2), attempt(claimed, "c")],
            [again(claimed, 2, state=b"state", blobs=(put,))],
        ]
        for batch in batches:
            await self._send_twice(bench, worker, claimed, batch)

    @scenario
    async def test_the_end_of_a_run_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("t")

        batch: list[Change] = [step(claimed, "a"), again(claimed, 2), end(claimed, super_step=3, state=b"state")]

        await self._send_twice(bench, worker, claimed, batch)
        assert (await bench.thread("t")).depth == 1

    @scenario
    async def test_a_failure_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        await self._send_twice(bench, worker, claimed, [step(claimed, "a", failed=True), fail(claimed)])

    @scenario
    async def test_a_requeue_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        batch: list[Change] = [
            step(claimed, "a", failed=True),
            step(claimed, "b"),
            requeue(claimed, 60, drop_keys=("a",)),
        ]

        await self._send_twice(bench, worker, claimed, batch)

    @scenario
    async def test_a_hold_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        await self._send_twice(bench, worker, claimed, [step(claimed, "a"), attempt(claimed, "b"), hold(claimed)])

    @scenario
    async def test_a_repeated_end_leaves_the_next_run_of_the_thread_alone(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.start("t")
        await bench.commit(worker, end(first))
        second = await bench.claim_one(worker)

        await bench.commit(worker, end(first))

        assert (await bench.run(second.run)).state is RunState.RUNNING
        assert (await bench.thread("t")).head == second.run
        await bench.commit(worker, step(second, "a"))

    # -- after the run was claimed anew ----------------------------------------------------------------------

    @scenario
    async def test_a_batch_that_is_wholly_on_record_may_be_sent_again_even_after_a_new_claim(
        self, bench: Bench
    ) -> None:
        worker, first = await bench.begin()
        batch: list[Change] = [step(first, "a"), step(first, "b", seq=2), again(first, 2)]
        await bench.commit(worker, *batch)
        await bench.commit(worker, requeue(first))
        second = await bench.claim_one(worker)
        before = await self._picture(bench, first)

        assert await bench.store.commit(worker, batch) == CommitOutcome()

        assert await self._picture(bench, first) == before
        await bench.commit(worker, step(second, "c", seq=3))

    @scenario
    async def test_a_batch_that_says_more_than_is_on_record_is_lost_after_a_new_claim(self, bench: Bench) -> None:
        worker, first = await bench.begin()
        beyond: list[Change] = [requeue(first), hold(first), end(first), attempt(first, "b"), step(first, "b", seq=2)]
        await bench.commit(worker, step(first, "a"), requeue(first))
        second = await bench.claim_one(worker)
        before = await self._picture(bench, first)

        for change in beyond:
            outcome = await bench.store.commit(worker, [step(first, "a"), change])
            assert outcome == CommitOutcome(lost=frozenset({first.run})), change

        assert await self._picture(bench, first) == before
        await bench.commit(worker, step(second, "b", seq=2))

    @scenario
    async def test_a_late_change_takes_with_it_what_its_batch_says_of_the_run_under_the_new_fence(
        self, bench: Bench
    ) -> None:
        worker, first = await bench.begin()
        await bench.commit(worker, requeue(first))
        second = await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [step(first, "a"), step(second, "b", seq=2)])

        assert outcome == CommitOutcome(lost=frozenset({first.run}))
        assert await bench.steps(first.run) == {}

    @scenario
    async def test_what_is_on_record_hinders_nothing_that_its_batch_says_of_the_run_under_the_new_fence(
        self, bench: Bench
    ) -> None:
        worker, first = await bench.begin()
        await bench.commit(worker, step(first, "a"), requeue(first))
        second = await bench.claim_one(worker)

        await bench.commit(worker, step(first, "a"), step(second, "b", seq=2))

        assert set(await bench.steps(first.run)) == {"a", "b"}

    # -- in one batch ----------------------------------------------------------------------------------------

    @scenario
    async def test_what_a_batch_says_of_a_run_after_the_end_of_its_slice_is_a_no_op(self, bench: Bench) -> None:
        for n, state in enumerate((RunState.COMPLETED, RunState.FAILED, RunState.QUEUED, RunState.HELD)):
            worker, claimed = await bench.begin(f"t{n}", priority=n)
            endings: list[Change] = [end(claimed), fail(claimed), requeue(claimed, 60), hold(claimed)]
            ending = endings.pop(n)
            late: list[Change] = [step(claimed, "late", seq=2), attempt(claimed, "late"), again(claimed, 3), *endings]

            await bench.commit(worker, step(claimed, "a"), ending, *late)

            run = await bench.run(claimed.run)
            assert (run.state, run.super_step, run.worker) == (state, 1, None)
            assert set(await bench.steps(claimed.run)) == {"a"}
            assert await bench.store.attempts(claimed.run) == []

    @scenario
    async def test_a_run_ended_in_a_batch_that_goes_on_leaves_its_thread_to_the_next(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second = await bench.start("t")

        await bench.commit(worker, end(first), hold(first), end(first), requeue(first))

        assert (await bench.run(first.run)).state is RunState.COMPLETED
        thread = await bench.thread("t")
        assert (thread.head, thread.depth) == (second, 1)
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_a_checkpoint_that_a_batch_files_twice_is_the_first_one(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        kept, left = blob(b"kept"), blob(b"left")

        await bench.commit(
            worker,
            step(claimed, "a", b"first", blobs=(kept,)),
            step(claimed, "a", b"second", blobs=(left,)),
            again(claimed, 2, b"first", state=b"first"),
            again(claimed, 2, b"second", state=b"second"),
        )

        assert await bench.steps(claimed.run) == {"a": b"first"}
        boundary = (await bench.store.checkpoints(claimed.run, boundaries=True))[-1]
        assert (boundary.payload, boundary.state) == (b"first", b"first")
        assert await bench.store.blobs(claimed.thread, [kept.digest, left.digest]) == {kept.digest: b"kept"}

    @scenario
    async def test_an_empty_batch_of_a_dead_worker_says_so(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.die(worker)

        assert await bench.store.commit(worker, []) == CommitOutcome(alive=False)

    async def _send_twice(self, bench: Bench, worker: int, claimed: Claimed, batch: list[Change]) -> None:
        await bench.commit(worker, *batch)
        await bench.advance_s(1)
        before = await self._picture(bench, claimed)

        await bench.commit(worker, *batch)

        assert await self._picture(bench, claimed) == before

    async def _picture(self, bench: Bench, claimed: Claimed) -> object:
        return (
            await bench.run(claimed.run),
            await bench.store.get_thread(claimed.thread_id),
            await bench.log(claimed.run),
            await bench.store.attempts(claimed.run),
        )
