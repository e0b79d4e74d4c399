"""Runs that kill their workers: attempts are counted before the body, and a run that cannot stop is held."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest

from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import RunState
from perdure.errors import RunHeld
from perdure.store import open_url
from tests.support.agents import app_on
from tests.support.children import run_child
from tests.support.sidelog import VARIABLE, SideLog

LIVES_MAX = 10


def work_until_it_has_ended(log: str, store_url: str, run_id: str) -> None:
    """In a process of its own, which the run may kill."""
    os.environ[VARIABLE] = log

    async def main() -> None:
        async with app_on(store_url) as app, app.worker(lease_s=30, poll_s=0.05):
            try:
                await app.handle(run_id).result(timeout=20)
            except Exception as error:
                print(error)

    asyncio.run(main())


def test_c19_a_crash_in_the_middle_of_every_attempt_is_bounded_by_the_attempts_and_one(
    store_url: str, log: SideLog
) -> None:
    run_id = asyncio.run(_start(store_url))
    for lives in itertools.count(1):
        if run_child(work_until_it_has_ended, str(log.path), store_url, run_id) == 0:
            break
        asyncio.run(_bury(store_url))
        assert lives < LIVES_MAX

    async def main() -> None:
        async with app_on(store_url) as app:
            info = await app.run_info(run_id)
            assert (info.state, info.held_reason) == (RunState.HELD, "exhausted")
            assert "died during try 3" in (info.waiting_for or "")
            await app.release(run_id)

    asyncio.run(main())
    assert run_child(work_until_it_has_ended, str(log.path), store_url, run_id) == -9, "sent on, it is tried again"
    asyncio.run(_bury(store_url))
    attempts = [line["attempt"] for line in log.lines("begin")]
    assert attempts[:4] == [1, 1, 2, 3], "the first try of an undisturbed run is not written ahead: attempts + 1 bodies"
    assert attempts[4:] == [1], "and none after them until a person sent the run on"
    assert lives == 5 <= RECOVERIES_MAX


def test_a_run_that_kills_every_worker_is_held_before_it_runs_again_and_its_neighbours_complete(
    store_url: str, log: SideLog
) -> None:
    async def start() -> tuple[str, list[str]]:
        async with app_on(store_url) as app:
            before = [await app.start("single", f"t{number}") for number in range(10)]
            lethal = await app.start("lethal")
            after = [await app.start("single", f"t{number}") for number in range(10, 20)]
            return lethal.run_id, [handle.run_id for handle in before + after]

    lethal, neighbours = asyncio.run(start())
    for _ in range(RECOVERIES_MAX):
        assert run_child(work_until_it_has_ended, str(log.path), store_url, lethal) == -9
        asyncio.run(_bury(store_url))
    assert run_child(work_until_it_has_ended, str(log.path), store_url, neighbours[-1]) == 0

    async def look() -> None:
        async with app_on(store_url) as app:
            info = await app.run_info(lethal)
            assert (info.state, info.held_reason, info.recoveries) == (RunState.HELD, "poison", RECOVERIES_MAX)
            states = {(await app.run_info(run)).state for run in neighbours}
            assert states == {RunState.COMPLETED}
            with pytest.raises(RunHeld, match=f"perdure release {lethal}"):
                await app.handle(lethal).result(timeout=5)
            assert (await app.release(lethal)).state is RunState.QUEUED

    asyncio.run(look())
    assert len(log.lines("begin", run=lethal)) == RECOVERIES_MAX
    assert run_child(work_until_it_has_ended, str(log.path), store_url, lethal) == -9, "sent on, it runs again"


async def _start(store_url: str) -> str:
    async with app_on(store_url) as app:
        return (await app.start("doomed")).run_id


async def _bury(store_url: str) -> None:
    store = open_url(store_url)
    await store.open()
    await store.take_over([worker.id for worker in await store.workers()], recoveries_max=RECOVERIES_MAX)
    await store.close()
