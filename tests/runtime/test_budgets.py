"""Budgets: reserved before a try, settled after it, shared by all that a run starts; spent, they ask a person."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import App, Budget, BudgetExceeded, Cost, Handle, RunFailed, UsageError
from perdure.core.budgets import BudgetFilter, BudgetRow
from perdure.errors import InvalidAnswer
from tests.runtime.paying import Provider, run
from tests.runtime.sinking import QUICK, grows
from tests.runtime.world import asked, crash, fresh_app, parked, until, working

DOLLAR = 1_000_000_000


async def budgets(app: App) -> dict[str, BudgetRow]:
    client = await app._client()
    return {row.name: row for row in await client.store.budgets(BudgetFilter())}


def thinking(app: App, *, costs: float = 0.6, **options: Any) -> Any:
    @perdure.step(**options)
    async def think(n: int = 0) -> int:
        perdure.meter("usd", costs)
        return n

    @app.agent
    async def thinker(times: int) -> int:
        for n in range(times):
            await think(n)
        return times

    return thinker


def test_what_a_run_may_spend_it_spends_and_then_it_asks() -> None:
    app = fresh_app()
    thinker = thinking(app)

    async def main() -> None:
        handle = await app.start(thinker, 5, budget=Budget(usd=1.0))
        question = (await asked(app, handle))["budget"]
        await parked(handle)
        info = await app.interrupt_info(question)
        assert info.payload["budget"] == f"run:{handle.run_id}"
        assert (info.payload["limit"], info.payload["spent"]) == ({"usd": 1.0}, {"usd": 1.2})
        await app.resume(question, {"raise_to": {"usd": 10}}, by="ann")
        assert await handle.result(timeout=20) == 5
        [row] = (await budgets(app)).values()
        assert (row.limits.usd, row.spent.usd, row.reserved.usd, row.by) == (10 * DOLLAR, 3 * DOLLAR, 0, "ann")

    run(app, main)


def test_stop_fails_the_step_with_an_error_that_code_may_catch() -> None:
    app = fresh_app()
    thinker = thinking(app)

    @perdure.step
    async def think() -> None:
        perdure.meter("tokens", 5)

    @app.agent
    async def careful() -> str:
        try:
            for _ in range(9):
                await think()
        except BudgetExceeded as error:
            return f"{error.budget} lacks {error.lacking}"
        return "never"

    async def main() -> None:
        handle = await app.start(thinker, 5, budget=Budget(usd=0.5))
        await app.resume((await asked(app, handle))["budget"], {"stop": True}, by="ann")
        with pytest.raises(RunFailed, match=r"BudgetExceeded.*ann said to stop"):
            await handle.result(timeout=20)
        handle = await app.start(careful, budget=Budget(tokens=10))
        await app.resume((await asked(app, handle))["budget"], {"stop": True})
        assert await handle.result(timeout=20) == f"run:{handle.run_id} lacks tokens"

    run(app, main)


def test_a_run_that_was_stopped_goes_on_after_its_budget_was_raised_and_it_was_sent_on() -> None:
    app = fresh_app()
    thinker = thinking(app)

    async def main() -> None:
        handle = await app.start(thinker, 3, budget=Budget(usd=1))
        await app.resume((await asked(app, handle))["budget"], {"stop": True})
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        await app.set_budget(f"run:{handle.run_id}", Budget(usd=5))
        await app.retry(handle.run_id)
        assert await handle.result(timeout=20) == 3

    run(app, main)


@pytest.mark.parametrize(
    ("budget", "lacks"),
    [(Budget(tokens=20), "tokens"), (Budget(steps=2), "steps"), (Budget(seconds=0.02), "seconds")],
)
def test_every_unit_has_its_limit(budget: Budget, lacks: str) -> None:
    app = fresh_app()
    done: list[int] = []

    @perdure.step
    async def think(n: int) -> None:
        perdure.meter("tokens", 10)
        await asyncio.sleep(0.015)  # what a call takes
        done.append(n)

    @app.agent
    async def agent() -> None:
        for n in range(6):
            await think(n)

    async def main() -> None:
        handle = await app.start(agent, budget=budget)
        question = (await asked(app, handle))["budget"]
        assert lacks in (await app.interrupt_info(question)).payload["limit"]
        assert len(done) == 2
        await handle.cancel()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)

    run(app, main)


def test_c37_three_children_whose_estimates_exceed_the_cap_together() -> None:
    """Two of $0.60 fit into $1.25; the third waits for a person, and goes on once the cap is raised."""
    app = fresh_app()
    gate = asyncio.Event()
    begun: list[int] = []

    @perdure.step(estimate=Cost(usd=0.60))
    async def think(n: int) -> int:
        begun.append(n)
        await gate.wait()
        perdure.meter("usd", 0.60)
        return n

    @app.agent
    async def child(n: int) -> int:
        return await think(n)

    @app.agent
    async def parent() -> int:
        children = [await perdure.start(child, n) for n in range(3)]
        return sum(await asyncio.gather(*children))

    async def main() -> None:
        handle = await app.start(parent, budget=Budget(usd=1.25))
        await grows(lambda: len(begun), 2)
        [row] = (await budgets(app)).values()
        assert (row.spent.usd, row.reserved.usd) == (0, 1_200_000_000)
        assert await app.interrupts() == [], "nothing is spent yet: it waits for what is in flight"
        gate.set()

        async def asks() -> bool:
            return len(await app.interrupts()) == 1

        await until(asks, "the third asks")
        assert len(begun) == 2
        [question] = await app.interrupts()
        await app.resume(question.id, {"raise_to": {"usd": 2}})
        assert await handle.result(timeout=20) == 3
        [row] = (await budgets(app)).values()
        assert (row.spent.usd, row.reserved.usd) == (1_800_000_000, 0)

    run(app, main)


def test_a_child_that_estimated_too_much_makes_room_for_the_next_without_a_question() -> None:
    app = fresh_app()

    @perdure.step(estimate=Cost(usd=0.60))
    async def think(n: int) -> int:
        perdure.meter("usd", 0.05)
        await asyncio.sleep(0.01)  # what a call takes
        return n

    @app.agent
    async def agent() -> int:
        return sum(await asyncio.gather(*(think(n) for n in range(8))))

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=1.25))
        assert await handle.result(timeout=20) == 28
        assert await app.interrupts(state=None) == []

    run(app, main)


def test_the_budget_of_a_tenant_and_of_an_agent_is_one_for_all_their_runs_and_setting_it_wakes_them() -> None:
    app = fresh_app()
    thinker = thinking(app, costs=0.5)

    async def main() -> None:
        await app.set_budget("tenant:acme", Budget(usd=1))
        others = await app.start(thinker, 3, tenant="other")
        assert await others.result(timeout=20) == 3
        handles = [await app.start(thinker, 2, tenant="acme") for _ in range(4)]

        async def all_ask_or_ended() -> bool:
            states = [(await handle.status()).state.value for handle in handles]
            questions = await app.interrupts()
            return states.count("completed") + len(questions) == 4 and states.count("waiting") == len(questions)

        await until(all_ask_or_ended, "all but those that fitted ask")
        await app.set_budget("tenant:acme", Budget(usd=100), by="ann")
        assert [await handle.result(timeout=20) for handle in handles] == [2] * 4
        assert {each.state.value for each in await app.interrupts(state=None)} == {"withdrawn"}
        assert (await budgets(app))["tenant:acme"].spent.usd == 4 * DOLLAR
        await app.set_budget("agent:thinker", Budget(steps=1))
        handle = await app.start(thinker, 2)
        await asked(app, handle)
        await handle.cancel()

    run(app, main)


def test_each_run_of_an_agent_with_a_budget_has_one_of_its_own() -> None:
    app = fresh_app()

    @perdure.step
    async def think(n: int) -> None: ...

    @app.agent(budget=Budget(steps=2))
    async def agent(times: int) -> int:
        for n in range(times):
            await think(n)
        return times

    async def main() -> None:
        for _ in range(3):
            assert await (await app.start(agent, 2)).result(timeout=20) == 2
        handle = await app.start(agent, 3)
        await asked(app, handle)
        await handle.cancel()
        mine = await app.start(agent, 3, budget=Budget(steps=3))
        assert await mine.result(timeout=20) == 3

    run(app, main)


def test_a_try_that_a_crash_cut_short_counts_as_spent_and_what_fails_is_counted_too() -> None:
    app = fresh_app()
    gate = asyncio.Event()
    begun: list[int] = []
    failures = iter([ConnectionError("away"), None])

    @perdure.step(estimate=Cost(usd=0.5))
    async def think() -> None:
        begun.append(1)
        await gate.wait()
        perdure.meter("usd", 0.1)

    @perdure.step(retry=QUICK)
    async def flaky() -> None:
        perdure.meter("usd", 0.01)
        if (error := next(failures)) is not None:
            raise error

    @app.agent
    async def agent() -> None:
        await think()
        await flaky()

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent, budget=Budget(usd=5, steps=10))
            await grows(lambda: len(begun), 1)
            await crash(app, worker)
            gate.set()
            await handle.result(timeout=20)
            [row] = (await budgets(app)).values()
            assert (row.spent.usd, row.reserved.usd) == (620_000_000, 0)
            assert (row.spent.steps, row.reserved.steps) == (4, 0)

    asyncio.run(main())


def test_effects_are_reserved_too_and_one_that_was_stopped_never_happened() -> None:
    app, provider = fresh_app(), Provider()
    charge = perdure.effect(provider.charge, name="charge", estimate=Cost(usd=1))

    @app.agent
    async def agent() -> None:
        for what in ("tea", "coffee"):
            await charge(what)

    async def main() -> None:
        handle: Handle[Any] = await app.start(agent, budget=Budget(usd=1.5, steps=1))
        question = (await asked(app, handle))["budget"]
        assert len(provider.done) == 1
        await app.resume(question, {"stop": True})
        with pytest.raises(RunFailed, match="BudgetExceeded"):
            await handle.result(timeout=20)

    run(app, main)
    assert len(provider.done) == 1


def test_code_that_cleans_up_is_not_held_up() -> None:
    app = fresh_app()
    cleaned: list[int] = []

    @perdure.step
    async def think() -> None: ...

    @perdure.step
    async def clean() -> None:
        cleaned.append(1)

    @app.agent
    async def agent() -> None:
        try:
            for _ in range(3):
                await think()
        finally:
            await clean()

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(steps=1))
        await asked(app, handle)
        await handle.cancel()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)

    run(app, main)
    assert cleaned == [1]


def test_an_answer_that_raises_too_little_is_followed_by_another_question() -> None:
    app = fresh_app()
    thinker = thinking(app)

    async def main() -> None:
        handle = await app.start(thinker, 4, budget=Budget(usd=0.5))
        first = (await asked(app, handle))["budget"]
        with pytest.raises(InvalidAnswer, match=r"0\.55 leaves nothing: 0\.6 usd is spent"):
            await app.resume(first, {"raise_to": {"usd": 0.55}})
        await app.resume(first, {"raise_to": {"usd": 0.65}})

        async def another() -> bool:
            return any(each.id != first for each in await app.interrupts())

        await until(another, "it asks again")
        [second] = await app.interrupts()
        await app.resume(second.id, {"raise_to": {"usd": 5, "tokens": 5}})
        assert await handle.result(timeout=20) == 4
        assert (await budgets(app))[f"run:{handle.run_id}"].limits.tokens is None, "none was limited"

    run(app, main)


def test_many_steps_that_lack_it_at_once_ask_once_and_hear_the_same() -> None:
    app = fresh_app()
    begun: list[int] = []

    @perdure.step
    async def think(n: int) -> int:
        begun.append(n)
        return n

    @app.agent
    async def agent() -> int:
        done = await asyncio.gather(*(think(n) for n in range(40)), return_exceptions=True)
        return sum(not isinstance(each, BaseException) for each in done)

    async def main() -> None:
        async with working(app) as worker:
            for answer, done in (({"raise_to": {"steps": 100}}, 40), ({"stop": True}, 5)):
                handle = await app.start(agent, budget=Budget(steps=5))
                question = (await asked(app, handle))["budget"]
                await parked(handle, worker)
                await crash(app, worker)
                assert [each.id for each in await app.interrupts()] == [question]
                await app.resume(question, answer)
                assert await handle.result(timeout=20) == done

    asyncio.run(main())
    assert len(begun) == 45


def test_bad_budgets_are_refused() -> None:
    for bad in ({}, {"usd": -1}, {"tokens": 1.5}, {"steps": True}, {"seconds": "soon"}, {"usd": float("nan")}):
        with pytest.raises(UsageError):
            Budget(**bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Cost(usd=-1)
    with pytest.raises(UsageError, match="estimate is 3"):
        perdure.step(lambda: None, name="x", estimate=3)  # type: ignore[call-overload]
    app = fresh_app()
    with pytest.raises(UsageError, match="budget is 5"):
        app.agent(budget=5)(thinking)  # type: ignore[arg-type]
