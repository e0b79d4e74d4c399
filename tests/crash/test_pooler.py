"""C29: workers and clients behind a transaction pooler. Hints and backend locks do not get through; polling and leases
do the same, later."""

from __future__ import annotations

import asyncio

import pytest

from perdure.core.records import RunState
from perdure.store.postgres.address import parse
from tests.support import postgres
from tests.support.agents import app_on, survey_result
from tests.support.pooler import BACKENDS, Pooler, pooler
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

pytestmark = pytest.mark.postgres

RUNS = 40
LEASE_S = 1.0


@pytest.fixture
def store_url() -> str:
    """A schema that the pooler, when it is there, leads to."""
    return postgres.shared().fresh_url()


def test_c29_behind_a_transaction_pooler_runs_are_executed_and_a_dead_worker_is_taken_over(fleet: Fleet) -> None:
    server = postgres.shared()

    async def main() -> None:
        async with pooler(server.directory / f".s.PGSQL.{server.port}") as between:
            fleet.store_url = _through(between, parse(fleet.store_url).schema)
            async with app_on(fleet.store_url) as app:
                old, _ = [fleet.hire(lease_s=LEASE_S, concurrency=10) for _ in range(2)]
                await asyncio.to_thread(old.started)
                handles = await asyncio.gather(
                    *(app.start("survey", number, 50, key=f"k{number}") for number in range(RUNS))
                )
                again = await asyncio.gather(
                    *(app.start("survey", number, 50, key=f"k{number}") for number in range(RUNS))
                )
                assert [handle.run_id for handle in again] == [handle.run_id for handle in handles]
                await becomes(lambda: _begun(fleet, old.pid), "the first worker has begun")
                old.kill()

                results = [await handle.result(timeout=30) for handle in handles]
                assert results == [survey_result(number) for number in range(RUNS)]
                store = (await app._client()).store
                assert {run.state for run in await all_runs(store)} == {RunState.COMPLETED}
                assert len(await store.workers()) == 1
                await nothing_was_repeated_after_its_record(store, fleet.log, killed={old.pid})
            assert min(backend.transactions for backend in between.backends[:BACKENDS]) > 5, "each served anybody"

    asyncio.run(main())


def _through(between: Pooler, schema: str) -> str:
    where = f"postgresql://postgres@127.0.0.1:{between.port}/postgres"
    return f"{where}?sslmode=disable&schema={schema}&pooler=transaction"


async def _begun(fleet: Fleet, pid: int) -> bool:
    return bool(fleet.log.lines("begin", pid=pid))
