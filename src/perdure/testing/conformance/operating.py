"""Scenarios: sending held and ended runs on."""

from __future__ import annotations

from perdure.core.records import HeldReason, RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    end,
    fail,
    hold,
    requeue,
    scenario,
    step,
)


class Operating(Harness):
    """What `retry` and `release` promise."""

    @scenario
    async def test_a_released_run_goes_on_where_it_was(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, step(claimed, "a", b"1"), hold(claimed, HeldReason.DIVERGED))

        released = await bench.store.release(claimed.run)

        assert released == await bench.run(claimed.run)
        assert (released.state, released.ready) == (RunState.QUEUED, True)
        assert (released.reason, released.detail, released.strikes) == (None, None, 0)
        second = await bench.claim_one(worker)
        assert second.fence > claimed.fence
        assert [row.key for row in second.records] == ["a"]

    @scenario
    async def test_a_released_poison_starts_with_no_strikes(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.die(worker, recoveries_max=1)

        await bench.store.release(claimed.run)

        run = await bench.run(claimed.run)
        assert (run.state, run.strikes, run.recoveries) == (RunState.QUEUED, 0, 1)
        assert (await bench.claim_one(await bench.worker(), suspects=0)).run == claimed.run

    @scenario
    async def test_a_run_that_is_sent_on_forgets_the_tries_that_were_cut_short(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        cut_short = attempt(claimed, "a", 2, error=None, ended_at=None)
        await bench.commit(worker, attempt(claimed, "a", 1, error=b"known"), cut_short, hold(claimed))

        await bench.store.release(claimed.run)

        second = await bench.claim_one(worker)
        assert [(row.key, row.attempt, row.error) for row in second.attempts] == [("a", 1, b"known")]

    @scenario
    async def test_releasing_what_is_not_held_changes_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        before = await bench.run(claimed.run)

        assert await bench.store.release(claimed.run) == before == await bench.run(claimed.run)
        assert await bench.store.release(10**15) is None
        await bench.commit(worker, end(claimed))

    @scenario
    async def test_a_failed_run_is_tried_again_from_its_super_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, again(claimed, 2, b"again", state=b"s2"))
        await bench.commit(
            worker,
            step(claimed, "good", super_step=2),
            attempt(claimed, "bad", super_step=2, error=b"boom"),
            step(claimed, "bad", failed=True, super_step=2, seq=2),
            step(claimed, "handled", failed=True, super_step=2, seq=3),
            fail(claimed, super_step=3),
        )

        retried = await bench.store.retry(claimed.run, ["bad", "good"])

        assert retried == await bench.run(claimed.run)
        assert (retried.state, retried.ready) == (RunState.QUEUED, True)
        assert (retried.strikes, retried.ended_at, retried.super_step) == (0, None, 2)
        assert await bench.store.outcomes([claimed.run]) == []
        thread = await bench.thread("t")
        assert (thread.head, thread.depth) == (claimed.run, 1)
        second = await bench.claim_one(worker)
        assert (second.super_step, second.arguments, second.state) == (2, b"again", b"s2")
        assert [row.key for row in second.records] == ["good", "handled"]
        assert second.fence > claimed.fence
        await bench.commit(worker, step(second, "bad", b"better"), end(second, b"result"))
        assert [outcome.payload for outcome in await bench.store.outcomes([claimed.run])] == [b"result"]

    @scenario
    async def test_a_retried_run_starts_with_no_strikes(self, bench: Bench) -> None:
        dead, claimed = await bench.begin()
        await bench.die(dead)
        worker = await bench.worker()
        await bench.commit(worker, fail(await bench.claim_one(worker)))
        assert (await bench.run(claimed.run)).strikes == 1

        await bench.store.retry(claimed.run, [])

        assert (await bench.run(claimed.run)).strikes == 0

    @scenario
    async def test_a_retried_run_goes_on_from_the_state_at_its_own_boundary(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second = await bench.start("t")
        await bench.commit(worker, again(first, 2, state=b"of the first"), fail(first, super_step=3))

        await bench.store.retry(first.run, [])

        retried = await bench.claim_one(worker)
        assert (retried.run, retried.super_step, retried.state) == (first.run, 2, b"of the first")
        await bench.commit(worker, end(retried, state=b"done"))
        following = await bench.claim_one(worker)
        assert (following.run, following.state) == (second, b"done")

    @scenario
    async def test_a_run_is_not_sent_on_from_a_state_that_later_runs_have_built_upon(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.start("t")
        broken = step(first, "a", failed=True, super_step=2)
        await bench.commit(worker, again(first, 2, state=b"of the first"), broken, fail(first, super_step=3))
        await bench.commit(worker, end(await bench.claim_one(worker), state=b"of the second"))
        before, log = await bench.run(first.run), await bench.log(first.run)

        assert await bench.store.retry(first.run, ["a"]) == before

        assert (await bench.run(first.run), await bench.log(first.run)) == (before, log)
        assert (await bench.thread("t")).depth == 0 and await bench.claim(worker) == []

    @scenario
    async def test_a_run_with_a_state_of_its_own_is_not_sent_on_behind_one_that_has_begun(self, bench: Bench) -> None:
        """What has begun goes before it, and may move the state on meanwhile."""
        worker, first = await bench.begin("t")
        await bench.start("t")
        await bench.commit(worker, again(first, 2, state=b"of the first"), fail(first, super_step=3))
        second = await bench.claim_one(worker)
        before = await bench.run(first.run)

        assert await bench.store.retry(first.run, []) == before == await bench.run(first.run)

        await bench.commit(worker, fail(second))
        retried = await bench.store.retry(first.run, [])
        assert retried is not None and retried.ready, "the other one has failed, and the state is still its own"

    @scenario
    async def test_a_run_without_a_state_of_its_own_is_sent_on_whatever_came_after_it(self, bench: Bench) -> None:
        """In its first super-step it takes the thread's state as it finds it; and there may be none to undo."""
        worker, first = await bench.begin("with state")
        await bench.start("with state")
        await bench.commit(worker, fail(first))
        await bench.commit(worker, end(await bench.claim_one(worker), state=b"of the second"))
        worker, stateless = await bench.begin("without")
        await bench.start("without")
        await bench.commit(worker, again(stateless, 2), fail(stateless, super_step=3))
        following = await bench.claim_one(worker)
        await bench.commit(worker, again(following, 2), end(following, super_step=3))

        await bench.store.retry(first.run, [])
        await bench.store.retry(stateless.run, [])

        claimed = {each.run: each.state for each in await bench.claim(worker)}
        assert claimed == {first.run: b"of the second", stateless.run: None}

    @scenario
    async def test_a_cancelled_run_can_be_sent_on(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, end(claimed, outcome=RunState.CANCELLED))

        await bench.store.retry(claimed.run, [])

        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_retrying_what_has_not_failed_changes_nothing(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        completed, held, running, _ = await bench.claim(worker)
        await bench.commit(worker, end(completed), hold(held), step(running, "a", failed=True))
        for claimed in (completed, held, running):
            before = await bench.run(claimed.run)
            assert await bench.store.retry(claimed.run, ["a"]) == before == await bench.run(claimed.run)
        assert await bench.steps(running.run) == {"a": b"result"}
        assert await bench.store.retry(10**15, []) is None

    @scenario
    async def test_a_retried_run_takes_its_old_place_before_runs_that_wait(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second, third = await bench.start("t"), await bench.start("t")
        await bench.commit(worker, fail(first))
        assert (await bench.thread("t")).head == second

        await bench.store.retry(first.run, [])

        assert (await bench.thread("t")).head == first.run and (await bench.thread("t")).depth == 3
        ready = [run.ready for run in await bench.store.get_runs([first.run, second, third])]
        assert ready == [True, False, False]
        done = []
        for _ in range(3):
            claimed = await bench.claim_one(worker)
            await bench.commit(worker, end(claimed))
            done.append(claimed.run)
        assert done == [first.run, second, third]

    @scenario
    async def test_a_retried_run_waits_for_the_run_that_executes_now(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.start("t")
        third = await bench.start("t")
        await bench.commit(worker, fail(first))
        second = await bench.claim_one(worker)

        retried = await bench.store.retry(first.run, [])

        assert retried is not None and not retried.ready
        assert (await bench.thread("t")).head == second.run
        assert await bench.claim(worker) == []
        await bench.commit(worker, end(second))
        assert [run.ready for run in await bench.store.get_runs([first.run, third])] == [True, False]
        assert (await bench.claim_one(worker)).run == first.run

    @scenario
    async def test_a_retried_run_waits_for_a_held_head(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.start("t")
        await bench.commit(worker, fail(first))
        second = await bench.claim_one(worker)
        await bench.commit(worker, hold(second))

        await bench.store.retry(first.run, [])

        assert (await bench.thread("t")).head == second.run
        assert await bench.claim(worker) == []
        await bench.store.release(second.run)
        assert (await bench.claim_one(worker)).run == second.run

    @scenario
    async def test_a_retried_run_waits_for_a_head_that_has_begun(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.start("t")
        await bench.commit(worker, fail(first))
        second = await bench.claim_one(worker)
        await bench.commit(worker, step(second, "a"), requeue(second))

        await bench.store.retry(first.run, [])

        assert (await bench.thread("t")).head == second.run
        taken = await bench.claim_one(worker)
        assert taken.run == second.run
        await bench.commit(worker, end(taken))
        assert (await bench.claim_one(worker)).run == first.run
