"""Effects under `kill -9`: at every point between the intent and the record, for every policy; and at random."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator

import pytest

import perdure
from perdure import App, Handle
from perdure.core.effects import Effect, EffectFilter, EffectState
from tests.support import provider as providers
from tests.support.charging import POINTS, POLICIES, PROVIDER, charging, regretting, shopping
from tests.support.processes import Fleet
from tests.support.provider import Provider
from tests.support.waiting import becomes

RUNS = int(os.environ.get("PERDURE_TEST_EFFECTS", "120"))
KILLS = 50 if RUNS >= 1000 else 8
WORKERS = 3

CAN_HAVE_HAPPENED = {"intent": (1, 1), "recorded": (1, 1), "received": (1, 1), "answered": (1, 1), "working": (1, 1)}
"""How often the provider may have done the work of a run that stops at `unknown`, by where its worker died; else none
or once."""


@pytest.fixture(params=[True, False], ids=["honours keys", "knows no keys"])
def provider(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with providers.serving(honours_keys=request.param) as made:
        yield made


def hire_at(fleet: Fleet, provider: Provider) -> None:
    fleet.extra |= {"PERDURE_TEST_AGENTS": "tests.support.charging", PROVIDER: provider.url}


@pytest.mark.parametrize("policy", POLICIES)
def test_whatever_the_point_of_a_kill_nothing_is_done_twice_where_once_is_promised(
    fleet: Fleet, provider: Provider, policy: str
) -> None:
    hire_at(fleet, provider)

    async def main() -> None:
        app = App("charging", store=fleet.store_url)
        app.agent(charging)
        async with app:
            doomed = [fleet.hire(concurrency=1) for _ in POINTS]
            handles = {point: await app.start("charging", policy, point, point) for point in POINTS}
            await becomes(lambda: _none_alive(fleet), "each point has killed a worker")
            assert len(doomed) == len(POINTS)
            fleet.hire(concurrency=20)
            await asyncio.gather(*(see(app, provider, policy, point, handle) for point, handle in handles.items()))

    asyncio.run(main())


async def _none_alive(fleet: Fleet) -> bool:
    return not fleet.alive


async def see(app: App, provider: Provider, policy: str, point: str, handle: Handle[str]) -> None:
    """See a run to its end, answering what it asks by what is true; the provider's account and the ledger agree."""
    answering = asyncio.create_task(answer_truly(app, provider, handle))
    try:
        ended = await handle.result(timeout=40)
    except perdure.RunFailed as failed:
        assert policy == "fail", failed
        ended = None
    finally:
        answering.cancel()
    times = provider.times(point)
    [row] = await effects(app, handle)
    if ended is None:
        assert row.state is EffectState.UNKNOWN
        least, most = CAN_HAVE_HAPPENED.get(point, (0, 0))
        assert least <= times <= most
    elif policy == "retry" and not provider.honours_keys:
        assert 1 <= times <= 2, "at least once is all that such a provider allows"
    else:
        assert (times, row.state) == (1, EffectState.DONE), point
    assert policy != "fail" or (ended is None) == (point not in ("intent", "recorded"))


async def answer_truly(app: App, provider: Provider, handle: Handle[str]) -> None:
    """Answer the questions of a run."""
    while True:
        for question in await app.interrupts(run_id=handle.run_id):
            key = question.payload["idempotency_key"]
            match provider.ask(key):
                case "done":
                    await app.resume(question.id, {"happened": True, "result": f"receipt of {key}"})
                case "absent":
                    await app.resume(question.id, {"happened": False})
        await asyncio.sleep(0.05)  # a person looks again


async def effects(app: App, handle: Handle[str]) -> list[Effect]:
    store = (await app._client()).store
    return await store.effects(EffectFilter(run=int(handle.run_id[1:])))


def test_a_compensation_that_is_killed_goes_on_and_each_undo_is_done_once(fleet: Fleet) -> None:
    async def main(provider: Provider) -> None:
        app = App("charging", store=fleet.store_url)
        app.agent(regretting)
        async with app:
            for _ in range(2):
                fleet.hire(concurrency=1)
            handles = {point: await app.start("regretting", point, point) for point in ("undo", "undone")}
            await becomes(lambda: _none_alive(fleet), "each has killed its worker in an undo")
            fleet.hire(concurrency=20)
            for point, handle in handles.items():
                with pytest.raises(perdure.RunFailed, match="sold out"):
                    await handle.result(timeout=40)
                rows = await effects(app, handle)
                assert [(row.state, row.attempt) for row in rows] == [(EffectState.UNDONE, 1)] * 3
                assert [row.undo_attempt for row in rows] == [1, 2, 1]
                assert [provider.times(f"undo {point}{number}") for number in (1, 2, 3)] == [1, 1, 1]

    with providers.serving(honours_keys=True) as provider:
        hire_at(fleet, provider)
        asyncio.run(main(provider))


def test_after_random_kills_the_providers_account_and_the_ledger_agree(fleet: Fleet) -> None:
    chance = random.Random()

    async def main(provider: Provider) -> None:
        app = App("charging", store=fleet.store_url)
        app.agent(shopping)
        async with app:
            for worker in [fleet.hire(concurrency=20) for _ in range(WORKERS)]:
                worker.started()
            handles = await asyncio.gather(*(app.start("shopping", f"p{number}") for number in range(RUNS)))
            for kill in range(KILLS):
                wanted = (kill + chance.random()) / KILLS * 0.9 * RUNS * 3
                await becomes(lambda wanted=wanted: _worked(provider, wanted), f"{wanted:.0f} charges")
                chance.choice(fleet.alive).kill()
                fleet.hire(concurrency=20)
            results = [await handle.result(timeout=60) for handle in handles]
            store = (await app._client()).store
            rows: list[Effect] = []
            while page := await store.effects(EffectFilter(after=rows[-1].id if rows else None, limit=1000)):
                rows += page
        assert {row.state for row in rows} == {EffectState.DONE}
        assert sorted(row.idempotency_key for row in rows) == sorted(key for key, _ in provider.work)
        assert len(rows) == 3 * RUNS
        assert sum(len(result) for result in results) == 3 * RUNS
        assert sum(row.attempt for row in rows) > 3 * RUNS, "nobody was killed in an effect"

    with providers.serving(honours_keys=True) as provider:
        hire_at(fleet, provider)
        asyncio.run(main(provider))


async def _worked(provider: Provider, wanted: float) -> bool:
    return len(provider.work) >= wanted
