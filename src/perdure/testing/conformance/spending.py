"""Scenarios: what is asked about a budget, how much can be spent, and many that spend at once."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.core.budgets import Amounts, BudgetFilter, Spent
from perdure.core.changes import OpenWait
from perdure.core.limits import AMOUNT_MAX, RESERVED_MAX
from perdure.core.records import Claimed, InterruptState, RunState, WaitKind
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    answer,
    close,
    end,
    fail,
    hints,
    hold,
    in_threads,
    park,
    requeue,
    scenario,
    step,
    wait,
)
from perdure.testing.conformance.parcels import budget, reserve, spent, tokens

OPEN, WITHDRAWN = InterruptState.OPEN, InterruptState.WITHDRAWN


async def asking(
    bench: Bench, claimed: Claimed | None, about: tuple[int, int] | None, key: str = "q", **fields: Any
) -> OpenWait:
    """A question about a budget, as it was set so often."""
    return wait(claimed, key, WaitKind.ANSWER, interrupt=await bench.question(budget=about), **fields)


def number_of(opening: OpenWait) -> int:
    assert opening.interrupt is not None
    return opening.interrupt.id


class Spending(Harness):
    """What `NewInterrupt.budget` promises, and that no budget is exceeded."""

    # -- questions -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_question_about_a_budget_is_withdrawn_when_that_is_set(self, bench: Bench) -> None:
        row = await budget(bench, "agent:agent")
        opening = await asking(bench, None, (row.id, row.rev), delay_s=600)
        _, claimed = await bench.parked("t", opening)
        assert (await bench.interrupt(number_of(opening))).state is OPEN
        await bench.store.set_idle(await bench.worker(), True)

        async with hints(await bench.clone()) as hint:
            await budget(bench, "agent:agent", tokens=5)
            await hint(Hint.WORK)

        assert (await bench.interrupt(number_of(opening))).state is WITHDRAWN
        found = await bench.run(claimed.run)
        assert found.state is RunState.QUEUED and found.ready_at <= await bench.store.now_us()
        woken = await bench.claim_one(await bench.worker())
        assert [(each.key, each.ready, each.due) for each in woken.waits] == [("q", True, False)]

    @scenario
    async def test_a_run_in_a_workers_hands_is_told_that_its_budget_was_set(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        row = await budget(bench)
        opening = await asking(bench, claimed, (row.id, row.rev))
        await bench.commit(worker, opening)

        async with hints(await bench.clone()) as hint:
            await budget(bench)
            await hint(Hint.WAKE)

        assert (await bench.interrupt(number_of(opening))).state is WITHDRAWN
        assert await bench.state(claimed.run) is RunState.RUNNING
        assert (await bench.waits(claimed.run))["q"].ready
        assert (await bench.store.commit(worker, [park(claimed)])).awake == {claimed.run}

    @scenario
    async def test_a_question_about_a_budget_that_was_set_meanwhile_is_withdrawn_from_the_start(
        self, bench: Bench
    ) -> None:
        worker, claimed = await bench.begin("t")
        before = await budget(bench)
        await budget(bench)
        stale, gone = await asking(bench, claimed, (before.id, 1), "s"), await asking(bench, claimed, (10**15, 1), "g")

        outcome = await bench.store.commit(worker, [stale, gone, park(claimed)])

        assert outcome.awake == {claimed.run}
        rows = [await bench.interrupt(number_of(each)) for each in (stale, gone)]
        assert [(row.state, row.key, row.answer) for row in rows] == [(WITHDRAWN, "s", None), (WITHDRAWN, "g", None)]
        assert {key: each.ready for key, each in (await bench.waits(claimed.run)).items()} == {"s": True, "g": True}
        assert await bench.inbox() == []

    @scenario
    async def test_a_question_that_is_sent_again_after_its_budget_was_set_stays_withdrawn(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        row = await budget(bench)
        opening = await asking(bench, claimed, (row.id, row.rev))
        await bench.commit(worker, opening)
        await budget(bench)

        await bench.commit(worker, opening)

        assert (await bench.interrupt(number_of(opening))).state is WITHDRAWN
        assert (await bench.waits(claimed.run))["q"].ready

    @scenario
    async def test_setting_a_budget_leaves_other_questions_alone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        row, other = await budget(bench, "agent:a"), await budget(bench, "agent:b")
        openings = [
            await asking(bench, claimed, about, key)
            for key, about in (("none", None), ("other", (other.id, 1)), ("mine", (row.id, 1)), ("said", (row.id, 1)))
        ]
        await bench.commit(worker, *openings)
        await bench.store.answer(answer(number_of(openings[3])))

        await budget(bench, "agent:a")

        states = [(await bench.interrupt(number_of(each))).state for each in openings]
        assert states == [OPEN, OPEN, WITHDRAWN, InterruptState.ANSWERED]

    @scenario
    async def test_a_question_may_be_asked_again_about_the_budget_as_it_is_now(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        row, other = await budget(bench, "agent:a"), await budget(bench, "agent:b")
        first = await asking(bench, claimed, (row.id, 1))
        await bench.commit(worker, first)
        await budget(bench, "agent:a")
        await bench.commit(worker, close(claimed, "q", None), await asking(bench, claimed, (row.id, 1)))
        assert (await bench.interrupt(number_of(first))).state is WITHDRAWN

        await bench.commit(worker, close(claimed, "q", None), await asking(bench, claimed, (other.id, 1)))

        assert (await bench.interrupt(number_of(first))).state is OPEN
        await budget(bench, "agent:a")
        assert (await bench.interrupt(number_of(first))).state is OPEN
        await budget(bench, "agent:b")
        assert (await bench.interrupt(number_of(first))).state is WITHDRAWN

    @scenario
    async def test_a_question_about_a_budget_is_withdrawn_by_the_end_of_its_run_in_the_same_batch(
        self, bench: Bench
    ) -> None:
        worker = await bench.worker()
        row = await budget(bench)
        await bench.start_many(3)
        ended, gone_on, closed = await bench.claim(worker)
        openings = [await asking(bench, each, (row.id, row.rev)) for each in (ended, gone_on, closed)]

        await bench.commit(
            worker,
            *openings,
            end(ended, waited=True),
            again(gone_on, 2, waited=True),
            close(closed, "q", None),
        )

        assert [(await bench.interrupt(number_of(each))).state for each in openings] == [WITHDRAWN] * 3
        for each in (ended, gone_on, closed):
            assert await bench.waits(each.run) == {}
        assert await bench.inbox() == []

    @scenario
    async def test_all_who_ask_about_a_budget_are_woken(self, bench: Bench) -> None:
        worker = await bench.worker()
        row = await budget(bench)
        await bench.start_many(12)
        claims = await bench.claim(worker)
        openings = [await asking(bench, each, (row.id, 1)) for each in claims]
        await bench.commit(worker, *openings, *(park(each) for each in claims[::2]))
        assert len(await bench.inbox()) == 12

        await budget(bench)

        assert await bench.inbox() == []
        assert {await bench.state(each.run) for each in claims[::2]} == {RunState.QUEUED}
        assert {await bench.state(each.run) for each in claims[1::2]} == {RunState.RUNNING}

    @scenario
    async def test_a_question_about_a_budget_takes_an_answer_like_any_other(self, bench: Bench) -> None:
        row = await budget(bench)
        opening = await asking(bench, None, (row.id, row.rev))
        _, claimed = await bench.parked("t", opening)

        await bench.store.answer(answer(number_of(opening)))
        await budget(bench)

        found = await bench.interrupt(number_of(opening))
        assert (found.state, found.answer) == (InterruptState.ANSWERED, b"yes")
        assert await bench.state(claimed.run) is RunState.QUEUED

    # -- at once ---------------------------------------------------------------------------------------------

    @scenario
    async def test_whoever_asks_while_a_budget_is_set_is_not_left_waiting(self, bench: Bench) -> None:
        for turn in range(8):
            name = f"agent:{turn}"
            row = await budget(bench, name)
            worker, claimed = await bench.begin(f"t{turn}", agent=f"agent {turn}")
            opening, other = await asking(bench, claimed, (row.id, 1)), await bench.clone()

            async def set_it(own: Bench, name: str = name) -> None:
                await budget(own, name)

            outcome, _ = await asyncio.gather(
                bench.store.commit(worker, [opening, park(claimed)]), set_it(Bench(self, other))
            )

            assert (await bench.interrupt(number_of(opening))).state is WITHDRAWN
            state = await bench.state(claimed.run)
            assert state is (RunState.RUNNING if outcome.awake else RunState.QUEUED)

    @scenario
    async def test_all_units_are_counted(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, usd=10**18)
        wanted, used = Amounts(10**17, 2**52, 1, 10**15), Amounts(10**16, 2**51, 2, 10**14)

        await bench.commit(worker, reserve(claimed, "a", shared, amounts=wanted))
        for key in ("b", "c"):
            await bench.commit(worker, step(claimed, key, spent=Spent((shared.id,), used)))

        (row,) = await bench.store.get_budgets([shared.id])
        assert row.reserved == wanted and row.spent == Amounts(2 * 10**16, 2**52, 4, 2 * 10**14)

    @scenario
    async def test_a_sum_that_needs_more_than_64_bits_is_as_large_as_can_be(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, usd=10**18)

        for key in ("a", "b", "c"):
            await bench.commit(worker, step(claimed, key, spent=Spent((shared.id,), Amounts(usd=9 * 10**18))))

        (row,) = await bench.store.get_budgets([shared.id])
        assert row.spent.usd == AMOUNT_MAX
        assert (await bench.store.commit(worker, [reserve(claimed, "d", shared)])).bounced

    @scenario
    async def test_reservations_that_need_more_than_64_bits_together_are_as_large_as_can_be(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        shared = await budget(bench, tokens=1_000)
        most = Amounts(usd=9 * 10**18, us=2**63 - 1)
        keys = [f"k{number}" for number in range(40)]

        for some, noted in ((keys[:3], 3 * RESERVED_MAX), (keys[3:], AMOUNT_MAX)):
            await bench.commit(worker, *(reserve(claimed, key, shared, amounts=most) for key in some))
            (row,) = await bench.store.get_budgets([shared.id])
            assert (row.reserved.usd, row.reserved.us) == (noted, noted)
        assert row.spent == Amounts() and await bench.store.budgets(BudgetFilter()) == [row]
        await bench.commit(worker, *(step(claimed, key, spent=Spent((shared.id,), most)) for key in keys[:20]))
        await bench.commit(worker, requeue(claimed))

        (row,) = await bench.store.get_budgets([shared.id])
        assert row.reserved == Amounts() and (row.spent.usd, row.spent.us) == (AMOUNT_MAX, AMOUNT_MAX)
        await bench.store.give_back(worker, keep=[])
        again = await bench.claim_one(worker)
        await bench.commit(worker, end(again, reserves=True))
        assert await bench.store.get_budgets([shared.id]) == [row]

    @scenario
    async def test_what_a_run_that_has_ended_had_reserved_is_spent_for_good(self, bench: Bench) -> None:
        worker = await bench.worker()
        shared, other = await budget(bench, "agent:a"), await budget(bench, "agent:b")
        runs = {await bench.start(name): name for name in ("failed", "late", "cancelled")}
        claims = {runs[each.run]: each for each in await bench.claim(worker)}
        for each in claims.values():
            await bench.commit(worker, reserve(each, "s", shared, tokens=10), reserve(each, "u", other, tokens=1))
        await bench.commit(worker, hold(claims["cancelled"]))
        await bench.store.give_back(worker, keep=[claims["late"].run])
        await bench.store.cancel(claims["cancelled"].run, "no", b"")
        failed = await bench.claim_one(worker)
        assert await tokens(bench, shared, other) == [(20, 10), (2, 1)]

        await bench.commit(worker, reserve(failed, "t", shared, tokens=100))
        for _ in range(2):
            await bench.commit(
                worker, step(failed, "t", spent=spent(shared, tokens=5)), fail(failed, reserves=True),
                fail(claims["late"], reserves=True),
            )  # fmt: skip

        assert await tokens(bench, shared, other) == [(35, 0), (3, 0)]
        for name in ("failed", "late"):
            await bench.store.retry(claims[name].run, [])
            again = await bench.claim_one(worker)
            await bench.commit(worker, step(again, "s", spent=spent(shared, tokens=2)), end(again, reserves=True))
        assert await tokens(bench, shared, other) == [(39, 0), (3, 0)]

    @scenario
    async def test_however_many_spend_at_once_no_budget_is_exceeded(self, bench: Bench) -> None:
        shared, other = await budget(bench, "agent:a", tokens=100), await budget(bench, "agent:b", tokens=1_000)
        reserved: list[str] = []

        async def spend(own: Bench, number: int) -> None:
            worker, claimed = await own.begin(f"t{number}", agent=f"agent {number}")
            both = (shared, other) if number % 2 else (other, shared)
            for turn in range(8):
                wanted = [reserve(claimed, f"{turn} {part}", *both, tokens=10) for part in range(2)]
                outcome = await own.store.commit(worker, wanted)
                kept = [each.key for each in wanted if (each.run, 1, each.key) not in outcome.bounced]
                reserved.extend(kept)
                await own.commit(worker, *(step(claimed, key, spent=spent(*both, tokens=10)) for key in kept))

        await in_threads(3, bench, spend)

        assert len(reserved) == 10
        assert await tokens(bench, shared, other) == [(100, 0), (100, 0)]

    @scenario
    async def test_setting_budgets_and_spending_from_them_do_not_block_each_other(self, bench: Bench) -> None:
        names = ["agent:a", "agent:b", "agent:c"]
        rows = [await budget(bench, name, tokens=10**9) for name in names]

        async def spend(own: Bench, number: int) -> None:
            worker, claimed = await own.begin(f"t{number}", agent=f"agent {number}")
            mine = rows if number % 2 else rows[::-1]
            for turn in range(4):
                about = [await asking(own, claimed, (row.id, 1), f"q{turn} {row.name}") for row in mine]
                await own.commit(worker, reserve(claimed, f"{turn}", *mine), *about)
                await own.commit(worker, step(claimed, f"{turn}", spent=spent(*mine, tokens=1)))

        async def set_them(own: Bench) -> None:
            for turn in range(4):
                for name in names if turn % 2 else names[::-1]:
                    await budget(own, name, tokens=10**9)

        async def one(own: Bench, number: int) -> None:
            await (spend(own, number) if number < 2 else set_them(own))

        await in_threads(3, bench, one)

        assert await tokens(bench, *rows) == [(8, 0)] * 3
        assert {row.rev for row in await bench.store.get_budgets([row.id for row in rows])} == {5}
        assert await bench.inbox() == []
