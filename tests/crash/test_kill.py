"""`kill -9`, at random moments, of workers that have their hands full."""

from __future__ import annotations

import asyncio
import random

from perdure.core.records import RunState
from tests.support.agents import SURVEY_STEPS, app_on, survey_result
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import FenceWatch, all_runs, nothing_was_repeated_after_its_record, records

WORKERS = 3
RUNS = 200
KILLS = 10


def test_after_ten_kills_of_random_workers_every_run_has_completed_and_no_record_was_made_twice(fleet: Fleet) -> None:
    chance = random.Random()

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            for worker in [fleet.hire(concurrency=40) for _ in range(WORKERS)]:
                worker.started()
            handles = await asyncio.gather(*(app.start("survey", number, 150) for number in range(RUNS)))
            store = (await app._client()).store
            fences = FenceWatch(store)
            watching = asyncio.create_task(fences.watch())

            killed = set[int]()
            for kill in range(KILLS):
                # The moment: when a random further number of records has been made.
                wanted = (kill + chance.random()) / KILLS * 0.8 * RUNS * SURVEY_STEPS
                await becomes(lambda wanted=wanted: _ended(fleet, wanted), f"{wanted:.0f} bodies have ended")
                victim = chance.choice(fleet.alive)
                victim.kill()
                killed.add(victim.pid)
                fleet.hire(concurrency=40)

            results = [await handle.result(timeout=30) for handle in handles]
            watching.cancel()
            runs = await all_runs(store)

            assert results == [survey_result(number) for number in range(RUNS)]
            assert {run.state for run in runs} == {RunState.COMPLETED}
            assert sum(run.recoveries for run in runs) > 0, "nobody was killed while it had a run"
            assert len(await records(store, runs)) == RUNS * SURVEY_STEPS
            assert fences.samples > KILLS and fences.fell == []
            assert await nothing_was_repeated_after_its_record(store, fleet.log, killed=killed) > 0

    asyncio.run(main())


async def _ended(fleet: Fleet, wanted: float) -> bool:
    return fleet.log.count("end") >= wanted
