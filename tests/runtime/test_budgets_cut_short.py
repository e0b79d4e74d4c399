"""Budgets where a try is cut short by its own agent's code, or several people say what becomes of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Budget, Conflict, Cost
from perdure.core.keys import budget_place
from perdure.core.meters import UsageBy, UsageFilter
from tests.runtime.paying import run
from tests.runtime.sinking import Shelf, grows
from tests.runtime.test_budgets import DOLLAR, budgets
from tests.runtime.world import asked, crash, fresh_app, parked, until, working

CENT = DOLLAR // 100


def test_a_try_that_its_agent_cancels_is_settled_with_what_it_has_used_by_then() -> None:
    app = fresh_app()
    gate = asyncio.Event()

    @perdure.step(estimate=Cost(usd=0.6))
    async def think(hangs: bool) -> str:
        perdure.meter("usd", 0.05)
        if hangs:
            await gate.wait()
        return "done"

    @app.agent
    async def agent() -> str:
        try:
            async with perdure.timeout(0.05):
                await think(True)
        except TimeoutError:
            return await think(False)
        return "it did not hang"

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=1.0))
        assert await handle.result(timeout=20) == "done"
        [row] = (await budgets(app)).values()
        assert (row.spent.usd, row.reserved.usd, row.spent.steps) == (10 * CENT, 0, 2)
        usage = await (await app._client()).store.usage(UsageFilter(UsageBy.RUN))
        assert [(each.name, each.quantity, each.entries) for each in usage] == [("usd", 10 * CENT, 2)]

    run(app, main)


def test_a_cancelled_try_that_is_replayed_and_cancelled_again_holds_no_run() -> None:
    app = fresh_app()
    gate = asyncio.Event()
    begun: list[int] = []

    @perdure.step(estimate=Cost(usd=0.6))
    async def think() -> None:
        begun.append(1)
        perdure.meter("usd", 0.05)
        await gate.wait()

    @perdure.step
    async def after() -> None:
        begun.append(2)
        await gate.wait()

    @app.agent
    async def agent() -> str:
        try:
            await asyncio.wait_for(think(), 0.05)
        except TimeoutError:
            await after()
        return "done"

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent, budget=Budget(usd=5))
            await grows(lambda: begun.count(2), 1)
            await crash(app, worker)
            await grows(lambda: begun.count(2), 2)
            gate.set()
            assert await handle.result(timeout=20) == "done"
            [row] = (await budgets(app)).values()
            assert (row.spent.usd, row.reserved.usd) == (10 * CENT, 0)

    asyncio.run(main())


def test_a_branch_that_is_cancelled_while_it_asks_leaves_no_question_and_the_run_is_parked() -> None:
    app = fresh_app()

    @perdure.step
    async def think() -> None: ...

    @app.agent
    async def agent() -> str:
        await think()
        try:
            async with perdure.timeout(0.1):
                await think()
        except TimeoutError:
            pass
        return str(await perdure.receive())

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent, budget=Budget(steps=1))
            await asked(app, handle)

            async def withdrawn() -> bool:
                return not await app.interrupts()

            await until(withdrawn, "nobody asks any more")
            await parked(handle, worker)
            await app.send(handle.thread_id, "go on")
            assert await handle.result(timeout=20) == "go on"

    asyncio.run(main())


def test_of_two_answers_about_one_budget_neither_lowers_what_the_other_has_raised() -> None:
    app = fresh_app()

    @perdure.step
    async def think() -> None:
        perdure.meter("tokens", 1)

    @app.agent
    async def agent(times: int) -> int:
        for _ in range(times):
            await think()
        return times

    async def main() -> None:
        await app.set_budget("tenant:acme", Budget(tokens=2))
        async with app.worker(poll_s=0.05):
            handles = [await app.start(agent, 2, tenant="acme") for _ in range(2)]

            async def both_ask() -> bool:
                return len(await app.interrupts()) + sum([
                    (await handle.status()).state.value == "completed" for handle in handles
                ]) == 2  # fmt: skip

            await until(both_ask, "both ask, or one has ended")
        questions = await app.interrupts()
        for question, limit in zip(questions, (100, 4), strict=False):
            await app.resume(question.id, {"raise_to": {"tokens": limit}})
        async with app.worker(poll_s=0.05):
            assert [await handle.result(timeout=20) for handle in handles] == [2, 2]
        assert (await budgets(app))["tenant:acme"].limits.tokens == 100, f"{len(questions)} were answered"

    async def whole() -> None:
        async with app:
            await main()

    asyncio.run(whole())


def test_a_budget_is_set_only_where_nobody_has_set_it_since_it_was_read() -> None:
    app = fresh_app()

    async def main() -> None:
        async with app:
            first = await app.set_budget("tenant:acme", Budget(usd=1))
            second = await app.set_budget("tenant:acme", Budget(usd=2), if_rev=first.rev)
            with pytest.raises(Conflict, match=r"at rev 2 by now, not at 1.*app\.budget_info") as lost:
                await app.set_budget("tenant:acme", Budget(usd=3), if_rev=first.rev)
            now = await app.budget_info("tenant:acme")
            assert (second.rev, now.limits["usd"], lost.value.rev) == (first.rev + 1, 2, now.rev)
            with pytest.raises(Conflict):
                await app.set_budget("tenant:acme", Budget(usd=2), if_rev=second.rev - 1, by="ann")
            assert await app.set_budget("tenant:acme", None, if_rev=second.rev) != now

    asyncio.run(main())


def test_the_pauses_of_who_waits_for_what_is_in_flight_grow_over_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.pausing.PARK_S", 0.05)
    app = fresh_app()
    gate = asyncio.Event()
    pauses: list[int] = []

    @perdure.step(estimate=Cost(usd=1))
    async def hold() -> None:
        await gate.wait()

    @perdure.step(estimate=Cost(usd=1))
    async def want() -> None: ...

    @app.agent
    async def holder() -> None:
        await hold()

    @app.agent
    async def waiter() -> None:
        await want()

    async def main() -> None:
        await app.set_budget("tenant:acme", Budget(usd=1))
        first = await app.start(holder, tenant="acme")
        await until(lambda: _reserved(app), "it is reserved")
        second = await app.start(waiter, tenant="acme")

        async def looked_often() -> bool:
            waits = await (await app._client()).store.waits([int(second.run_id[1:])])
            pauses.extend(int(each.key.rpartition("~")[2]) for each in waits)
            return max(pauses, default=0) >= 4

        await until(looked_often, "it goes on looking, later and later")
        gate.set()
        for handle in (first, second):
            await handle.result(timeout=20)

    run(app, main)
    assert pauses == sorted(pauses), "each claim begins where the one before was"


async def _reserved(app: Any) -> bool:
    return any(row.reserved.usd for row in (await budgets(app)).values())


def test_a_child_counts_against_the_budget_of_its_parents_agent() -> None:
    app = fresh_app()

    @perdure.step
    async def think() -> None:
        perdure.meter("usd", 1)

    @app.agent
    async def child() -> None:
        await think()

    @app.agent
    async def research() -> None:
        await perdure.call(child)

    async def main() -> None:
        await app.set_budget("agent:research", Budget(usd=5))
        await (await app.start(research)).result(timeout=20)
        assert (await budgets(app))["agent:research"].spent.usd == DOLLAR

    run(app, main)


def test_the_place_of_a_question_is_in_no_key() -> None:
    assert budget_place(7, 2) == "~7$2"


def test_what_costs_nothing_goes_on_though_nothing_is_left() -> None:
    app = fresh_app()

    @perdure.step
    async def think() -> None:
        perdure.meter("usd", 1)

    @perdure.step(estimate=Cost(usd=0))
    async def book() -> str:
        return "booked"

    @app.agent
    async def agent() -> str:
        await think()
        return await book()

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=0.5))
        assert await handle.result(timeout=20) == "booked"

    run(app, main)


def test_all_limits_of_a_budget_may_be_dropped() -> None:
    app = fresh_app()

    async def main() -> None:
        async with app:
            await app.set_budget("tenant:acme", Budget(usd=1))
            dropped = await app.set_budget("tenant:acme", None)
            assert dropped.limits == {"usd": None, "tokens": None, "steps": None, "seconds": None}

    asyncio.run(main())


def test_a_fork_has_a_budget_and_a_bill_of_its_own() -> None:
    app = fresh_app(billing="bills")
    bills = app.sink("bills", Shelf())

    @perdure.step
    async def think(n: int) -> int:
        perdure.meter("tokens", 1)
        return n

    @app.agent(budget=Budget(steps=3))
    async def agent() -> int:
        for n in range(3):
            await think(n)
        return 3

    async def main() -> None:
        handle = await app.start(agent)
        assert await handle.result(timeout=20) == 3
        fork = await app.thread(handle.thread_id).fork(1)
        assert await fork.result(timeout=20) == 3
        narrow = await app.thread(handle.thread_id).fork(1, budget=Budget(steps=2))
        await asked(app, narrow)
        rows = await budgets(app)
        assert rows[f"run:{fork.run_id}"].spent.steps == 3
        assert rows[f"run:{narrow.run_id}"].spent.steps == 2
        await narrow.cancel()
        await grows(lambda: len(bills.items), 3)

    run(app, main)
    assert len({item.key for item in bills.items}) == 3
