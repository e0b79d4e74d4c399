"""Budgets where the end of a super-step cuts tries off: they are settled with what they have used, before that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import App, Budget, Cost, RunFailed
from perdure.core.meters import UsageBy, UsageFilter
from tests.runtime.paying import run
from tests.runtime.sinking import grows
from tests.runtime.test_budgets import DOLLAR, budgets
from tests.runtime.world import crash, fresh_app, working

CENT = DOLLAR // 100


async def used(app: App) -> list[tuple[str, int, int]]:
    usage = await (await app._client()).store.usage(UsageFilter(UsageBy.RUN))
    return [(each.name, each.quantity, each.entries) for each in usage]


async def account(app: App) -> tuple[int, int, int]:
    """Of the only budget: the cents that are spent, those that are reserved, and the tries."""
    [row] = (await budgets(app)).values()
    return row.spent.usd // CENT, row.reserved.usd // CENT, row.spent.steps


def hanging(gate: asyncio.Event, begun: list[int], *, decorate: Any = perdure.step) -> Any:
    """A step that meters 5 cents of the 60 that it may cost, and hangs."""

    async def think() -> str:
        perdure.meter("usd", 0.05)
        begun.append(1)
        await gate.wait()
        return "done"

    return decorate(estimate=Cost(usd=0.6))(think)


def test_a_try_that_the_failure_of_its_sibling_cuts_off_is_settled_with_what_it_has_used() -> None:
    app = fresh_app()
    begun: list[int] = []
    think = hanging(asyncio.Event(), begun)

    @perdure.step(estimate=Cost(usd=0))
    async def break_off() -> None:
        await grows(lambda: len(begun), 1)
        raise ValueError("no")

    @app.agent
    async def agent() -> None:
        await asyncio.gather(think(), break_off())

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        assert await account(app) == (5, 0, 2)
        assert await used(app) == [("usd", 5 * CENT, 1)]

    run(app, main)


def test_a_try_that_its_agent_leaves_behind_is_settled_before_the_result_is_there() -> None:
    app = fresh_app()
    begun: list[int] = []
    think = hanging(asyncio.Event(), begun)

    @app.agent
    async def agent() -> str:
        left = asyncio.create_task(think())
        while not begun:
            await perdure.sleep(0)
        return str(left.done())

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        assert await handle.result(timeout=20) == "False"
        assert await account(app) == (5, 0, 1)

    run(app, main)


@pytest.mark.parametrize("decorate", [perdure.step, perdure.effect])
def test_a_try_that_outlasts_the_grace_of_its_worker_is_settled_before_its_run_is_handed_back(decorate: Any) -> None:
    app = fresh_app()
    gate, begun = asyncio.Event(), list[int]()
    think = hanging(gate, begun, decorate=decorate)

    @app.agent
    async def agent() -> str:
        return str(await think())

    async def main() -> None:
        async with app:
            async with app.worker(poll_s=0.05, grace_s=0.0):
                handle = await app.start(agent, budget=Budget(usd=5))
                await grows(lambda: len(begun), 1)
            assert await account(app) == (5, 0, 1)
            assert await used(app) == [("usd", 5 * CENT, 1)]
            if decorate is perdure.step:
                gate.set()
                async with app.worker(poll_s=0.05):
                    assert await handle.result(timeout=20) == "done"
                assert await account(app) == (10, 0, 2)

    asyncio.run(main())


def test_a_try_that_swallows_its_end_is_settled_all_the_same() -> None:
    app = fresh_app()
    begun: list[int] = []
    gate = asyncio.Event()

    @perdure.step(estimate=Cost(usd=0.6))
    async def think(raises: bool) -> str:
        perdure.meter("usd", 0.05)
        begun.append(1)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if raises:
                raise ValueError("cut off") from None
        return "late"

    @app.agent
    async def agent() -> None:
        both = [asyncio.create_task(think(raises)) for raises in (False, True)]
        while len(begun) < 2:
            await perdure.sleep(0)
        raise ValueError(f"without {len(both)}")

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        assert await account(app) == (10, 0, 2)

    run(app, main)


def test_what_waits_to_be_tried_when_its_sibling_fails_has_nothing_reserved_any_more() -> None:
    app = fresh_app()
    gate = asyncio.Event()

    @perdure.step(estimate=Cost(usd=0.6), retry=perdure.Retry(attempts=5, delay_s=30))
    async def think() -> None:
        perdure.meter("usd", 0.05)
        gate.set()
        raise ConnectionError("again")

    @app.agent
    async def agent() -> None:
        left = asyncio.create_task(think())
        while not gate.is_set():
            await perdure.sleep(0)
        raise ValueError(f"without {left}")

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        with pytest.raises(RunFailed):
            await handle.result(timeout=20)
        assert await account(app) == (5, 0, 1)

    run(app, main)


def test_a_step_that_is_cancelled_while_its_record_is_being_written_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = fresh_app()

    @perdure.step(estimate=Cost(usd=0.6), durability="sync")
    async def think() -> str:
        perdure.meter("usd", 0.05)
        asyncio.get_running_loop().call_soon(tasks[0].cancel)  # once the record is on its way
        return "done"

    tasks: list[asyncio.Task[str]] = []

    @app.agent
    async def agent() -> str:
        tasks.append(asyncio.create_task(think()))
        await asyncio.wait(tasks)
        return "over"

    async def main() -> None:
        handle = await app.start(agent, budget=Budget(usd=5))
        assert await handle.result(timeout=20) == "over"
        assert tasks[0].cancelled()
        assert await account(app) == (5, 0, 1)
        assert await used(app) == [("usd", 5 * CENT, 1)]

    run(app, main)


def test_what_a_worker_had_reserved_that_was_killed_is_spent_also_after_its_run_has_ended() -> None:
    app = fresh_app()
    gate, begun = asyncio.Event(), list[int]()
    think = hanging(gate, begun)

    @app.agent
    async def agent() -> str:
        return str(await think())

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent, budget=Budget(usd=5))
            await grows(lambda: len(begun), 1)
            await crash(app, worker)
            await grows(lambda: len(begun), 2)
            gate.set()
            assert await handle.result(timeout=20) == "done"
            assert await account(app) == (65, 0, 2)

    asyncio.run(main())
