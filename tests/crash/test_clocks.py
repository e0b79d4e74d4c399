"""Workers whose clocks are wrong: due times and leases are compared on the store's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.store.protocol import Store
from tests.support import processes
from tests.support.agents import app_on, survey_result
from tests.support.processes import Fleet
from tests.support.serving import follow_clock
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


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock of the machine that this test's processes are on."""
    path = tmp_path / "machine-clock"

    def set_clock(off_s: float) -> None:
        new = path.with_suffix(".new")
        new.write_text(str(off_s))
        new.rename(path)

    set_clock(0)
    monkeypatch.setenv("PERDURE_TEST_MACHINE_CLOCK", str(path))
    monkeypatch.setattr(time, "time", time.time)
    monkeypatch.setattr(time, "time_ns", time.time_ns)
    follow_clock(path)
    return set_clock


@pytest.mark.parametrize("step_s", [-7200, 600])
def test_c10_a_machine_whose_clock_is_set_while_workers_work_starts_nothing_late_and_loses_no_worker(
    machine: Callable[[float], None], tmp_path: Path, step_s: float
) -> None:
    """On a file the machine's clock decides. (A Postgres server has its own, on its own machine.)"""
    with processes.fleet(f"sqlite:///{tmp_path / 'runs.db'}", tmp_path) as fleet:

        async def main() -> None:
            async with app_on(fleet.store_url) as app:
                for worker in [fleet.hire(lease_s=LEASE_S, concurrency=10) for _ in range(2)]:
                    await asyncio.to_thread(worker.started)
                store = (await app._client()).store
                before = await app.start("single", "before", delay=DELAY_S)
                handles = [await app.start("survey", number, 50) for number in range(20)]
                began, began_us = time.monotonic(), await store.now_us()
                machine(step_s)
                after = await app.start("single", "after", delay=DELAY_S)
                handles += [await app.start("survey", number, 50) for number in range(20, 40)]

                assert [await handle.result(timeout=20) for handle in handles] == [survey_result(n) for n in range(40)]
                assert (await before.result(timeout=10), await after.result(timeout=10)) == ("BEFORE", "AFTER")
                assert time.monotonic() - began < 10, "nobody waited for the clock"
                ends = began_us + max(step_s, 0) * 1e6 + 2 * LEASE_S * 1e6
                await becomes(lambda: _past(store, int(ends)), "leases had time to run out")

                assert {run.recoveries for run in await all_runs(store)} == {0}
                assert all(len(worker.identities) == 1 for worker in fleet.workers), "nobody was taken over"
                fleet.workers[0].kill()
                await becomes(lambda: _is_dead(store, fleet.workers[0].identities[0]), "a death is seen as ever")

        asyncio.run(main())


async def _is_dead(store: Store, worker: int) -> bool:
    return all(row.id != worker for row in await store.workers())


async def _past(store: Store, time_us: int) -> bool:
    return await store.now_us() > time_us
