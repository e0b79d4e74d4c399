"""Scenarios: what ends a wait meets the parking, the answer meets another, the cancellation meets the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import IfBusy, InterruptState, RunState, WaitKind
from perdure.core.requests import Answered, Bounce, NotAnswered, ParentGone, Sent, Started
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    answer,
    cancelled,
    close,
    end,
    in_threads,
    parent,
    park,
    scenario,
    send,
    wait,
)
from perdure.testing.conformance.wakers import MAILBOX_MAX, WAKERS

ROUNDS = 12
"""How often a race is run; the two sides start in turn."""

A = TypeVar("A")
B = TypeVar("B")


class Meeting(Harness):
    """What holds when two verbs of waiting meet: one wins, both are told the truth, nobody is lost."""

    @scenario
    async def test_a_parking_that_meets_what_it_waits_for_loses_nobody(self, bench: Bench) -> None:
        other = await bench.clone()
        with self.mailbox_max(MAILBOX_MAX):
            for name, waker in WAKERS.items():
                for turn in range(ROUNDS // 3):
                    thread_id = f"{name} {turn}"
                    worker, claimed = await bench.begin(thread_id, agent=thread_id)
                    opening, deed = await waker(bench, claimed)
                    first: list[Change] = [] if opening.kind is not WaitKind.ANSWER and turn % 3 else [opening]
                    await bench.commit(worker, *first)
                    parking = bench.store.commit(worker, [opening, park(claimed)])

                    outcome, _ = await _together(parking, deed(other), turn)

                    state = await bench.state(claimed.run)
                    assert state is (RunState.RUNNING if outcome.awake else RunState.QUEUED), thread_id
                    taken = await bench.claim(worker, agents=(thread_id,))
                    assert len(taken) == (0 if outcome.awake else 1), thread_id
                    assert [row.ready for row in await bench.store.waits([claimed.run])] == [True], thread_id
                    await bench.commit(worker, close(taken[0] if taken else claimed))

    @scenario
    async def test_a_parking_that_meets_a_cancellation_loses_nobody(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS):
            worker, claimed = await bench.begin(f"t{turn}", agent=f"a{turn}")
            parking = bench.store.commit(worker, [wait(claimed, kind=WaitKind.MESSAGE), park(claimed)])

            outcome, row = await _together(parking, other.cancel(claimed.run, "enough", b"why"), turn)

            assert row is not None and row.cancel == "enough"
            state = await bench.state(claimed.run)
            assert state is (RunState.RUNNING if outcome.cancelled else RunState.QUEUED)

    @scenario
    async def test_of_answers_at_once_one_wins_and_the_others_are_told_which(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        worker, claimed = await bench.begin("t")
        for turn in range(ROUNDS):
            asked = await bench.ask_in(worker, claimed, f"q{turn}")
            answers = [answer(asked, b"%d" % n) for n in range(len(stores))]

            outcomes = await asyncio.gather(*(s.answer(each) for s, each in zip(stores, answers, strict=True)))

            (won,) = [each for each in outcomes if isinstance(each, Answered)]
            assert won.created and won.interrupt == await bench.interrupt(asked)
            assert [each for each in outcomes if each is not won] == [NotAnswered(won.interrupt)] * 3
            winner = [n for n, each in enumerate(outcomes) if each is won]
            assert won.interrupt.answer == b"%d" % winner[0]

    @scenario
    async def test_the_same_answer_at_once_is_given_once_and_accepted_by_all(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        worker, claimed = await bench.begin("t")
        for turn in range(ROUNDS // 2):
            asked = await bench.ask_in(worker, claimed, f"q{turn}")

            outcomes = await asyncio.gather(*(store.answer(answer(asked)) for store in stores))

            told = [each.created for each in outcomes if isinstance(each, Answered)]
            assert sorted(told) == [False, False, False, True]

    @scenario
    async def test_of_an_answer_and_an_expiry_one_wins_and_the_other_is_told(self, bench: Bench) -> None:
        other = await bench.clone()
        worker, claimed = await bench.begin("t")
        for turn in range(ROUNDS):
            key = f"q{turn}"
            asked = await bench.ask_in(worker, claimed, key)
            expiring = bench.store.commit(worker, [close(claimed, key, expired=True, record={"seq": turn})])

            outcome, reply = await _together(expiring, other.answer(answer(asked)), turn)

            found = await bench.interrupt(asked)
            if isinstance(reply, Answered):
                assert outcome == CommitOutcome(bounced={(claimed.run, 1, key): Bounce.ANSWERED})
                assert found.state is InterruptState.ANSWERED and key in await bench.waits(claimed.run)
            else:
                assert outcome == CommitOutcome() and reply == NotAnswered(found)
                assert found.state is InterruptState.EXPIRED and key in await bench.steps(claimed.run)

    @scenario
    async def test_an_answer_that_meets_the_end_of_its_run_is_given_or_refused(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS):
            worker, claimed = await bench.begin(f"t{turn}")
            asked = await bench.ask_in(worker, claimed)
            ending = bench.store.commit(worker, [end(claimed, waited=True)])

            outcome, reply = await _together(ending, other.answer(answer(asked)), turn)

            found = await bench.interrupt(asked)
            assert outcome == CommitOutcome() and await bench.state(claimed.run) is RunState.COMPLETED
            assert reply == (Answered(found, True) if found.state is InterruptState.ANSWERED else NotAnswered(found))
            assert found.state in {InterruptState.ANSWERED, InterruptState.WITHDRAWN}

    @scenario
    async def test_of_a_cancellation_and_an_end_one_wins_and_both_are_told(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS * 2):
            worker, claimed = await bench.begin(f"t{turn}")
            ending = bench.store.commit(worker, [end(claimed, b"result")])

            outcome, row = await _together(ending, other.cancel(claimed.run, "enough", b"why"), turn)

            assert row is not None and row == await bench.run(claimed.run)
            if outcome.cancelled:
                assert (row.state, row.cancel) == (RunState.RUNNING, "enough")
                await bench.store.commit(worker, [cancelled(claimed)])
            else:
                assert (row.state, row.cancel) == (RunState.COMPLETED, None)

    @scenario
    async def test_of_a_cancellation_and_the_first_claim_one_comes_first(self, bench: Bench) -> None:
        other = await bench.clone()
        worker = await bench.worker()
        for turn in range(ROUNDS):
            run = await bench.start(f"t{turn}", agent=f"a{turn}")
            claiming = bench.claim(worker, agents=(f"a{turn}",))

            claims, row = await _together(claiming, other.cancel(run, "enough", b"why"), turn)

            found = await bench.run(run)
            assert row is not None and found.cancel == "enough"
            if claims:
                assert found.state is RunState.RUNNING
                assert run in await bench.store.cancellations(worker)
            else:
                assert found.state is RunState.CANCELLED

    @scenario
    async def test_a_child_started_while_its_parent_is_cancelled_does_not_get_away(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS):
            worker, claimed = await bench.begin(f"t{turn}")
            ask = await bench.ask(f"c{turn}", agent="later", parent=parent(claimed, worker))

            outcomes, _ = await _together(bench.store.start([ask]), other.cancel(claimed.run, "enough", b"why"), turn)

            if outcomes == [Started(ask.id, f"c{turn}", True)]:
                assert await bench.state(ask.id) is RunState.CANCELLED
            else:
                assert outcomes == [ParentGone(claimed.run, True)]
                assert await bench.store.get_runs([ask.id]) == []

    @scenario
    async def test_a_child_started_while_its_parent_is_taken_over_is_there_or_is_not(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS // 2):
            worker, claimed = await bench.begin(f"t{turn}", agent=f"a{turn}")
            ask = await bench.ask(f"c{turn}", agent="later", parent=parent(claimed, worker))
            taking = other.take_over([worker], recoveries_max=RECOVERIES_MAX)

            outcomes, _ = await _together(bench.store.start([ask]), taking, turn)

            there = [run.parent for run in await bench.store.get_runs([ask.id])]
            started = outcomes == [Started(ask.id, f"c{turn}", True)]
            assert there == [claimed.run] if started else outcomes == [ParentGone(claimed.run, False)] and there == []

    @scenario
    async def test_messages_sent_at_once_keep_each_senders_order(self, bench: Bench) -> None:
        worker, _ = await bench.begin("t")
        await bench.start_many(3)
        senders = {each.thread_id: each for each in await bench.claim(worker)}

        async def produce(own: Bench, number: int) -> None:
            for turn in range(8):
                message = await own.message("t", sender=str(number), payload=b"%d" % turn)
                if number < 3:
                    claimed = senders[f"thread-{number}"]
                    await own.commit(worker, send(claimed, f"s{turn}", message, seq=turn))
                else:
                    assert isinstance((await own.store.send([message]))[0], Sent)

        await in_threads(5, bench, produce)

        mailbox = await bench.mailbox("t")
        assert [row.seq for row in mailbox] == list(range(1, 41))
        for number in range(5):
            assert [row.payload for row in mailbox if row.sender == str(number)] == [b"%d" % n for n in range(8)]

    @scenario
    async def test_messages_sent_at_once_do_not_overfill_a_mailbox(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        with self.mailbox_max(3):
            for turn in range(ROUNDS // 2):
                await bench.start(f"t{turn}")
                groups = [[await bench.message(f"t{turn}") for _ in range(2)] for _ in stores]

                outcomes = await asyncio.gather(*(s.send(each) for s, each in zip(stores, groups, strict=True)))

                sent = [each.seq for group in outcomes for each in group if isinstance(each, Sent)]
                assert sorted(sent) == [1, 2, 3] == [row.seq for row in await bench.mailbox(f"t{turn}")]

    @scenario
    async def test_a_message_sent_twice_at_once_arrives_once(self, bench: Bench) -> None:
        stores = await bench.clones(3)
        await bench.start("t")
        for turn in range(ROUNDS // 2):
            message = await bench.message("t")

            outcomes = await asyncio.gather(*(store.send([message]) for store in stores))

            assert outcomes == [[Sent((await bench.thread("t")).id, turn + 1)]] * 3

    @scenario
    async def test_runs_that_send_to_each_other_in_opposite_orders_do_not_deadlock(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(8)
        claims = {each.thread_id: each for each in await bench.claim(worker)}

        async def exchange(own: Bench, number: int) -> None:
            mine = [claims[f"thread-{n}"] for n in (number, number + 4)]
            for turn in range(4):
                names = [f"thread-{n}" for n in range(8)]
                names = names if number % 2 else names[::-1]
                changes: list[Change] = [
                    send(each, f"s{turn} {name}", await own.message(name)) for each in mine for name in names
                ]
                question = await own.question()
                changes += [wait(mine[0], f"q{turn}", WaitKind.ANSWER, interrupt=question)]
                changes += [wait(mine[1], f"w{turn}", WaitKind.RUN, target=claims[names[0]].run)]
                await own.commit(worker, *changes)
                outside, answering = [await own.message(name) for name in reversed(names)], answer(question.id)
                await asyncio.gather(own.store.send(outside), own.store.answer(answering))

        await in_threads(4, bench, exchange)

        for name, claimed in claims.items():
            assert len(await bench.mailbox(name)) == 8 * 4 + 4 * 4
            assert len(await bench.waits(claimed.run)) == 4

    @scenario
    async def test_ends_of_runs_that_wait_for_each_other_do_not_deadlock(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(24)
        claims = await bench.claim(worker)
        opened = [wait(each, kind=WaitKind.RUN, target=claims[n - 1].run) for n, each in enumerate(claims)]
        await bench.commit(worker, *opened)
        parts = [claims[0::4], claims[1::4][::-1], claims[2::4], claims[3::4][::-1]]

        async def work(own: Bench, number: int) -> None:
            if number % 2:
                await own.commit(worker, *(end(each, waited=True) for each in parts[number]))
                return
            outcome = await own.store.commit(worker, [park(each) for each in parts[number]])
            assert outcome == CommitOutcome(awake=outcome.awake)

        await in_threads(4, bench, work)

        for each in (*parts[0], *parts[2]):
            assert await bench.state(each.run) is not RunState.WAITING, "its predecessor has ended"

    @scenario
    async def test_trees_cancelled_at_once_from_both_ends_do_not_deadlock(self, bench: Bench) -> None:
        worker, root = await bench.begin("root")
        chain = [root]
        for n in range(6):
            await bench.start(f"c{n}", agent=f"a{n}", parent=parent(chain[-1], worker))
            chain.append(await bench.claim_one(worker, agents=(f"a{n}",)))

        async def work(own: Bench, number: int) -> None:
            for claimed in chain if number % 2 else chain[::-1]:
                await own.cancel(claimed.run)

        await in_threads(4, bench, work)

        assert set(await bench.store.cancellations(worker)) == {each.run for each in chain}

    @scenario
    async def test_runs_that_interrupt_one_thread_at_once_leave_the_last(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        for turn in range(ROUNDS // 2):
            worker, claimed = await bench.begin(f"t{turn}")
            asked = [await bench.ask(f"t{turn}", if_busy=IfBusy.INTERRUPT, displaced=b"displaced") for _ in stores]

            await asyncio.gather(*(store.start([ask]) for store, ask in zip(stores, asked, strict=True)))

            await bench.store.commit(worker, [cancelled(claimed)])
            runs = sorted(await bench.store.get_runs([ask.id for ask in asked]), key=lambda run: run.ordinal)
            assert [run.state for run in runs] == [RunState.CANCELLED] * 3 + [RunState.QUEUED]
            last = await bench.claim_one(worker)
            assert last.run == runs[-1].id
            await bench.commit(worker, end(last))

    @scenario
    async def test_an_answer_that_meets_a_claim_is_seen_by_it_or_after_it(self, bench: Bench) -> None:
        other = await bench.clone()
        for turn in range(ROUNDS):
            dead, first = await bench.begin(f"t{turn}", agent=f"a{turn}")
            asked = await bench.ask_in(dead, first)
            await bench.die(dead)
            worker = await bench.worker()
            claiming = bench.claim(worker, agents=(f"a{turn}",))

            taken, reply = await _together(claiming, other.answer(answer(asked)), turn)

            while not taken:  # it looked while the answer held the row
                taken = await bench.claim(worker, agents=(f"a{turn}",))
            (claimed,) = taken
            assert isinstance(reply, Answered) and [row.key for row in claimed.waits] == ["q"]
            outcome = await bench.store.commit(worker, [park(claimed)])
            assert outcome == CommitOutcome(awake=frozenset({claimed.run}))

    @scenario
    async def test_a_due_run_that_is_woken_while_it_is_claimed_is_claimed_once(self, bench: Bench) -> None:
        other, third = await bench.clones(2)
        for turn in range(ROUNDS // 2):
            agent = f"a{turn}"
            worker, claimed = await bench.parked(f"t{turn}", wait(kind=WaitKind.MESSAGE, delay_s=60), agent=agent)
            await bench.advance_s(61)
            workers = [await bench.worker(), await bench.worker()]
            message = await bench.message(f"t{turn}")

            one, two, _ = await asyncio.gather(
                bench.claim(workers[0], other, agents=(agent,)),
                bench.claim(workers[1], third, agents=(agent,)),
                bench.store.send([message]),
            )

            taken = one + two + await bench.claim(worker, agents=(agent,))
            assert [each.run for each in taken] == [claimed.run]
            assert len(await bench.mailbox(f"t{turn}")) == 1


async def _together(one: Awaitable[A], other: Awaitable[B], turn: int) -> tuple[A, B]:
    """Both at once, the one first in every second turn; what they answered."""
    if turn % 2:
        return await asyncio.gather(one, other)
    second, first = await asyncio.gather(other, one)
    return first, second
