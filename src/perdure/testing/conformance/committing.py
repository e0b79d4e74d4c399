"""Scenarios: what a batch of changes writes, and what happens when it is sent again."""

from __future__ import annotations

import random

from perdure.core.changes import CommitOutcome
from perdure.core.limits import COMMIT_ROWS_MAX, KEY_CHARS_MAX
from perdure.core.records import Checkpoint, HeldReason, Kind, Outcome, RunState
from perdure.store import reasons
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


class Committing(Harness):
    """What `commit` promises while nobody disputes the run."""

    @scenario
    async def test_an_empty_batch_is_written(self, bench: Bench) -> None:
        worker = await bench.worker()

        assert await bench.store.commit(worker, []) == CommitOutcome()

    @scenario
    async def test_a_step_is_recorded_as_it_was_sent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        await bench.commit(worker, step(claimed, "a", b"1", seq=5, attempt=2, digest=-3, started_at=8, ended_at=9))

        assert (await bench.log(claimed.run))[1] == Checkpoint(
            run=claimed.run,
            super_step=1,
            key="a",
            kind=Kind.STEP,
            seq=5,
            fence=claimed.fence,
            worker=worker,
            attempt=2,
            digest=-3,
            failed=False,
            payload=b"1",
            state=None,
            started_at=8,
            ended_at=9,
        )

    @scenario
    async def test_payloads_of_any_bytes_round_trip(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        values = {"nul": b"\0", "empty": b"", "all": bytes(range(256)), "large": random.Random(0).randbytes(300_000)}

        await bench.commit(
            worker, *(step(claimed, key, data, seq=n) for n, (key, data) in enumerate(values.items(), 1))
        )

        assert await bench.steps(claimed.run) == values

    @scenario
    async def test_keys_of_any_text_round_trip(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        keys = ["🦉" * 200, "a/b#1", "a\\b", "'; --", '"x"', "{1,2}", "null", "é", "é", " ", "a" * KEY_CHARS_MAX]

        await bench.commit(worker, *(step(claimed, key, key.encode(), seq=n) for n, key in enumerate(keys, 1)))

        assert await bench.steps(claimed.run) == {key: key.encode() for key in keys}

    @scenario
    async def test_a_key_of_the_largest_size_is_stored_or_refused_alone(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        large, small = await bench.claim(worker)
        letters = random.Random(0).sample(range(0x20000, 0x2A000), KEY_CHARS_MAX)
        key = "".join(chr(letter) for letter in letters)

        outcome = await bench.store.commit(worker, [step(large, key), step(small, "a")])

        assert outcome.alive and not outcome.lost and set(outcome.refused) <= {large.run}
        assert set(await bench.steps(large.run)) == (set() if outcome.refused else {key})
        assert set(await bench.steps(small.run)) == {"a"}

    @scenario
    async def test_a_batch_of_the_largest_size_is_written(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(50)
        runs = await bench.claim(worker)
        each = COMMIT_ROWS_MAX // 50

        await bench.commit(worker, *(step(run, f"k{n}", b"x" * 200, seq=n + 1) for run in runs for n in range(each)))

        for run in runs[::10]:
            assert len(await bench.steps(run.run)) == each

    @scenario
    async def test_a_try_is_recorded_and_replaced_by_a_later_one_of_its_number(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, attempt(claimed, "a", 1), attempt(claimed, "a", 2))

        await bench.commit(worker, attempt(claimed, "a", 1, error=b"boom", ended_at=9))

        await bench.commit(worker, attempt(claimed, "a", 1))  # a late copy of what was sent first

        tries = await bench.store.attempts(claimed.run)
        assert [(row.attempt, row.error, row.ended_at) for row in tries] == [(1, b"boom", 9), (2, None, None)]
        assert (tries[0].run, tries[0].super_step, tries[0].key) == (claimed.run, 1, "a")
        assert (tries[0].fence, tries[0].started_at) == (claimed.fence, 1_000)

    @scenario
    async def test_two_tries_of_one_number_in_one_batch_leave_the_later(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        await bench.commit(worker, attempt(claimed, "a"), attempt(claimed, "a", error=b"boom", ended_at=9))

        assert [row.error for row in await bench.store.attempts(claimed.run)] == [b"boom"]

    @scenario
    async def test_a_try_that_has_ended_stays_so(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        ended, begun = attempt(claimed, "a", error=b"boom", ended_at=9), attempt(claimed, "a")
        other = [attempt(claimed, "b", error=b"boom", ended_at=9), attempt(claimed, "b")]

        await bench.commit(worker, ended)
        await bench.commit(worker, begun)
        await bench.commit(worker, *other)

        tries = await bench.store.attempts(claimed.run)
        assert [(row.key, row.error) for row in tries] == [("a", b"boom"), ("b", b"boom")]

    @scenario
    async def test_a_boundary_begins_the_next_super_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", payload=b"in")

        await bench.commit(worker, step(claimed, "a"), again(claimed, 2, b"again", state=b"state"))

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert (run.state, run.super_step, run.worker, run.fence) == (RunState.RUNNING, 2, worker, claimed.fence)
        assert (thread.snapshot_run, thread.snapshot_step, thread.head) == (claimed.run, 2, claimed.run)
        boundaries = await bench.store.checkpoints(claimed.run, boundaries=True)
        assert [(row.super_step, row.kind, row.payload, row.state) for row in boundaries] == [
            (1, Kind.BOUNDARY, b"in", None),
            (2, Kind.BOUNDARY, b"again", b"state"),
        ]

    @scenario
    async def test_a_completed_run_leaves_its_result_and_its_state(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, end(claimed, b"result", state=b"state"))

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert run.state is RunState.COMPLETED and run.super_step == 1 and run.ended_at is not None
        assert (thread.snapshot_run, thread.snapshot_step) == (claimed.run, 2)
        ended = (await bench.log(claimed.run))[-1]
        assert (ended.super_step, ended.key, ended.kind) == (2, "", Kind.ENDED)
        assert (ended.payload, ended.state, ended.failed, ended.worker) == (b"result", b"state", False, worker)
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, False, b"result")]
        assert (await bench.worker_row(worker)).running == 0

    @scenario
    async def test_a_failed_run_leaves_the_state_as_it_was(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, again(claimed, 2, state=b"state"))

        await bench.commit(worker, fail(claimed, b"boom", super_step=3))

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert (run.state, run.super_step) == (RunState.FAILED, 2)
        assert (thread.snapshot_run, thread.snapshot_step) == (claimed.run, 2)
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, True, b"boom")]
        await bench.start("t")
        assert (await bench.claim_one(worker)).state == b"state"

    @scenario
    async def test_a_cancelled_run_is_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, end(claimed, b"why", outcome=RunState.CANCELLED))

        assert (await bench.run(claimed.run)).state is RunState.CANCELLED
        assert [outcome.payload for outcome in await bench.store.outcomes([claimed.run])] == [b"why"]
        assert (await bench.thread("t")).head is None

    @scenario
    async def test_a_whole_life_in_one_batch_is_applied_in_order(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(
            worker,
            step(claimed, "a", b"1"),
            again(claimed, 2, b"second", state=b"s2"),
            step(claimed, "a", b"2", super_step=2),
            again(claimed, 3, b"third", state=b"s3"),
            step(claimed, "a", b"3", super_step=3),
            end(claimed, super_step=4, state=b"s4"),
        )

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert (run.state, run.super_step) == (RunState.COMPLETED, 3)
        assert (thread.snapshot_run, thread.snapshot_step, thread.head) == (claimed.run, 4, None)
        assert [(row.super_step, row.key) for row in await bench.log(claimed.run)] == [
            (1, ""),
            (1, "a"),
            (2, ""),
            (2, "a"),
            (3, ""),
            (3, "a"),
            (4, ""),
        ]

    @scenario
    async def test_two_boundaries_in_one_batch_leave_the_newest(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, again(claimed, 2, b"second", state=b"s2"), again(claimed, 3, b"third", state=b"s3"))
        await bench.commit(worker, requeue(claimed))

        second = await bench.claim_one(worker)
        assert (second.super_step, second.arguments, second.state) == (3, b"third", b"s3")

    @scenario
    async def test_a_requeued_run_waits_for_its_time_under_its_fence(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        before = await bench.store.now_us()

        await bench.commit(worker, requeue(claimed, delay_s=60))

        run = await bench.run(claimed.run)
        assert (run.state, run.ready, run.worker, run.attempt) == (RunState.QUEUED, True, None, 1)
        assert (run.recoveries, run.strikes, run.fence) == (0, 0, claimed.fence)
        assert before + 60_000_000 <= run.ready_at <= await bench.store.now_us() + 60_000_000

    @scenario
    async def test_a_requeued_run_forgets_the_tries_that_were_cut_short(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        cut_short = attempt(claimed, "a", 2, error=None, ended_at=None)
        await bench.commit(worker, attempt(claimed, "a", 1, error=b"known"), cut_short)

        await bench.commit(worker, requeue(claimed))

        second = await bench.claim_one(worker)
        assert [(row.attempt, row.error) for row in second.attempts] == [(1, b"known")]

    @scenario
    async def test_a_requeued_run_forgets_the_failed_steps_it_names(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(
            worker,
            step(claimed, "good"),
            attempt(claimed, "bad", 1, error=b"first"),
            attempt(claimed, "other", 1, error=b"first"),
            step(claimed, "bad", failed=True, seq=2),
            step(claimed, "other", failed=True, seq=3),
        )

        await bench.commit(worker, requeue(claimed, drop_keys=("bad", "good", "unknown")))

        second = await bench.claim_one(worker)
        assert [row.key for row in second.records] == ["good", "other"]
        assert [row.key for row in await bench.store.attempts(claimed.run)] == ["other"]

    @scenario
    async def test_a_requeue_forgets_a_failure_recorded_in_its_own_batch(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        await bench.commit(worker, step(claimed, "bad", failed=True), requeue(claimed, drop_keys=("bad",)))

        second = await bench.claim_one(worker)
        assert second.records == ()
        await bench.commit(worker, step(second, "bad", b"better"))
        assert await bench.steps(claimed.run) == {"bad": b"better"}

    @scenario
    async def test_a_held_run_says_why(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        await bench.commit(worker, hold(claimed, HeldReason.SCHEMA, "state of v2 🦉"))

        run = await bench.run(claimed.run)
        assert (run.state, run.reason, run.detail, run.worker) == (RunState.HELD, "schema", "state of v2 🦉", None)
        assert (await bench.thread("t")).head == claimed.run
        assert await bench.store.outcomes([claimed.run]) == []

    # -- blobs -----------------------------------------------------------------------------------------------

    @scenario
    async def test_blobs_are_kept_by_thread(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        one, two = await bench.claim(worker)
        a, b, c = blob(b"a" * 100_000), blob(b"\0"), blob(b"")

        await bench.commit(worker, step(one, "x", blobs=(a, b)), again(one, 2, blobs=(c,)), step(two, "x", blobs=(a,)))

        digests = [a.digest, b.digest, c.digest]
        assert await bench.store.blobs(one.thread, digests) == {each.digest: each.data for each in (a, b, c)}
        assert await bench.store.blobs(two.thread, digests) == {a.digest: a.data}
        assert await bench.store.blobs(two.thread, []) == {}

    @scenario
    async def test_a_blob_put_twice_is_stored_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        same, last = blob(b"same"), blob(b"last")

        await bench.commit(worker, step(claimed, "a", blobs=(same, same)), step(claimed, "b", seq=2, blobs=(same,)))
        await bench.commit(worker, end(claimed, blobs=(same, last)))

        found = await bench.store.blobs(claimed.thread, [same.digest, last.digest, same.digest])
        assert found == {same.digest: b"same", last.digest: b"last"}

    # -- refused ---------------------------------------------------------------------------------------------

    @scenario
    async def test_one_bad_change_fails_alone_among_a_hundred(self, bench: Bench) -> None:
        dead = await bench.worker()
        await bench.start_many(100)
        bad = (await bench.claim(dead, limit=1))[0]
        await bench.commit(dead, step(bad, "a", b"first"))
        await bench.die(dead)
        worker = await bench.worker()
        runs = await bench.claim(worker)
        assert len(runs) == 100

        outcome = await bench.store.commit(worker, [step(run, "a", b"second") for run in runs])

        assert outcome.alive and not outcome.lost
        assert list(outcome.refused) == [bad.run] and outcome.refused[bad.run]
        for run in runs:
            assert await bench.steps(run.run) == {"a": b"first" if run.run == bad.run else b"second"}

    @scenario
    async def test_a_record_never_changes(self, bench: Bench) -> None:
        dead, first = await bench.begin()
        await bench.commit(dead, step(first, "a", b"first"))
        await bench.die(dead)
        worker = await bench.worker()
        second = await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [step(second, "a", b"second")])

        why = reasons.recorded_before("a", 1, under=first.fence, fence=second.fence)
        assert outcome.refused == {second.run: why}
        assert await bench.steps(first.run) == {"a": b"first"}

    @scenario
    async def test_a_refused_change_takes_its_runs_others_with_it(self, bench: Bench) -> None:
        dead, first = await bench.begin("t")
        await bench.commit(dead, step(first, "a", b"first"))
        await bench.die(dead)
        worker = await bench.worker()
        second = await bench.claim_one(worker)

        outcome = await bench.store.commit(
            worker,
            [
                step(second, "before"),
                attempt(second, "try"),
                step(second, "a", b"second"),
                again(second, 2, state=b"state"),
                end(second, super_step=3, state=b"state"),
            ],
        )

        assert list(outcome.refused) == [second.run]
        run, thread = await bench.run(second.run), await bench.thread("t")
        assert (run.state, run.super_step, run.worker, run.fence) == (RunState.RUNNING, 1, worker, second.fence)
        assert (thread.snapshot_run, thread.head) == (None, second.run)
        assert await bench.steps(second.run) == {"a": b"first"}
        assert await bench.store.attempts(second.run) == []
        await bench.commit(worker, hold(second, HeldReason.REFUSED, outcome.refused[second.run]))
