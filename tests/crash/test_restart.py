"""Postgres goes away (`immediate`: as if its machine had lost power) and comes back; nobody does anything by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from perdure.core.records import Run, RunState
from perdure.store.protocol import Store
from tests.support import postgres
from tests.support.agents import app_on, survey_result
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

pytestmark = [pytest.mark.postgres, pytest.mark.xdist_group("postgres-restart")]

RUNS = 150
LEASE_S = 1.5


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server that these tests stop and start."""
    with postgres.own_server(settings={"recovery_init_sync_method": "syncfs"}) as made:
        yield made


@pytest.fixture
def store_url(server: postgres.Server) -> str:
    return server.fresh_url()


def test_a_database_that_is_restarted_twice_under_load_loses_nothing(server: postgres.Server, fleet: Fleet) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            for worker in [fleet.hire(concurrency=30) for _ in range(2)]:
                worker.started()
            handles = await asyncio.gather(*(app.start("survey", number, 200) for number in range(RUNS)))
            late = []
            for restart in (1, 2):
                await becomes(lambda restart=restart: _is_loaded(fleet, restart), "both workers commit")
                failed = _failed_commits(fleet)
                await asyncio.to_thread(server.stop, "immediate")
                await becomes(lambda failed=failed: _has_failed(fleet, failed), "a commit has failed")
                late.append(asyncio.create_task(app.start("survey", 1000 + restart)))
                await asyncio.to_thread(server.start)
            handles += [await start for start in late]

            results = [await handle.result(timeout=30) for handle in handles]
            assert results == [survey_result(number) for number in (*range(RUNS), 1001, 1002)]
            assert {run.state for run in await all_runs(store)} == {RunState.COMPLETED}
            # A worker may have been taken over without need; what it had in flight then runs once more elsewhere.
            await nothing_was_repeated_after_its_record(store, fleet.log, killed={each.pid for each in fleet.workers})

    asyncio.run(main())
    assert len(fleet.alive) == 2, "no worker gave up"


@pytest.mark.parametrize("count", [50, 250])
def test_c01_a_take_over_that_the_database_dies_in_is_done_again(
    server: postgres.Server, fleet: Fleet, tmp_path: Path, count: int
) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(lease_s=LEASE_S).started()
            handles = await asyncio.gather(*(app.start("gated", str(gate)) for _ in range(count)))
            await becomes(lambda: _begun(fleet, count), "the worker holds all runs")
            fleet.hire(lease_s=LEASE_S).started()

            async with _row_locked(server, fleet.store_url, handles[0].run_id) as blocked:
                old.kill()
                await becomes(blocked, "the take-over has begun, and waits")
                await asyncio.to_thread(server.stop, "immediate")
            assert await asyncio.to_thread(old.ended) == -9
            await asyncio.to_thread(server.start)
            gate.touch()

            assert {await handle.result(timeout=30) for handle in handles} == {"opened AFTER"}
            assert {run.recoveries for run in await all_runs(store)} == {1}
            assert await nothing_was_repeated_after_its_record(store, fleet.log, killed={old.pid}) == count
            assert await _in_state(store, RunState.COMPLETED, count)

    asyncio.run(main())
    taken = fleet.log.events("worker.taken_over")
    assert [line["fields"]["requeued"] for line in taken] == [str(count)]


class _row_locked:  # noqa: N801  # reads as what it does
    """Hold a run's row, so that a take-over of its worker stands in the middle of its transaction."""

    def __init__(self, server: postgres.Server, url: str, run_id: str) -> None:
        self._dsn = server.url().partition("&schema")[0]
        self._schema = url.rpartition("schema=")[2]
        self._run = int(run_id[1:])

    async def __aenter__(self):  # type: ignore[no-untyped-def]
        self._holder = await asyncpg.connect(self._dsn)
        self._looker = await asyncpg.connect(self._dsn)
        await self._holder.execute("begin")
        await self._holder.execute(f"select from {self._schema}.runs where id = {self._run} for update")
        return self._blocked

    async def __aexit__(self, *exc: object) -> None:
        self._holder.terminate()
        self._looker.terminate()

    async def _blocked(self) -> bool:
        return bool(
            await self._looker.fetchval(
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%take_over%'"
            )
        )


async def _begun(fleet: Fleet, count: int) -> bool:
    return fleet.log.count("begin") >= count


def _failed_commits(fleet: Fleet) -> int:
    return sum(line["fields"]["service"] == "committer" for line in fleet.log.events("service.failed"))


async def _has_failed(fleet: Fleet, before: int) -> bool:
    return _failed_commits(fleet) > before


async def _is_loaded(fleet: Fleet, restart: int) -> bool:
    """Both workers execute, and have got over the restart before."""
    recovered = [line for line in fleet.log.events("service.recovered") if line["fields"]["service"] == "committer"]
    return fleet.log.count("end") >= restart * 200 and len({line["pid"] for line in recovered}) >= 2 * (restart - 1)


async def _in_state(store: Store, state: RunState, count: int) -> list[Run]:
    found = [run for run in await all_runs(store) if run.state is state]
    return found if len(found) == count else []
