"""Runs that kill their workers: attempts are counted before the body, and a run that cannot stop is held."""

from __future__ import annotations

import asyncio
import itertools
import os

from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import RunState
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
            assert info.state is RunState.FAILED and info.error is not None
            assert "die" in info.error.message and "3" in info.error.message

    asyncio.run(main())
    attempts = [line["attempt"] for line in log.lines("begin")]
    assert attempts == [1, 1, 2, 3], "the first try of an undisturbed run is not written ahead: attempts + 1 bodies"
    assert lives == len(attempts) + 1 <= RECOVERIES_MAX


async def _start(store_url: str) -> str:
    async with app_on(store_url) as app:
        return (await app.start("doomed")).run_id


async def _bury(store_url: str) -> None:
    store = open_url(store_url)
    await store.open()
    await store.take_over([worker.id for worker in await store.workers()], recoveries_max=RECOVERIES_MAX)
    await store.close()
