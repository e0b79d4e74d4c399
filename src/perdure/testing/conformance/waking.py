"""Scenarios: whatever ends a wait, a parked run is woken by it once, and a running one is told."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from perdure.core.changes import Change, CommitOutcome, OpenWait
from perdure.core.records import Claimed, RunState, WaitKind
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    answer,
    close,
    end,
    hints,
    hold,
    park,
    scenario,
    send,
    wait,
)
from perdure.testing.conformance.wakers import MAILBOX_MAX, WAKERS, Deed


class Waking(Harness):
    """What every waker promises."""

    @scenario
    async def test_whatever_ends_a_wait_wakes_a_parked_run_once(self, bench: Bench) -> None:
        async for name, worker, claimed, opening, deed in self._each(bench):
            await bench.commit(worker, opening, park(claimed))
            parked, before = await bench.run(claimed.run), await bench.store.now_us()
            assert parked.state is RunState.WAITING, name

            await deed(bench.store)

            woken = await bench.run(claimed.run)
            assert woken == msgspec.structs.replace(parked, state=RunState.QUEUED, ready_at=woken.ready_at), name
            assert before <= woken.ready_at <= await bench.store.now_us(), name
            second = await bench.claim_one(worker, agents=(name,))
            assert [(row.key, row.ready, row.due) for row in second.waits] == [("w", True, False)], name
            assert await bench.claim(worker, agents=(name,)) == [], name
            never = wait(second, "never", WaitKind.MESSAGE, labels=("never",))
            await bench.commit(worker, close(second, "w"), never, park(second))
            assert await bench.state(claimed.run) is RunState.WAITING, name
            assert await bench.claim(worker, agents=(name,)) == [], name

    @scenario
    async def test_a_run_is_not_parked_when_what_it_waits_for_has_come(self, bench: Bench) -> None:
        async for name, worker, claimed, opening, deed in self._each(bench):
            await bench.commit(worker, opening)
            await deed(bench.store)
            before = await bench.run(claimed.run)

            for _ in range(2):
                outcome = await bench.store.commit(worker, [park(claimed)])
                assert outcome == CommitOutcome(awake=frozenset({claimed.run})), name

            assert await bench.run(claimed.run) == before and before.state is RunState.RUNNING, name
            assert (await bench.waits(claimed.run))["w"].ready, name

    @scenario
    async def test_a_run_is_not_parked_for_what_came_before_it_asked(self, bench: Bench) -> None:
        async for name, worker, claimed, opening, deed in self._each(bench):
            if opening.kind is WaitKind.ANSWER:  # there is no answer before the question
                continue
            await deed(bench.store)

            outcome = await bench.store.commit(worker, [opening, park(claimed)])

            assert outcome == CommitOutcome(awake=frozenset({claimed.run})), name
            assert await bench.state(claimed.run) is RunState.RUNNING, name

    @scenario
    async def test_whatever_ends_a_wait_of_a_running_run_is_hinted(self, bench: Bench) -> None:
        async for name, worker, claimed, opening, deed in self._each(bench):
            await bench.commit(worker, opening)
            before = await bench.run(claimed.run)
            async with hints(bench.store) as hinted:
                await deed(bench.store)

                try:
                    await hinted(Hint.WAKE)
                except TimeoutError as silence:
                    raise AssertionError(f"no hint of {name}") from silence
            assert await bench.run(claimed.run) == before, name
            await bench.commit(worker, close(claimed, "w"))

    @scenario
    async def test_an_idle_worker_is_hinted_when_a_run_is_woken(self, bench: Bench) -> None:
        await bench.store.set_idle(await bench.worker(), True)
        listener = await bench.clone()
        async for name, worker, claimed, opening, deed in self._each(bench):
            await bench.commit(worker, opening, park(claimed))
            async with hints(listener) as hinted:
                await deed(bench.store)

                try:
                    await hinted(Hint.WORK)
                except TimeoutError as silence:
                    raise AssertionError(f"no hint of {name}") from silence

    @scenario
    async def test_whatever_ends_a_wait_leaves_a_run_alone_that_is_queued_or_held(self, bench: Bench) -> None:
        async for name, worker, claimed, opening, deed in self._each(bench):
            await bench.commit(worker, opening)
            if name.startswith("a message"):
                await bench.commit(worker, hold(claimed))
            else:
                await bench.die(worker)
            before = await bench.run(claimed.run)

            await deed(bench.store)

            assert await bench.run(claimed.run) == before, name
            await bench.store.release(claimed.run)
            second = await bench.claim_one(await bench.worker(), agents=(name,))
            assert [(row.ready, row.due) for row in second.waits] == [(True, False)], name

    @scenario
    async def test_a_run_woken_by_one_thing_finds_the_other_that_came_meanwhile(self, bench: Bench) -> None:
        question = await bench.question()
        worker, claimed = await bench.parked(
            "t",
            wait(key="a", kind=WaitKind.ANSWER, interrupt=question),
            wait(key="m", kind=WaitKind.MESSAGE),
            wait(key="t", delay_s=600),
        )
        await bench.store.answer(answer(question.id))
        woken = await bench.run(claimed.run)
        await bench.send("t")
        assert await bench.run(claimed.run) == woken

        second = await bench.claim_one(worker)
        assert [(row.key, row.ready) for row in second.waits] == [("a", True), ("m", True), ("t", False)]
        outcome = await bench.store.commit(worker, [close(second, "a"), park(second)])
        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
        await bench.commit(worker, close(second, "m", take=1, record={"seq": 2}), park(second))
        assert await bench.state(claimed.run) is RunState.WAITING

    @scenario
    async def test_all_who_wait_for_a_run_are_woken_by_its_end(self, bench: Bench) -> None:
        worker, other = await bench.begin("other", agent="other")
        target = wait(kind=WaitKind.RUN, target=other.run)
        waiting = [(await bench.parked(f"t{n}", target, agent=f"a{n}"))[1] for n in range(4)]
        elsewhere = await bench.start("elsewhere", agent="other")
        _, bystander = await bench.parked("t9", wait(kind=WaitKind.RUN, target=elsewhere))

        await bench.commit(worker, end(other))

        runs = await bench.store.get_runs([each.run for each in waiting])
        assert [run.state for run in runs] == [RunState.QUEUED] * 4
        assert await bench.state(bystander.run) is RunState.WAITING

    @scenario
    async def test_all_who_wait_for_room_are_woken_by_it(self, bench: Bench) -> None:
        worker, other = await bench.begin("other", agent="other")
        with self.mailbox_max(2):
            for _ in range(2):
                await bench.send("other")
            room = wait(kind=WaitKind.ROOM, target=other.thread)
            waiting = [(await bench.parked(f"t{n}", room, agent=f"a{n}"))[1] for n in range(3)]

            await bench.commit(worker, close(other, "m", take=1))

            runs = await bench.store.get_runs([each.run for each in waiting])
            assert [run.state for run in runs] == [RunState.QUEUED] * 3

    @scenario
    async def test_who_finds_the_room_taken_waits_for_the_next(self, bench: Bench) -> None:
        worker, other = await bench.begin("other", agent="other")
        with self.mailbox_max(1):
            await bench.send("other")
            room = wait(kind=WaitKind.ROOM, target=other.thread)
            senders = [await bench.parked(f"t{n}", room, agent=f"a{n}") for n in range(2)]
            for round_ in (1, 2):
                await bench.commit(worker, close(other, f"m{round_}", take=round_, record={"seq": round_}))

                for n in range(round_ - 1, 2):
                    claimed = await bench.claim_one(senders[n][0], agents=(f"a{n}",))
                    sending: list[Change] = [send(claimed, "s", await bench.message("other"))]
                    full = bool((await bench.store.commit(senders[n][0], sending)).bounced)
                    assert full == (n >= round_)
                    await bench.commit(senders[n][0], park(claimed) if full else end(claimed, waited=True))

        assert [row.seq for row in await bench.mailbox("other")] == [3]

    @scenario
    async def test_a_run_that_was_sent_on_wakes_who_waits_for_it_again_when_it_ends(self, bench: Bench) -> None:
        worker, other = await bench.begin("other", agent="other")
        waiter, claimed = await bench.parked("t", wait(kind=WaitKind.RUN, target=other.run))
        await bench.commit(worker, hold(other))
        second = await bench.claim_one(waiter)
        assert second.waits[0].ready

        await bench.store.release(other.run)
        await bench.commit(waiter, park(second))
        assert await bench.state(claimed.run) is RunState.WAITING
        await bench.commit(worker, end(await bench.claim_one(worker, agents=("other",))))

        assert (await bench.claim_one(waiter)).run == claimed.run

    @scenario
    async def test_one_group_of_messages_wakes_whom_it_reaches_and_nobody_else(self, bench: Bench) -> None:
        worker = await bench.worker()
        runs = await bench.start_many(20)
        claims = sorted(await bench.claim(worker), key=lambda each: each.run)
        labels = [("even",) if n % 2 == 0 else ("odd",) for n in range(20)]
        opened = [wait(each, kind=WaitKind.MESSAGE, labels=labels[n]) for n, each in enumerate(claims)]
        await bench.commit(worker, *opened, *(park(each) for each in claims))

        await bench.store.send([await bench.message(each.thread_id, "even") for each in claims])

        woken = [run.id for run in await bench.store.get_runs(runs) if run.state is RunState.QUEUED]
        assert woken == runs[::2]

    @scenario
    async def test_one_batch_of_ends_wakes_whom_it_concerns_and_nobody_else(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(30)
        claims = sorted(await bench.claim(worker), key=lambda each: each.run)
        targets, waiters = claims[:15], claims[15:]
        opened = [
            wait(waiter, kind=WaitKind.RUN, target=target.run) for target, waiter in zip(targets, waiters, strict=True)
        ]
        await bench.commit(worker, *opened, *(park(each) for each in waiters))

        await bench.commit(worker, *(end(each) for each in targets[:8]), *(hold(each) for each in targets[8:10]))

        states = [run.state for run in await bench.store.get_runs([each.run for each in waiters])]
        assert states == [RunState.QUEUED] * 10 + [RunState.WAITING] * 5

    # -- in one batch ----------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_parked_in_the_batch_that_ends_its_wait_is_not_lost(self, bench: Bench) -> None:
        """Either it is not parked, or it is woken: which one is the store's affair."""
        worker = await bench.worker()
        for n in range(6):
            await bench.start(f"waiter-{n}")
            await bench.start(f"other-{n}")
        claims = {each.thread_id: each for each in await bench.claim(worker)}
        pairs = [(claims[f"waiter-{n}"], claims[f"other-{n}"]) for n in range(6)]
        with self.mailbox_max(1):
            await bench.send("other-4")
            await bench.send("other-5")
            batch: list[Change] = []
            for n, (waiter, other) in enumerate(pairs):
                opening, deed = await _in_batch(bench, n // 2, waiter, other)
                parking: list[Change] = [opening, park(waiter)]
                batch += [deed, *parking] if n % 2 else [*parking, deed]

            outcome = await bench.store.commit(worker, batch)

        assert outcome.alive and not outcome.lost and not outcome.refused and not outcome.bounced
        for waiter, _ in pairs:
            state = await bench.state(waiter.run)
            assert state is (RunState.RUNNING if waiter.run in outcome.awake else RunState.QUEUED), waiter.thread_id

    @scenario
    async def test_a_run_that_sends_to_itself_and_waits_for_it_is_not_lost(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        message = await bench.message("t")

        batch: list[Change] = [send(claimed, "s", message), wait(claimed, kind=WaitKind.MESSAGE), park(claimed)]
        outcome = await bench.store.commit(worker, batch)

        state = await bench.state(claimed.run)
        assert state is (RunState.RUNNING if outcome.awake else RunState.QUEUED)

    async def _each(self, bench: Bench) -> AsyncIterator[tuple[str, int, Claimed, OpenWait, Deed]]:
        """For each waker a claimed run of an agent of its name, a wait to open and the deed that ends it."""
        with self.mailbox_max(MAILBOX_MAX):
            for name, waker in WAKERS.items():
                worker, claimed = await bench.begin(name, agent=name)
                yield name, worker, claimed, *await waker(bench, claimed)


async def _in_batch(bench: Bench, kind: int, waiter: Claimed, other: Claimed) -> tuple[OpenWait, Change]:
    if kind == 0:
        return wait(waiter, kind=WaitKind.RUN, target=other.run), end(other)
    if kind == 1:
        return wait(waiter, kind=WaitKind.MESSAGE), send(other, "s", await bench.message(waiter.thread_id))
    return wait(waiter, kind=WaitKind.ROOM, target=other.thread), close(other, "m", take=1)
