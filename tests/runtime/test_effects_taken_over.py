"""Effects in flight whose worker loses the run: what the next one knows, and when somebody may be asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import RunFailed
from perdure.runtime.dispatching import Dispatch
from perdure.runtime.frames import StepFrame, frame
from tests.runtime.paying import QUICK, Provider, ledger
from tests.runtime.world import asked, crash, fresh_app, working


@pytest.mark.parametrize("policy", ["retry", "verify", "ask", "fail"])
def test_an_effect_in_flight_when_its_worker_loses_the_run_is_unknown_to_the_next_one(policy: str) -> None:
    app, provider = fresh_app(), Provider()
    in_flight, go_on = asyncio.Event(), asyncio.Event()

    async def charge(what: str) -> str:
        if not in_flight.is_set():
            in_flight.set()
            await go_on.wait()
        return await provider.charge(what)

    how: dict[str, Any] = {"verify": provider.ask} if policy == "verify" else {"on_unknown": policy}
    effect = perdure.effect(charge, name="charge", **how)

    @app.agent
    async def agent() -> str:
        return str(await effect("tea"))

    async def main() -> None:
        async with working(app, lease_s=0.6):
            handle = await app.start(agent)
            await in_flight.wait()
            client = await app._client()
            [worker] = await client.store.workers()
            await client.store.take_over([worker.id], recoveries_max=5)
            async with app.worker(poll_s=0.05, lease_s=0.6):
                if policy == "fail":
                    with pytest.raises(RunFailed, match="died, or lost its lease, while it was in flight"):
                        await handle.result(timeout=20)
                elif policy == "ask":
                    for question in (await asked(app, handle)).values():
                        await app.resume(question, {"happened": False})
                    assert await handle.result(timeout=20) == "receipt 1 for tea"
                else:
                    assert await handle.result(timeout=20) == "receipt 1 for tea"
        assert len(provider.calls) == (0 if policy == "fail" else 1)

    asyncio.run(main())


def test_nobody_is_asked_while_a_worker_that_was_taken_over_early_may_still_dispatch_it() -> None:
    """Its lease has not run out, and it may be slow to begin: that it has not happened does not stay true."""
    app, in_flight = fresh_app(), asyncio.Event()

    async def charge(what: str) -> str:
        in_flight.set()
        await asyncio.Event().wait()
        return what

    effect = perdure.effect(charge, name="charge", on_unknown="ask")

    @app.agent
    async def agent() -> str:
        return str(await effect("tea"))

    async def main() -> None:
        async with working(app, lease_s=0.9):
            handle = await app.start(agent)
            await in_flight.wait()
            store = (await app._client()).store
            [worker] = await store.workers()
            await store.take_over([worker.id], recoveries_max=5)
            async with app.worker(poll_s=0.05, lease_s=0.9):
                [question] = (await asked(app, handle)).values()
            asked_at = (await app.interrupt_info(question)).created_at
            leases = [row.lease_until for row in await store.workers(alive=False) if row.id == worker.id]
            assert leases[0] <= asked_at.timestamp() * 1_000_000 + 1

    asyncio.run(main())


def test_a_body_begins_only_while_its_worker_believes_in_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its intent and its first line a process may stand still for a while."""
    app = fresh_app()
    intend = Dispatch._intend
    believed: list[bool] = []

    async def stands_still(dispatch: Dispatch) -> bool:
        intended = await intend(dispatch)
        asyncio.get_running_loop().call_soon(setattr, dispatch.at.host.trust, "until", 0.0)
        return intended

    async def charge(what: str) -> str:
        here = frame.get()
        assert isinstance(here, StepFrame)
        believed.append(here.super_step.host.trust.holds)
        return what

    monkeypatch.setattr(Dispatch, "_intend", stands_still)
    effect = perdure.effect(charge)

    @app.agent
    async def agent() -> str:
        return str(await effect("tea"))

    async def main() -> None:
        async with working(app, lease_s=0.6):
            assert await (await app.start(agent)).result(timeout=20) == "tea"

    asyncio.run(main())
    assert believed == [True]


def test_a_worker_that_dies_while_it_finds_out_is_not_another_try() -> None:
    app, provider = fresh_app(), Provider()
    at_it = asyncio.Event()
    deaths: list[int] = []
    tried: list[int] = []

    async def stand_still() -> None:
        at_it.set()
        await asyncio.Event().wait()

    async def charge(what: str) -> str:
        if not deaths:
            await stand_still()
        return await provider.charge(what)

    async def ask(key: str, args: dict[str, Any]) -> Any:
        if len(deaths) < 4:
            await stand_still()
        [row] = await ledger(app)
        tried.extend(each.attempt for each in await (await app._client()).store.attempts(row.run))
        return await provider.ask(key, args)

    effect = perdure.effect(charge, name="charge", verify=ask, retry=QUICK)

    @app.agent
    async def agent() -> str:
        return str(await effect("tea"))

    async def main() -> None:
        async with working(app, lease_s=0.6) as worker:
            handle = await app.start(agent)
            while len(deaths) < 4:
                await at_it.wait()
                at_it.clear()
                deaths.append(worker.id)
                await crash(app, worker)
            assert await handle.result(timeout=20) == "receipt 1 for tea"

    asyncio.run(main())
    assert tried == [1]
