"""Effects and transactions that outlast a limit: seen to their end, and the limit counts, live and in a replay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, StoreUnavailable, Transaction
from perdure.core.effects import EffectState
from tests.runtime.paying import ledger, run
from tests.runtime.world import crash, fresh_app, passes, working


@pytest.mark.parametrize("durable", [True, False])
def test_an_effect_that_outlasts_a_limit_is_done_and_the_limit_has_run_out(durable: bool) -> None:
    app = fresh_app()
    done: list[int] = []

    @perdure.effect(on_unknown="retry")
    async def pay() -> int:
        await passes(0.15)
        done.append(1)
        return 1

    @app.agent
    async def agent() -> str:
        try:
            async with perdure.timeout(0.05) if durable else asyncio.timeout(0.05):
                await pay()
        except TimeoutError:
            return "late"
        return "paid"

    async def main() -> None:
        handle = await app.start(agent)
        assert await handle.result(timeout=20) == "late"
        [row] = await ledger(app)
        assert row.state is EffectState.DONE

    run(app, main)
    assert done == [1]


def test_a_transaction_that_outlasts_a_limit_is_late_live_and_in_a_replay(tmp_path: Path) -> None:
    app = App("t", store=f"sqlite:///{tmp_path}/runs.db")
    gate = asyncio.Event()
    saw: list[str] = []

    @perdure.transaction
    async def book(tx: Transaction) -> int:
        await tx.execute("create table if not exists booked (who text)")
        await passes(0.15)
        return await tx.execute("insert into booked values ('ann')")

    @perdure.step
    async def after() -> None:
        await gate.wait()

    @app.agent
    async def agent() -> str:
        booked = "no"
        try:
            async with perdure.timeout(0.05):
                await book()
                booked = "yes"
        except TimeoutError:
            booked += ", late"
        saw.append(booked)
        await after()
        return booked

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            while not saw:
                await passes(0.01)
            await crash(app, worker)
            gate.set()
            assert await handle.result(timeout=20) == "no, late"

    asyncio.run(main())
    assert saw == ["no, late"] * 2


def test_a_body_that_raises_as_a_store_does_fails_like_any_other(tmp_path: Path) -> None:
    app = App("t", store=f"sqlite:///{tmp_path}/runs.db")
    begun: list[int] = []

    @perdure.transaction(retry=2)
    async def book(tx: Transaction) -> None:
        begun.append(1)
        raise StoreUnavailable("another app's store is away")

    @app.agent
    async def agent() -> None:
        await book()

    async def main() -> None:
        with pytest.raises(perdure.RunFailed, match="another app's store is away"):
            await (await app.start(agent)).result(timeout=20)

    run(app, main)
    assert 1 <= len(begun) <= 2


def test_a_run_that_is_cancelled_during_an_effect_has_its_result_and_ends_there() -> None:
    app = fresh_app()
    began, gate = asyncio.Event(), asyncio.Event()
    saw: list[Any] = []

    @perdure.effect(on_unknown="retry")
    async def pay() -> int:
        began.set()
        await gate.wait()
        return 7

    @app.agent
    async def agent() -> None:
        saw.append(await pay())
        saw.append(await pay())

    async def main() -> None:
        handle = await app.start(agent)
        await began.wait()
        await handle.cancel()
        await passes(0.1)
        gate.set()
        with pytest.raises(perdure.RunCancelled):
            await handle.result(timeout=20)

    run(app, main)
    assert saw == [7]


def test_a_transaction_that_crashes_cut_short_is_tried_again_however_often(tmp_path: Path) -> None:
    app = App("t", store=f"sqlite:///{tmp_path}/runs.db")
    gate = asyncio.Event()
    begun: list[int] = []

    @perdure.transaction(retry=1)
    async def book(tx: Transaction) -> int:
        begun.append(1)
        await gate.wait()
        return await tx.fetch_value("select 7")

    @app.agent
    async def agent() -> int:
        return await book()

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(agent)
            for times in (1, 2, 3):
                while len(begun) < times:
                    await passes(0.01)
                if times < 3:
                    await crash(app, worker)
            gate.set()
            assert await handle.result(timeout=20) == 7

    asyncio.run(main())
    assert len(begun) == 3
