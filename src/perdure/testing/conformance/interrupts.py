"""Scenarios: questions, their answers, and how they close without one."""

from __future__ import annotations

from perdure.core.changes import CommitOutcome
from perdure.core.records import Interrupt, InterruptState, RunState, WaitKind
from perdure.core.requests import Answered, Bounce, InterruptFilter, NotAnswered
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    answer,
    blob,
    cancelled,
    close,
    end,
    fail,
    hold,
    park,
    scenario,
    step,
    wait,
)

OPEN, ANSWERED = InterruptState.OPEN, InterruptState.ANSWERED
EXPIRED, WITHDRAWN = InterruptState.EXPIRED, InterruptState.WITHDRAWN


class Asking(Harness):
    """What an `ANSWER` wait and `answer` promise."""

    @scenario
    async def test_a_question_is_there_as_it_was_asked(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", tenant="acme")
        question = await bench.question(
            "🦉", payload=b"\0?", schema=b"{}", digest="d1", on_timeout="default", assignee="ann"
        )
        large = blob(b"large" * 10_000)
        before = await bench.store.now_us()

        asking = wait(claimed, "q", WaitKind.ANSWER, interrupt=question, delay_s=60, blobs=(large,))
        await bench.commit(worker, asking, park(claimed))

        found, row = await bench.interrupt(question.id), (await bench.waits(claimed.run))["q"]
        assert before <= found.created_at <= await bench.store.now_us()
        assert found == Interrupt(
            id=question.id,
            run=claimed.run,
            thread=claimed.thread,
            thread_id="t",
            agent="agent",
            super_step=1,
            key="q",
            name="🦉",
            state=OPEN,
            payload=b"\0?",
            schema=b"{}",
            digest="d1",
            on_timeout="default",
            assignee="ann",
            tenant="acme",
            created_at=found.created_at,
            expires_at=row.due_at,
            answer=None,
            answered_by=None,
            answered_at=None,
        )
        assert (row.kind, row.target, row.ready, row.due) == (WaitKind.ANSWER, question.id, False, False)
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}

    @scenario
    async def test_an_answer_ends_the_wait(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.commit(worker, park(claimed))
        large = blob(b"large" * 10_000)
        before = await bench.store.now_us()

        outcome = await bench.store.answer(answer(asked, b"\0yes", "ann", blobs=(large,)))

        found = await bench.interrupt(asked)
        assert outcome == Answered(found, True)
        assert (found.state, found.answer, found.answered_by) == (ANSWERED, b"\0yes", "ann")
        assert found.answered_at is not None and before <= found.answered_at <= await bench.store.now_us()
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}
        row = (await bench.waits(claimed.run))["q"]
        assert (row.ready, row.due) == (True, False)
        assert await bench.state(claimed.run) is RunState.QUEUED

    @scenario
    async def test_the_first_answer_wins(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed)
        await bench.store.answer(answer(asked, b"yes", "ann"))
        won = await bench.interrupt(asked)

        assert await bench.store.answer(answer(asked, b"no", "bob")) == NotAnswered(won)
        assert await bench.store.answer(answer(asked, b"yes", "bob")) == Answered(won, False)

        assert await bench.interrupt(asked) == won

    @scenario
    async def test_the_same_answer_is_known_after_it_was_received_too(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.store.answer(answer(asked))
        await bench.commit(worker, close(claimed, "q"), end(claimed, waited=True))
        won = await bench.interrupt(asked)

        assert won.state is ANSWERED
        assert await bench.store.answer(answer(asked)) == Answered(won, False)
        assert await bench.store.answer(answer(asked, b"no")) == NotAnswered(won)

    @scenario
    async def test_what_nobody_asked_takes_no_answer(self, bench: Bench) -> None:
        assert await bench.store.answer(answer(10**15)) is None
        assert await bench.store.get_interrupts([10**15]) == [] == await bench.store.get_interrupts([])

    @scenario
    async def test_several_questions_of_a_run_are_answered_in_any_order(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first = await bench.ask_in(worker, claimed, "q1")
        second = await bench.ask_in(worker, claimed, "q2")
        await bench.commit(worker, park(claimed))

        await bench.store.answer(answer(second, b"2"))
        again_ = await bench.claim_one(worker)
        ready = {row.key: row.ready for row in again_.waits}
        await bench.commit(worker, close(again_, "q2", b"2"), park(again_))
        await bench.store.answer(answer(first, b"1"))

        third = await bench.claim_one(worker)
        assert ready == {"q1": False, "q2": True}
        assert [(row.key, row.ready) for row in third.waits] == [("q1", True)]
        assert [row.key for row in third.records] == ["q2"]

    @scenario
    async def test_an_answer_reaches_a_run_that_is_queued_or_held_when_its_turn_comes(self, bench: Bench) -> None:
        dead, queued = await bench.begin("queued", agent="queued")
        worker, held = await bench.begin("held", agent="held")
        asked = [await bench.ask_in(dead, queued), await bench.ask_in(worker, held)]
        await bench.die(dead)
        await bench.commit(worker, hold(held))
        before = await bench.store.get_runs([queued.run, held.run])

        for each in asked:
            assert isinstance(await bench.store.answer(answer(each)), Answered)

        assert await bench.store.get_runs([queued.run, held.run]) == before
        await bench.store.release(held.run)
        claims = await bench.claim(worker, agents=("queued", "held"))
        assert [[row.ready for row in each.waits] for each in claims] == [[True], [True]]

    @scenario
    async def test_a_question_in_a_later_super_step_is_another_one(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first = await bench.ask_in(worker, claimed, "q")
        await bench.store.answer(answer(first))
        await bench.commit(worker, close(claimed, "q"), again(claimed, 2, waited=True))

        second = await bench.ask_in(worker, claimed, "q", super_step=2)

        assert second != first and (await bench.waits(claimed.run))["q"].target == second
        assert [(await bench.interrupt(each)).state for each in (first, second)] == [ANSWERED, OPEN]
        assert (await bench.interrupt(second)).super_step == 2

    @scenario
    async def test_one_batch_asks_for_many_runs(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        claims = await bench.claim(worker)
        places = [(each, key) for key in ("q1", "q2") for each in claims]
        questions = [await bench.question(f"{each.run}/{key}") for each, key in places]
        opened = [wait(at[0], at[1], WaitKind.ANSWER, interrupt=q) for at, q in zip(places, questions, strict=True)]

        await bench.commit(worker, *opened, *(park(each) for each in claims))

        assert await bench.inbox() == [each.id for each in questions]
        rows = await bench.store.get_interrupts([each.id for each in questions])
        assert [(row.run, row.key, row.name) for row in rows] == [
            (each.run, key, f"{each.run}/{key}") for each, key in places
        ]
        waits = await bench.store.waits([each.run for each in claims])
        assert {(row.run, row.key): row.target for row in waits} == {(row.run, row.key): row.id for row in rows}

    # -- asked again -----------------------------------------------------------------------------------------

    @scenario
    async def test_a_question_asked_again_keeps_its_number(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first = await bench.ask_in(worker, claimed, "q", delay_s=60)
        before = await bench.interrupt(first)

        second = await bench.ask_in(worker, claimed, "q", delay_s=90)

        assert (await bench.waits(claimed.run))["q"].target == first
        assert await bench.interrupt(first) == before
        assert await bench.store.get_interrupts([second]) == []

    @scenario
    async def test_a_question_that_nobody_waits_for_is_withdrawn_until_it_is_asked_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.commit(worker, close(claimed, "q", None))
        withdrawn = await bench.interrupt(asked)
        assert withdrawn.state is WITHDRAWN and await bench.waits(claimed.run) == {}
        assert await bench.store.answer(answer(asked)) == NotAnswered(withdrawn)

        await bench.ask_in(worker, claimed, "q", delay_s=60)

        row, found = (await bench.waits(claimed.run))["q"], await bench.interrupt(asked)
        assert (row.target, row.ready) == (asked, False)
        assert (found.state, found.expires_at, found.created_at) == (OPEN, row.due_at, withdrawn.created_at)
        await bench.commit(worker, park(claimed))
        assert isinstance(await bench.store.answer(answer(asked)), Answered)
        assert (await bench.claim_one(worker)).run == claimed.run

    @scenario
    async def test_a_question_that_was_answered_meanwhile_is_answered_when_it_is_asked_again(
        self, bench: Bench
    ) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.store.answer(answer(asked))
        await bench.commit(worker, close(claimed, "q", None))
        assert (await bench.interrupt(asked)).state is ANSWERED

        await bench.ask_in(worker, claimed, "q", delay_s=60)

        row = (await bench.waits(claimed.run))["q"]
        assert (row.target, row.ready, row.due) == (asked, True, False)
        outcome = await bench.store.commit(worker, [park(claimed)])
        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
        assert (await bench.interrupt(asked)).answer == b"yes"

    @scenario
    async def test_open_questions_are_withdrawn_when_their_super_step_or_their_run_ends(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(5)
        runs = await bench.claim(worker)
        asked = [await bench.ask_in(worker, each, "q") for each in runs]
        answered = await bench.ask_in(worker, runs[0], "answered")
        await bench.store.answer(answer(answered))

        await bench.commit(
            worker,
            again(runs[0], 2, waited=True),
            end(runs[1], waited=True),
            fail(runs[2], waited=True),
            cancelled(runs[3], waited=True),
        )

        states = [row.state for row in await bench.store.get_interrupts([*asked, answered])]
        assert states == [WITHDRAWN] * 4 + [OPEN, ANSWERED]
        assert await bench.inbox() == [asked[4]]
        assert isinstance(await bench.store.answer(answer(asked[1])), NotAnswered)

    @scenario
    async def test_a_run_that_is_tried_again_asks_its_question_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q")
        await bench.commit(worker, fail(claimed, waited=True))
        await bench.store.retry(claimed.run, [])
        second = await bench.claim_one(worker)

        await bench.ask_in(worker, second, "q")
        await bench.commit(worker, park(second))

        assert await bench.inbox(run=claimed.run) == [asked]
        assert isinstance(await bench.store.answer(answer(asked)), Answered)
        assert (await bench.claim_one(worker)).waits[0].target == asked

    @scenario
    async def test_a_question_that_has_expired_is_open_again_when_its_record_is_dropped_and_it_is_asked_again(
        self, bench: Bench
    ) -> None:
        worker, claimed = await bench.begin("t")
        opening = wait(claimed, "q", WaitKind.ANSWER, interrupt=await bench.question(), delay_s=60)
        await bench.commit(worker, opening)
        asked = (await bench.waits(claimed.run))["q"].target
        assert asked is not None
        await bench.advance_s(61)
        await bench.commit(worker, close(claimed, "q", b"expired", expired=True, record={"failed": True}))
        await bench.commit(worker, opening)  # again, late
        expired = await bench.interrupt(asked)
        assert expired.state is EXPIRED and await bench.waits(claimed.run) == {}
        await bench.commit(worker, fail(claimed, waited=True))
        await bench.store.retry(claimed.run, ["q"])
        second = await bench.claim_one(worker)

        await bench.ask_in(worker, second, "q", delay_s=60)

        row, found = (await bench.waits(claimed.run))["q"], await bench.interrupt(asked)
        assert (row.target, row.ready, row.due) == (asked, False, False)
        assert (found.state, found.expires_at, found.created_at) == (OPEN, row.due_at, expired.created_at)
        assert row.due_at is not None and expired.expires_at is not None and row.due_at > expired.expires_at
        await bench.commit(worker, park(second))
        assert isinstance(await bench.store.answer(answer(asked)), Answered)
        assert (await bench.claim_one(worker)).waits[0].target == asked

    # -- expiry ----------------------------------------------------------------------------------------------

    @scenario
    async def test_an_answer_after_the_time_is_refused_for_good(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q", delay_s=60)
        await bench.commit(worker, park(claimed))
        await bench.advance_s(59)
        assert (await bench.interrupt(asked)).state is OPEN
        await bench.advance_s(2)

        outcome = await bench.store.answer(answer(asked))

        found = await bench.interrupt(asked)
        assert outcome == NotAnswered(found)
        assert (found.state, found.answer, found.answered_at) == (EXPIRED, None, None)
        second = await bench.claim_one(worker)
        assert [(row.ready, row.due) for row in second.waits] == [(True, True)]
        await bench.commit(worker, close(second, "q", b"expired", expired=True))
        assert (await bench.interrupt(asked)).state is EXPIRED

    @scenario
    async def test_a_question_expires_with_the_record_that_says_so(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q", delay_s=60)
        await bench.advance_s(61)

        await bench.commit(worker, close(claimed, "q", b"expired", expired=True), end(claimed, waited=True))

        found = await bench.interrupt(asked)
        assert found.state is EXPIRED
        assert await bench.store.answer(answer(asked)) == NotAnswered(found)
        assert await bench.steps(claimed.run) == {"q": b"expired"} and await bench.waits(claimed.run) == {}

    @scenario
    async def test_a_question_that_was_answered_after_all_does_not_expire(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = await bench.ask_in(worker, claimed, "q", delay_s=60)
        await bench.store.answer(answer(asked))
        await bench.advance_s(61)
        expiry = close(claimed, "q", b"expired", expired=True)

        for _ in range(2):
            outcome = await bench.store.commit(worker, [expiry, step(claimed, "other", seq=2)])
            assert outcome == CommitOutcome(bounced={(claimed.run, 1, "q"): Bounce.ANSWERED})

        assert await bench.steps(claimed.run) == {"other": b"result"}
        assert (await bench.waits(claimed.run))["q"].ready
        assert (await bench.interrupt(asked)).state is ANSWERED
        await bench.commit(worker, close(claimed, "q", b"yes"), expiry)
        assert await bench.steps(claimed.run) == {"q": b"yes", "other": b"result"}

    # -- the inbox -------------------------------------------------------------------------------------------

    @scenario
    async def test_the_inbox_shows_what_is_open_over_all_runs(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start("one", tenant="acme")
        await bench.start("two", agent="b")
        one, two = await bench.claim_one(worker), await bench.claim_one(worker, agents=("b",))
        ann, bob = await bench.question(assignee="ann"), await bench.question(assignee="bob")
        await bench.commit(worker, wait(one, "q1", WaitKind.ANSWER, interrupt=ann))
        await bench.commit(worker, wait(two, "q1", WaitKind.ANSWER, interrupt=bob))
        third, fourth = await bench.ask_in(worker, one, "q2"), await bench.ask_in(worker, two, "q2")
        await bench.store.answer(answer(fourth))

        assert await bench.inbox() == [ann.id, bob.id, third]
        assert await bench.inbox(state=None) == [ann.id, bob.id, third, fourth]
        assert await bench.inbox(state=ANSWERED) == [fourth]
        assert await bench.inbox(run=one.run) == [ann.id, third] == await bench.inbox(thread_id="one")
        assert await bench.inbox(agent="b") == [bob.id] and await bench.inbox(agent="b", state=None) == [bob.id, fourth]
        assert await bench.inbox(assignee="bob") == [bob.id] and await bench.inbox(tenant="acme") == [ann.id, third]
        assert await bench.inbox(agent="agent", assignee="bob") == []
        assert await bench.inbox(thread_id="nobody") == [] == await bench.inbox(run=10**15)

    @scenario
    async def test_the_inbox_comes_in_pages(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = [await bench.ask_in(worker, claimed, f"q{n}") for n in range(5)]
        await bench.store.answer(answer(asked[1]))

        assert await bench.inbox(limit=2) == [asked[0], asked[2]]
        assert await bench.inbox(limit=2, after=asked[2]) == asked[3:]
        assert await bench.inbox(after=asked[4]) == [] == await bench.inbox(limit=0) == await bench.inbox(limit=-1)
        assert [row.id for row in await bench.store.get_interrupts([asked[3], asked[1], asked[3]])] == [
            asked[1],
            asked[3],
        ]

    @scenario
    async def test_a_question_whose_time_has_come_is_not_open(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        due, later = [await bench.ask_in(worker, claimed, f"q{s}", delay_s=s) for s in (60, 600)]
        timeless = await bench.ask_in(worker, claimed, "q")

        await bench.advance_s(61)

        assert await bench.inbox() == [later, timeless] and await bench.inbox(state=EXPIRED) == [due]
        assert await bench.inbox(state=None) == [due, later, timeless]

    @scenario
    async def test_a_listed_question_whose_time_has_come_says_that_it_has_expired(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.ask_in(worker, claimed, "q", delay_s=60)
        await bench.advance_s(61)

        for state in (None, EXPIRED):
            (listed,) = await bench.store.interrupts(InterruptFilter(state=state))
            assert listed.state is EXPIRED
