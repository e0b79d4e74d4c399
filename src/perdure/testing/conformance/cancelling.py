"""Scenarios: cancellations, which are requested once and told to whoever has to do with the run."""

from __future__ import annotations

from perdure.core.changes import Change, CommitOutcome
from perdure.core.records import InterruptState, Kind, Outcome, RunState, WaitKind
from perdure.core.requests import Answered, NotAnswered, RunFilter
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    answer,
    attempt,
    cancelled,
    close,
    end,
    fail,
    hints,
    hold,
    parent,
    park,
    requeue,
    scenario,
    step,
    wait,
)


class Cancelling(Harness):
    """What `cancel` promises, and what of a run is written after it."""

    # -- at once ---------------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_that_nobody_has_begun_is_cancelled_at_once(self, bench: Bench) -> None:
        run = await bench.start("t")

        row = await bench.store.cancel(run, "enough 🦉", b"\0why")

        assert row == await bench.run(run)
        assert (row.state, row.cancel, row.worker, row.ready) == (RunState.CANCELLED, "enough 🦉", None, False)
        assert row.reason == "enough 🦉" and row.ended_at is not None and row.ended_at >= row.created_at
        assert await bench.store.outcomes([run]) == [Outcome(run, True, b"\0why")]
        ended = (await bench.log(run))[-1]
        assert (ended.super_step, ended.key, ended.kind) == (2, "", Kind.ENDED)
        assert (ended.failed, ended.payload, ended.state) == (True, b"\0why", None)
        thread = await bench.thread("t")
        assert (thread.head, thread.depth) == (None, 0)
        assert await bench.claim(await bench.worker()) == []

    @scenario
    async def test_a_cancelled_head_gives_its_turn_to_the_next(self, bench: Bench) -> None:
        first, second, third = [await bench.start("t") for _ in range(3)]

        await bench.cancel(second)
        assert ((await bench.thread("t")).head, (await bench.thread("t")).depth) == (first, 2)
        await bench.cancel(first)

        thread = await bench.thread("t")
        assert (thread.head, thread.depth) == (third, 1)
        assert (await bench.claim_one(await bench.worker())).run == third

    @scenario
    async def test_a_held_run_is_cancelled_at_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.commit(worker, again(claimed, 2, state=b"state"), hold(claimed))
        second = await bench.start("t")

        row = await bench.cancel(claimed.run, payload=b"why")

        assert (row.state, row.cancel, row.reason) == (RunState.CANCELLED, "enough", "enough")
        assert row.super_step == 2
        assert [(each.super_step, each.kind) for each in await bench.log(claimed.run)][-1] == (3, Kind.ENDED)
        assert await bench.waits(claimed.run) == {}
        assert (await bench.interrupt(asked)).state is InterruptState.WITHDRAWN
        assert isinstance(await bench.store.answer(answer(asked)), NotAnswered)
        thread = await bench.thread("t")
        assert (thread.head, thread.snapshot_run, thread.snapshot_step) == (second, claimed.run, 2)
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_a_run_that_was_held_before_it_could_end_is_cancelled_when_asked_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        await bench.store.commit(worker, [wait(claimed, delay_s=60), hold(claimed)])
        second = await bench.start("t")

        row = await bench.cancel(claimed.run, payload=b"why")

        assert row == await bench.run(claimed.run) and row.cancel is not None
        assert row.state is RunState.CANCELLED and await bench.waits(claimed.run) == {}
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, True, b"why")]
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_a_cancellation_at_once_is_hinted(self, bench: Bench) -> None:
        run = await bench.start("t")
        await bench.start("t")
        async with hints(bench.store) as hinted:
            await bench.store.watch([run])
            await bench.store.set_idle(await bench.worker(), True)

            await bench.cancel(run)

            await hinted(Hint.ENDED)
            await hinted(Hint.WORK)

    # -- requested -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_running_run_is_told_of_its_cancellation(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        before = await bench.run(claimed.run)
        assert await bench.store.cancellations(worker) == {}
        async with hints(bench.store) as hinted:
            row = await bench.cancel(claimed.run, "enough 🦉")

            await hinted(Hint.WAKE)

        assert row == await bench.run(claimed.run)
        assert (row.state, row.worker, row.fence, row.cancel) == (RunState.RUNNING, worker, before.fence, "enough 🦉")
        assert await bench.store.cancellations(worker) == {claimed.run: "enough 🦉"}
        assert await bench.store.cancellations(await bench.worker()) == {}

    @scenario
    async def test_only_the_runs_in_a_workers_hands_are_its_to_cancel(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        ended, requeued, parked, kept = await bench.claim(worker)
        for each in (ended, requeued, parked, kept):
            await bench.cancel(each.run, each.thread_id)
        opening = wait(parked, delay_s=60)
        changes: list[Change] = [cancelled(ended), requeue(requeued), opening, park(parked, cancelled=True)]

        await bench.store.commit(worker, changes)

        assert await bench.store.cancellations(worker) == {kept.run: kept.thread_id}

    @scenario
    async def test_a_parked_run_is_woken_by_its_cancellation(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE))

        row = await bench.cancel(claimed.run)

        assert (row.state, row.cancel, row.fence) == (RunState.QUEUED, "enough", claimed.fence)
        second = await bench.claim_one(worker)
        assert (second.cancel, [each.ready for each in second.waits]) == ("enough", [False])
        outcome = await bench.store.commit(worker, [cancelled(second, waited=True)])
        assert not outcome.lost and await bench.state(claimed.run) is RunState.CANCELLED
        assert await bench.waits(claimed.run) == {}

    @scenario
    async def test_a_begun_run_that_is_queued_is_claimable_at_once_to_be_cancelled(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, requeue(claimed, delay_s=600))
        assert await bench.claim(worker) == []

        row = await bench.cancel(claimed.run)

        assert (row.state, row.cancel) == (RunState.QUEUED, "enough")
        second = await bench.claim_one(worker)
        assert (second.run, second.cancel) == (claimed.run, "enough")

    @scenario
    async def test_a_cancellation_outlives_the_worker_that_was_told(self, bench: Bench) -> None:
        dead, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        await bench.die(dead)
        worker = await bench.worker()

        second = await bench.claim_one(worker)

        assert second.cancel == "enough"
        assert await bench.store.cancellations(worker) == {claimed.run: "enough"}

    @scenario
    async def test_a_cancellation_is_requested_once(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        running, queued, parked, other = await bench.claim(worker)
        await bench.commit(worker, requeue(queued), wait(parked, delay_s=60), park(parked), end(other))
        unbegun = await bench.start("unbegun", agent="later")
        for run in (running.run, queued.run, parked.run, unbegun):
            first = await bench.store.cancel(run, "first", b"first")

            assert await bench.store.cancel(run, "second", b"second") == first == await bench.run(run)

        assert first is not None and first.cancel == "first"
        assert [each.payload for each in await bench.store.outcomes([unbegun])] == [b"first"]

    @scenario
    async def test_what_has_ended_is_not_cancelled(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        claims = await bench.claim(worker)
        ending = (end, fail, cancelled)
        await bench.commit(worker, *(each(claimed, b"result") for each, claimed in zip(ending, claims, strict=True)))

        for claimed in claims:
            before = await bench.run(claimed.run)
            assert await bench.store.cancel(claimed.run, "enough", b"why") == before == await bench.run(claimed.run)
            assert before.cancel is None

        runs = [claimed.run for claimed in claims]
        assert {each.payload for each in await bench.store.outcomes(runs)} == {b"result"}
        assert await bench.store.cancel(10**15, "enough", b"why") is None

    # -- after it --------------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_to_be_cancelled_can_end_only_so(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        told = CommitOutcome(cancelled=frozenset({claimed.run}))

        assert await bench.store.commit(worker, [step(claimed, "a"), end(claimed, state=b"state")]) == told
        assert await bench.store.commit(worker, [end(claimed, state=b"state")]) == told
        assert await bench.store.commit(worker, [fail(claimed)]) == told

        run, thread = await bench.run(claimed.run), await bench.thread("t")
        assert (run.state, run.worker, run.ended_at) == (RunState.RUNNING, worker, None)
        assert (thread.head, thread.snapshot_run) == (claimed.run, None)
        assert await bench.steps(claimed.run) == {"a": b"result"} and len(await bench.log(claimed.run)) == 2

        for _ in range(2):
            assert await bench.store.commit(worker, [cancelled(claimed, b"why", waited=True)]) == told
        row = await bench.run(claimed.run)
        assert (row.state, row.cancel, row.reason) == (RunState.CANCELLED, "enough", "enough")
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, True, b"why")]

    @scenario
    async def test_every_commit_tells_of_the_cancelled_among_its_runs(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        one, two, three = await bench.claim(worker)
        await bench.cancel(one.run)
        await bench.cancel(two.run)

        changes: list[Change] = [step(one, "a"), attempt(two, "a"), end(three)]
        assert await bench.store.commit(worker, changes) == CommitOutcome(cancelled=frozenset({one.run, two.run}))
        outcome = await bench.store.commit(worker, [step(one, "b", seq=2)])
        assert outcome == CommitOutcome(cancelled=frozenset({one.run}))

        assert set(await bench.steps(one.run)) == {"a", "b"} and len(await bench.store.attempts(two.run)) == 1
        assert await bench.state(three.run) is RunState.COMPLETED

    @scenario
    async def test_other_changes_of_a_run_to_be_cancelled_are_written(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        told = CommitOutcome(cancelled=frozenset({claimed.run}))

        batch: list[Change] = [again(claimed, 2, state=b"state"), wait(claimed, delay_s=60, super_step=2)]
        assert await bench.store.commit(worker, batch) == told
        assert await bench.store.commit(worker, [close(claimed, "w", super_step=2)]) == told
        assert await bench.store.commit(worker, [requeue(claimed)]) == told
        assert await bench.store.commit(worker, [requeue(claimed)]) == told, "sent again"

        second = await bench.claim_one(worker)
        assert (second.super_step, second.cancel, second.waits) == (2, "enough", ())
        assert await bench.store.commit(worker, [hold(second)]) == told
        assert await bench.state(claimed.run) is RunState.HELD

    @scenario
    async def test_a_run_to_be_cancelled_is_given_back_without_a_delay(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)

        await bench.store.commit(worker, [requeue(claimed, delay_s=600)])

        assert (await bench.claim_one(worker)).cancel == "enough"

    @scenario
    async def test_a_lost_run_is_not_told_of_its_cancellation(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.cancel(first.run)
        await bench.store.commit(worker, [step(first, "a"), requeue(first)])
        await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [step(first, "b", seq=2)])

        assert outcome == CommitOutcome(lost=frozenset({first.run}))

    @scenario
    async def test_a_run_that_does_not_know_of_its_cancellation_is_not_parked(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, wait(claimed, delay_s=60))
        await bench.cancel(claimed.run)
        told = CommitOutcome(cancelled=frozenset({claimed.run}))

        assert await bench.store.commit(worker, [park(claimed)]) == told
        assert await bench.state(claimed.run) is RunState.RUNNING

        assert await bench.store.commit(worker, [park(claimed, cancelled=True)]) == told
        assert await bench.state(claimed.run) is RunState.WAITING
        assert await bench.cancel(claimed.run) == await bench.run(claimed.run)
        await bench.advance_s(61)
        assert (await bench.claim_one(worker)).cancel == "enough"

    @scenario
    async def test_a_run_that_waits_while_it_cleans_up_is_woken_like_any_other(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        question = await bench.question()
        opening = wait(claimed, "q", WaitKind.ANSWER, interrupt=question)
        await bench.store.commit(worker, [opening, park(claimed, cancelled=True)])
        assert await bench.state(claimed.run) is RunState.WAITING

        assert isinstance(await bench.store.answer(answer(question.id)), Answered)

        second = await bench.claim_one(worker)
        assert (second.cancel, second.waits[0].ready) == ("enough", True)

    @scenario
    async def test_a_cancellation_after_the_end_was_written_changes_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        batch: list[Change] = [step(claimed, "a"), end(claimed, b"result")]
        await bench.commit(worker, *batch)

        row = await bench.cancel(claimed.run)
        await bench.commit(worker, *batch)

        assert (row.state, row.cancel) == (RunState.COMPLETED, None)
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, False, b"result")]

    @scenario
    async def test_a_cancelled_run_that_is_sent_on_may_complete(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", deadline_us=60_000_000)
        await bench.cancel(claimed.run)
        await bench.store.commit(worker, [cancelled(claimed)])
        unbegun = await bench.start("u", agent="later")
        await bench.cancel(unbegun)

        for run, agent in ((claimed.run, "agent"), (unbegun, "later")):
            retried = await bench.store.retry(run, [])
            assert retried is not None and (retried.state, retried.cancel) == (RunState.QUEUED, None)
            second = await bench.claim_one(worker, agents=(agent,))
            assert (second.run, second.cancel, second.deadline_at) == (run, None, None)
            await bench.commit(worker, end(second))
            assert await bench.state(run) is RunState.COMPLETED

    # -- down the tree ---------------------------------------------------------------------------------------

    @scenario
    async def test_a_cancellation_goes_down_the_tree(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")

        queued = await bench.start("queued", agent="later", parent=parent(root, worker))
        await bench.start("running", agent="a", parent=parent(root, worker))
        running = await bench.claim_one(worker, agents=("a",))
        await bench.start("parked", agent="b", parent=parent(running, worker))
        parked = await bench.claim_one(worker, agents=("b",))
        below = await bench.start("below", agent="later", parent=parent(parked, worker))
        await bench.commit(worker, wait(parked, kind=WaitKind.MESSAGE), park(parked))
        await bench.start("held", agent="c", parent=parent(running, worker))
        held = await bench.claim_one(worker, agents=("c",))
        await bench.commit(worker, hold(held))

        await bench.store.cancel(root.run, "enough", b"why")

        rows = {each.thread_id: each for each in await bench.store.list_runs(RunFilter())}
        assert {name: row.state for name, row in rows.items()} == {
            "root": RunState.RUNNING,
            "queued": RunState.CANCELLED,
            "running": RunState.RUNNING,
            "parked": RunState.QUEUED,
            "below": RunState.CANCELLED,
            "held": RunState.CANCELLED,
        }
        assert {row.cancel for row in rows.values()} == {"enough"}
        ended = {each.run: each.payload for each in await bench.store.outcomes([queued, below, held.run])}
        assert ended == {queued: b"why", below: b"why", held.run: b"why"}
        assert await bench.store.cancellations(worker) == {root.run: "enough", running.run: "enough"}

    @scenario
    async def test_a_cancellation_passes_by_what_is_detached_and_what_is_below_it(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        await bench.start("detached", agent="a", parent=parent(root, worker, detached=True))
        detached = await bench.claim_one(worker, agents=("a",))
        below = await bench.start("below", agent="later", parent=parent(detached, worker))
        stranger = await bench.start("stranger", agent="later")

        await bench.cancel(root.run)

        rows = await bench.store.get_runs([detached.run, below, stranger])
        assert [(row.state, row.cancel) for row in rows] == [
            (RunState.RUNNING, None),
            (RunState.QUEUED, None),
            (RunState.QUEUED, None),
        ]
        await bench.cancel(detached.run)
        assert await bench.state(below) is RunState.CANCELLED

    @scenario
    async def test_a_cancellation_reaches_what_is_below_a_run_that_has_ended(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        await bench.start("ended", agent="a", parent=parent(root, worker))
        ended = await bench.claim_one(worker, agents=("a",))
        below = await bench.start("below", agent="later", parent=parent(ended, worker))
        await bench.commit(worker, end(ended))
        assert (await bench.cancel(ended.run)).state is RunState.COMPLETED
        assert await bench.state(below) is RunState.QUEUED, "nothing goes down from what has ended"

        await bench.cancel(root.run)

        assert await bench.state(below) is RunState.CANCELLED
        assert (await bench.run(ended.run)).cancel is None

    @scenario
    async def test_threads_whose_runs_are_cancelled_together_go_on_with_what_is_left(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        own = parent(root, worker)
        left: list[int | None] = []
        for n in range(5):
            parents = [own if n & bit else None for bit in (1, 2, 4)]
            runs = [await bench.start(f"c{n}", agent="later", parent=each) for each in parents]
            left.append(next((run for run, each in zip(runs, parents, strict=True) if each is None), None))

        await bench.cancel(root.run)

        threads = [await bench.thread(f"c{n}") for n in range(5)]
        assert [thread.head for thread in threads] == left
        assert [thread.depth for thread in threads] == [3, 2, 2, 1, 2]
        assert sorted(each.run for each in await bench.claim(worker, agents=("later",))) == sorted(filter(None, left))

    @scenario
    async def test_who_waits_for_a_run_below_a_cancelled_one_is_woken(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        child = await bench.start("child", agent="later", parent=parent(root, worker))
        _, waiter = await bench.parked("t", wait(kind=WaitKind.RUN, target=child), agent="waiter")

        await bench.cancel(root.run)

        second = await bench.claim_one(worker, agents=("waiter",))
        assert (second.run, second.cancel, second.waits[0].ready) == (waiter.run, None, True)

    @scenario
    async def test_a_cancellation_goes_down_and_not_up(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        child = await bench.start("child", agent="later", parent=parent(root, worker))
        await bench.commit(worker, wait(root, kind=WaitKind.RUN, target=child), park(root))

        await bench.cancel(child)

        assert (await bench.run(root.run)).cancel is None
        second = await bench.claim_one(worker)
        assert (second.run, second.cancel, second.waits[0].ready) == (root.run, None, True)
