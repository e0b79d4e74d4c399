"""What agents do all day, and what befalls them: a tool that charges, a model that fails, usage that is counted, and
steps that say nothing for a long time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import perdure
from perdure import App, Retry, RunFailed, StepFailed
from perdure.core.limits import RECOVERIES_MAX
from perdure.errors import RunHeld
from perdure.store.protocol import Store
from tests.support import stores
from tests.support.agents import Usage, app_on
from tests.support.children import run_children
from tests.support.faults import Fault, FaultyStore
from tests.support.processes import Fleet
from tests.support.sidelog import VARIABLE, SideLog
from tests.support.waiting import becomes

LEASE_S = 0.5

DEATHS_MIN = 8
"""How writes are grouped depends on the moment; at least so many points there are."""


# -- a tool that succeeds, then a call that fails ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", *stores.PARAMETERS])
def test_c32_an_agent_that_is_tried_again_starts_at_the_call_that_failed_with_the_recorded_charge(
    kind: str, tmp_path: Path
) -> None:
    charges: list[str] = []
    calls: list[str] = []
    app = App("shop", store="memory://c32" if kind == "memory" else stores.fresh_url(kind, tmp_path))

    @perdure.step
    async def charge(customer: str) -> str:
        charges.append(customer)
        return f"receipt {len(charges)}"

    @perdure.step(retry=1)
    async def ask_model(prompt: str) -> str:
        calls.append(prompt)
        if len(calls) < 3:
            raise ConnectionError("the model is away")
        return prompt.upper()

    @app.agent(retry=Retry(attempts=3, delay_s=0.01, retry_on=StepFailed))
    async def buy(customer: str) -> str:
        return await ask_model(await charge(customer))

    async def main() -> None:
        async with app, app.worker(poll_s=0.05):
            handle = await app.start(buy, "Ada")
            assert await handle.result(timeout=15) == "RECEIPT 1"
            assert (await handle.status()).attempt == 3

    asyncio.run(main())
    assert (charges, calls) == (["Ada"], ["receipt 1"] * 3)


def test_c32_an_agent_that_a_person_sends_on_charges_once_whatever_dies_meanwhile(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "failures"
    folder.mkdir()

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            old = fleet.hire().started()
            handle = await app.start("buying", "Ada", str(folder))
            for _ in range(2):
                with pytest.raises(RunFailed, match="the model is away"):
                    await handle.result(timeout=15)
                await app.retry(handle.run_id)
            await becomes(lambda: _begins(fleet.log, "complete", 3), "the third call is under way")
            old.kill()
            new = fleet.hire().started()
            Path(f"{folder}.gate").touch()
            assert await handle.result(timeout=15) == "RECEIPT OF ADA"

            (charged,) = fleet.log.lines("begin", key="charge")
            assert charged["pid"] == old.pid
            assert [line["pid"] for line in fleet.log.lines("begin", key="complete")] == [old.pid] * 3 + [new.pid]
            assert sum(row.key == "charge" for row in await handle.history()) == 1

    asyncio.run(main())


# -- steps that say nothing for a long time ------------------------------------------------------------------


def test_c38_a_step_may_be_silent_for_as_long_as_its_own_limit_allows_and_another_has_another(
    fleet: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            for worker in [fleet.hire(lease_s=LEASE_S) for _ in range(2)]:
                worker.started()
            store = (await app._client()).store
            silent = await app.start("patient", str(gate))
            with pytest.raises(RunFailed, match="TimeoutError"):
                await (await app.start("impatient", str(gate))).result(timeout=15)
            until = await store.now_us() + int(3 * LEASE_S * 1_000_000)
            await becomes(lambda: _past(store, until), "it has been silent for three leases")
            gate.touch()
            assert await silent.result(timeout=15) == "opened"
            info = await silent.status()
            assert (info.attempt, info.recoveries) == (1, 0)
            assert len(fleet.log.lines("begin", run=silent.run_id)) == 1

    asyncio.run(main())


def test_c38_after_two_identical_kills_the_run_waits_for_a_person(fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            handle = await app.start("lethal")
            for _ in range(2):
                assert await asyncio.to_thread(fleet.hire(recoveries_max=2).ended) == -9
            survivor = fleet.hire(recoveries_max=2).started()
            with pytest.raises(RunHeld, match=f"poison.*perdure release {handle.run_id}"):
                await handle.result(timeout=15)
            assert len(fleet.log.lines("begin", run=handle.run_id)) == 2, "it does not loop"
            assert await (await app.start("single", "go on")).result(timeout=15) == "GO ON"
            assert survivor.process.poll() is None

            await app.release(handle.run_id)
            assert await asyncio.to_thread(survivor.ended) == -9, "sent on, it is executed again"

    asyncio.run(main())


# -- usage ---------------------------------------------------------------------------------------------------


async def spend_on(store_url: str, name: str, *faults: Fault) -> tuple[Usage, int]:
    """Start the run of that thread and queue, or find it, and work until it has ended: its usage, and the writes."""
    app = app_on(store_url)
    store = FaultyStore(app._store, *faults)
    app._store = store  # type: ignore[assignment]
    async with app, app.worker(queues=[name], lease_s=30, poll_s=0.05):
        handle = await app.start("spending", 3, key=name, thread_id=name, queue=name)
        usage = await handle.result(timeout=20)
        assert await app.thread(name).state() == usage, "the thread's state has counted the same"
        return usage, store.calls


def spend_in_a_child(log: str, store_url: str, name: str, fault: Fault) -> None:
    """The same, as the main function of a process."""
    os.environ[VARIABLE] = log
    asyncio.run(spend_on(store_url, name, fault))


def test_c39_usage_that_steps_record_adds_up_to_the_same_wherever_the_process_died(
    store_url: str, log: SideLog
) -> None:
    usage, writes = asyncio.run(spend_on(store_url, "undisturbed"))
    assert usage == Usage(calls=6, tokens=2 * 1000 + 3 * (10 + 20) + 2 * (0 + 1 + 2))
    points = {f"lost-{nth}": Fault(nth, "lost") for nth in range(1, writes + 1)}

    codes = run_children(spend_in_a_child, [(str(log.path), store_url, *point) for point in points.items()])
    assert codes.count(-9) >= DEATHS_MIN and set(codes) <= {0, -9}

    async def recover() -> list[Usage]:
        async with app_on(store_url) as app:
            store = (await app._client()).store
            await store.take_over([worker.id for worker in await store.workers()], recoveries_max=RECOVERIES_MAX)
        return [(await spend_on(store_url, name))[0] for name in points]

    assert asyncio.run(recover()) == [usage] * len(points)


async def _begins(log: SideLog, key: str, count: int) -> bool:
    return len(log.lines("begin", key=key)) >= count


async def _past(store: Store, time_us: int) -> bool:
    return await store.now_us() > time_us
