"""Workers whose clocks are wrong: due times and leases are compared on the store's clock."""

from __future__ import annotations

import asyncio

from perdure.store.protocol import Store
from tests.support.agents import app_on, survey_result
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

OFF_S = 600
DELAY_S = 0.7
LEASE_S = 0.8


def test_c10_clocks_ten_minutes_ahead_and_behind_start_nothing_early_and_steal_nothing(fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            ahead = fleet.hire(clock_s=OFF_S, lease_s=LEASE_S, concurrency=10)
            behind = fleet.hire(clock_s=-OFF_S, lease_s=LEASE_S, concurrency=10)
            for worker in (ahead, behind):
                worker.started()
            began_us = await store.now_us()
            due = await app.start("single", "late", delay=DELAY_S)
            handles = [await app.start("survey", number, 50) for number in range(40)]
            assert [await handle.result(timeout=20) for handle in handles] == [survey_result(n) for n in range(40)]
            assert await due.result(timeout=10) == "LATE"
            await becomes(lambda: _past(store, began_us + int(2 * LEASE_S * 1e6)), "leases had time to run out")

            runs = await all_runs(store)
            (late,) = [run for run in runs if run.id == due._id]
            assert late.started_at is not None and late.started_at - late.created_at >= DELAY_S * 1e6, "not early"
            assert late.started_at - late.created_at < (DELAY_S + 5) * 1e6, "nor ten minutes late"
            assert {run.recoveries for run in runs} == {0} and len(ahead.identities) == len(behind.identities) == 1
            assert await nothing_was_repeated_after_its_record(store, fleet.log) == 0
            assert {line["pid"] for line in fleet.log.lines("begin")} == {ahead.pid, behind.pid}, "both took part"

    asyncio.run(main())


async def _past(store: Store, time_us: int) -> bool:
    return await store.now_us() > time_us
