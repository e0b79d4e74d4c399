"""Scenarios: starts on a busy thread that ask what is to become of the runs before them."""

from __future__ import annotations

from perdure.core.changes import CommitOutcome
from perdure.core.records import Claimed, IfBusy, InterruptState, Outcome, RunState, WaitKind, run_id
from perdure.core.requests import OtherAgent, QuestionOpen, Started, ThreadHeld
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    answer,
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
    wait,
)

UNLESS_ASKED, INTERRUPT, ROLLBACK = IfBusy.UNLESS_ASKED, IfBusy.INTERRUPT, IfBusy.ROLLBACK


class Displacing(Harness):
    """What `unless_asked`, `interrupt` and `rollback` promise."""

    # -- unless asked ----------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_is_not_queued_behind_an_open_question_unawares(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = [await bench.ask_in(worker, claimed, key) for key in ("z", "a")]
        refused = QuestionOpen(claimed.run, asked[0])
        assert await bench.try_start("t", if_busy=UNLESS_ASKED) == refused
        await bench.commit(worker, park(claimed))
        assert await bench.try_start("t", if_busy=UNLESS_ASKED) == refused

        assert (await bench.thread("t")).depth == 1
        for if_busy in (IfBusy.ENQUEUE, IfBusy.JOIN):
            assert isinstance(await bench.try_start("t", if_busy=if_busy), Started)
        assert await bench.try_start("t", if_busy=IfBusy.REJECT) == ThreadHeld(claimed.run, 2)

    @scenario
    async def test_a_run_is_queued_where_no_question_is_open(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        answered, withdrawn = [await bench.ask_in(worker, claimed, key) for key in ("a", "w")]
        await bench.store.answer(answer(answered))
        assert await bench.try_start("t", if_busy=UNLESS_ASKED) == QuestionOpen(claimed.run, withdrawn)
        await bench.commit(worker, close(claimed, "w", None))

        queued = await bench.start("t", if_busy=UNLESS_ASKED)

        assert (await bench.thread("t")).depth == 2 and not (await bench.run(queued)).ready
        assert isinstance(await bench.try_start("idle", if_busy=UNLESS_ASKED), Started)
        with self.thread_queue_max(2):
            assert await bench.try_start("t", if_busy=UNLESS_ASKED) == ThreadHeld(claimed.run, 2)

    @scenario
    async def test_a_start_that_is_known_is_not_asked_about_questions(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", key="k")
        await bench.ask_in(worker, claimed)

        assert await bench.try_start("t", key="k", if_busy=UNLESS_ASKED) == Started(claimed.run, "t", False)

    @scenario
    async def test_a_start_that_is_refused_leaves_its_key_free(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.ask_in(worker, claimed)
        for if_busy in (UNLESS_ASKED, IfBusy.REJECT):
            assert not isinstance(await bench.try_start("t", key=if_busy.value, if_busy=if_busy), Started)

        for if_busy in (UNLESS_ASKED, IfBusy.REJECT):
            await bench.start(if_busy.value, key=if_busy.value, if_busy=if_busy)

    @scenario
    async def test_the_agent_of_a_thread_comes_before_its_questions(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.ask_in(worker, claimed)

        assert await bench.try_start("t", agent="other", if_busy=UNLESS_ASKED) == OtherAgent("agent")

    @scenario
    async def test_an_idle_thread_takes_any_start(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.ask_in(worker, claimed)
        await bench.commit(worker, end(claimed, waited=True))
        for if_busy in IfBusy:
            run = await bench.start("t", if_busy=if_busy)

            claimed = await bench.claim_one(worker)
            assert claimed.run == run
            await bench.commit(worker, end(claimed))

    # -- interrupt -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_that_interrupts_takes_the_place_of_what_is_unfinished(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second = await bench.start("t")
        async with hints(bench.store) as hinted:
            third = await bench.start("t", if_busy=INTERRUPT, displaced=b"displaced")

            await hinted(Hint.WAKE)

        why = f"{run_id(third)} was started in its place"
        rows = await bench.store.get_runs([first.run, second, third])
        assert [(row.state, row.cancel, row.rollback) for row in rows] == [
            (RunState.RUNNING, why, False),
            (RunState.CANCELLED, why, False),
            (RunState.QUEUED, None, False),
        ]
        assert await bench.store.outcomes([second]) == [Outcome(second, True, b"displaced")]
        thread = await bench.thread("t")
        assert (thread.head, thread.depth, rows[2].ready, rows[2].ordinal) == (first.run, 2, False, 3)
        assert await bench.store.cancellations(worker) == {first.run: why}
        outcome = await bench.store.commit(worker, [end(first)])
        assert outcome == CommitOutcome(cancelled=frozenset({first.run}))
        await bench.store.commit(worker, [cancelled(first)])
        assert (await bench.claim_one(worker)).run == third

    @scenario
    async def test_a_run_that_interrupts_what_nobody_has_begun_is_the_head(self, bench: Bench) -> None:
        runs = [await bench.start("t") for _ in range(3)]

        new = await bench.start("t", if_busy=INTERRUPT, displaced=b"displaced")

        assert [row.state for row in await bench.store.get_runs(runs)] == [RunState.CANCELLED] * 3
        thread, row = await bench.thread("t"), await bench.run(new)
        assert (thread.head, thread.depth, row.ready, row.ordinal) == (new, 1, True, 4)
        assert (await bench.claim_one(await bench.worker())).run == new

    @scenario
    async def test_a_run_that_interrupts_nothing_is_a_plain_start(self, bench: Bench) -> None:
        worker = await bench.worker()
        for if_busy in (INTERRUPT, ROLLBACK):
            run = await bench.start(if_busy.value, if_busy=if_busy)
            assert (await bench.claim_one(worker)).run == run

    @scenario
    async def test_a_full_thread_takes_a_run_that_interrupts_it(self, bench: Bench) -> None:
        await bench.begin("t")
        with self.thread_queue_max(3):
            for _ in range(2):
                await bench.start("t")

            new = await bench.start("t", if_busy=INTERRUPT)

        assert (await bench.thread("t")).depth == 2 and not (await bench.run(new)).ready

    @scenario
    async def test_a_parked_run_is_woken_to_be_interrupted_with_its_question(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed)
        await bench.commit(worker, park(claimed))

        new = await bench.start("t", if_busy=INTERRUPT)

        second = await bench.claim_one(worker)
        assert (second.run, second.cancel) == (claimed.run, f"{run_id(new)} was started in its place")
        await bench.store.commit(worker, [cancelled(second, waited=True)])
        assert (await bench.interrupt(asked)).state is InterruptState.WITHDRAWN
        assert (await bench.claim_one(worker)).run == new

    @scenario
    async def test_a_held_run_gives_way_to_the_one_that_interrupts_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, again(claimed, 2, state=b"kept"), hold(claimed))

        new = await bench.start("t", if_busy=INTERRUPT, displaced=b"displaced")

        assert await bench.state(claimed.run) is RunState.CANCELLED
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, True, b"displaced")]
        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"kept")

    @scenario
    async def test_an_interruption_goes_down_the_tree(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        child = await bench.start("c", agent="later", parent=parent(claimed, worker))
        apart = await bench.start("d", agent="later", parent=parent(claimed, worker, detached=True))

        new = await bench.start("t", if_busy=INTERRUPT, displaced=b"displaced")

        rows = await bench.store.get_runs([child, apart])
        why = f"{run_id(new)} was started in its place"
        assert [(row.state, row.cancel) for row in rows] == [(RunState.CANCELLED, why), (RunState.QUEUED, None)]

    @scenario
    async def test_a_start_that_is_known_interrupts_nothing(self, bench: Bench) -> None:
        ask = await bench.ask("t", key="k", if_busy=INTERRUPT)
        await bench.store.start([ask])
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)

        assert await bench.store.start([ask]) == [Started(ask.id, "t", True)]
        assert await bench.try_start("t", key="k", if_busy=ROLLBACK) == Started(ask.id, "t", False)
        assert not isinstance(await bench.try_start("t", agent="other", if_busy=INTERRUPT), Started)

        row = await bench.run(claimed.run)
        assert (row.state, row.cancel) == (RunState.RUNNING, None)

    @scenario
    async def test_the_state_that_an_interrupted_run_has_saved_is_kept(self, bench: Bench) -> None:
        worker, claimed = await _with_state(bench)
        new = await bench.start("t", if_busy=INTERRUPT)

        await bench.store.commit(worker, [cancelled(claimed, super_step=4)])

        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"its second")

    @scenario
    async def test_of_a_group_that_interrupts_one_thread_the_last_is_left(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = [await bench.ask("t", if_busy=INTERRUPT, displaced=b"displaced") for _ in range(3)]

        outcomes = await bench.store.start(asked)

        assert outcomes == [Started(ask.id, "t", True) for ask in asked]
        rows = await bench.store.get_runs([ask.id for ask in asked])
        assert [row.state for row in rows] == [RunState.CANCELLED, RunState.CANCELLED, RunState.QUEUED]
        whys = [f"{run_id(ask.id)} was started in its place" for ask in asked]
        assert [row.cancel for row in rows] == [whys[1], whys[2], None]
        assert await bench.store.cancellations(worker) == {claimed.run: whys[0]}
        assert (await bench.thread("t")).depth == 2

    # -- rollback --------------------------------------------------------------------------------------------

    @scenario
    async def test_a_rollback_takes_back_the_state_that_the_run_has_saved(self, bench: Bench) -> None:
        worker, claimed = await _with_state(bench)
        before = await bench.thread("t")
        new = await bench.start("t", if_busy=ROLLBACK)
        marked = await bench.run(claimed.run)
        assert (marked.state, marked.rollback) == (RunState.RUNNING, True)
        assert not (await bench.run(new)).rollback
        assert (await bench.thread("t")).snapshot_run == claimed.run == before.snapshot_run

        ending = cancelled(claimed, super_step=4)
        for _ in range(2):
            await bench.store.commit(worker, [ending])

        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"before")
        thread = await bench.thread("t")
        assert thread.snapshot_run != claimed.run and thread.snapshot_step == 2

    @scenario
    async def test_a_rollback_to_before_the_first_state_leaves_none(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, again(claimed, 2, state=b"its first"))
        new = await bench.start("t", if_busy=ROLLBACK)

        outcome = await bench.store.commit(worker, [again(claimed, 3, state=b"its second")])
        await bench.store.commit(worker, [cancelled(claimed, super_step=4)])

        assert outcome.cancelled == {claimed.run}
        thread = await bench.thread("t")
        assert (thread.snapshot_run, thread.snapshot_step) == (None, None)
        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, None)

    @scenario
    async def test_a_rollback_outlives_the_worker_of_the_run(self, bench: Bench) -> None:
        dead, _ = await _with_state(bench)
        new = await bench.start("t", if_busy=ROLLBACK)
        await bench.die(dead)
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)
        await bench.store.commit(worker, [again(claimed, 4, state=b"its third"), requeue(claimed)])
        claimed = await bench.claim_one(worker)

        await bench.store.commit(worker, [cancelled(claimed)])

        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"before")

    @scenario
    async def test_a_rollback_of_a_held_run_takes_its_state_back_at_once(self, bench: Bench) -> None:
        worker, claimed = await _with_state(bench)
        await bench.commit(worker, hold(claimed))

        new = await bench.start("t", if_busy=ROLLBACK)

        assert await bench.state(claimed.run) is RunState.CANCELLED
        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"before")

    @scenario
    async def test_each_run_is_taken_back_to_the_state_that_it_found(self, bench: Bench) -> None:
        worker, first = await _with_state(bench)
        await bench.commit(worker, end(first, super_step=4, state=b"of the first"))
        await bench.start("t")
        second = await bench.claim_one(worker)
        await bench.commit(worker, again(second, 2, state=b"of the second"))
        new = await bench.start("t", if_busy=ROLLBACK)

        await bench.store.commit(worker, [cancelled(second, super_step=3)])

        third = await bench.claim_one(worker)
        assert (third.run, third.state) == (new, b"of the first")

    @scenario
    async def test_a_rollback_of_a_run_without_states_moves_nothing(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, end(first, state=b"before"))
        await bench.start("t")
        claimed = await bench.claim_one(worker)
        await bench.start("t")
        new = await bench.start("t", if_busy=ROLLBACK)

        await bench.store.commit(worker, [cancelled(claimed)])

        second = await bench.claim_one(worker)
        assert (second.run, second.state) == (new, b"before")

    @scenario
    async def test_a_rollback_leaves_the_state_of_later_runs_alone(self, bench: Bench) -> None:
        """A run without a state of its own may be sent on after others have moved the thread's."""
        worker, first = await bench.begin("t")
        await bench.start("t")
        await bench.commit(worker, again(first, 2), fail(first, super_step=3))
        later = await bench.claim_one(worker)
        await bench.commit(worker, again(later, 2, state=b"of the later"), end(later, super_step=3))
        await bench.store.retry(first.run, [])
        claimed = await bench.claim_one(worker)
        assert claimed.run == first.run
        new = await bench.start("t", if_busy=ROLLBACK)

        await bench.store.commit(worker, [cancelled(claimed)])

        third = await bench.claim_one(worker)
        assert (third.run, third.state) == (new, b"of the later")

    @scenario
    async def test_a_run_that_was_rolled_back_is_not_sent_on_from_the_state_that_is_gone(self, bench: Bench) -> None:
        worker, claimed = await _with_state(bench)
        new = await bench.start("t", if_busy=ROLLBACK)
        await bench.store.commit(worker, [cancelled(claimed, super_step=4)])
        await bench.commit(worker, fail(await bench.claim_one(worker)))
        before = await bench.run(claimed.run)

        assert await bench.store.retry(claimed.run, []) == before == await bench.run(claimed.run)

        assert await bench.state(new) is RunState.FAILED

    @scenario
    async def test_whoever_waits_for_a_displaced_run_is_woken(self, bench: Bench) -> None:
        run = await bench.start("t", agent="later")
        worker, claimed = await bench.parked("waiter", wait(kind=WaitKind.RUN, target=run))

        await bench.start("t", agent="later", if_busy=INTERRUPT)

        assert (await bench.claim_one(worker)).run == claimed.run


async def _with_state(bench: Bench) -> tuple[int, Claimed]:
    """A thread whose state was `before`, and a run that has saved two states since."""
    worker, first = await bench.begin("t")
    await bench.commit(worker, end(first, state=b"before"))
    await bench.start("t")
    claimed = await bench.claim_one(worker)
    await bench.commit(worker, again(claimed, 2, state=b"its first"))
    await bench.commit(worker, again(claimed, 3, state=b"its second"))
    return worker, claimed
