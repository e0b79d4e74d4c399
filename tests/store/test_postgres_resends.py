"""A write whose answer did not come, and that is still under way when it is sent again."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from perdure.core.records import RunState
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from perdure.testing.conformance.harness import Bench, Harness, attempt, end, requeue, step
from tests.support import postgres
from tests.support.waiting import becomes

pytestmark = pytest.mark.postgres


class Fresh(Harness):
    """Stores on a schema of their own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def store(self) -> PostgresStore:
        return PostgresStore(self.url)


def test_a_late_copy_of_a_batch_cannot_take_a_run_from_its_next_owner() -> None:
    asyncio.run(_main())


async def _main() -> None:
    server = postgres.shared()
    harness = Fresh(server.fresh_url())
    schema = parse(harness.url).schema
    store = await harness.open_store()
    bench = Bench(harness, store)
    other = await asyncpg.connect(host=str(server.directory), port=server.port, user="postgres", database="postgres")
    run = await bench.start()
    first, second = await bench.worker(), await bench.worker()
    (claimed,) = await bench.claim(first)
    batch = [attempt(claimed, "k"), requeue(claimed)]

    # Somebody's transaction makes the copy wait between its look at the fence and its write; then its client is gone.
    stall = other.transaction()
    await stall.start()
    await other.execute(
        f'insert into "{schema}".attempts (run, fence, started_at, super_step, attempt, key) '
        f"values ({run}, {claimed.fence}, 0, {claimed.super_step}, 1, 'k')"
    )
    late = asyncio.create_task(store.commit(first, batch))
    await _waiting(server, schema, 1)
    late.cancel()
    await asyncio.wait([late])
    again = asyncio.create_task(store.commit(first, [requeue(claimed)]))
    await asyncio.wait([again, asyncio.create_task(_waiting(server, schema, 2))], return_when=asyncio.FIRST_COMPLETED)
    if again.done():  # it did not wait: so let the run have its next owner before the late copy goes on
        (taken,) = await bench.claim(second)
    await stall.rollback()
    await again
    if (await bench.run(run)).state is RunState.QUEUED:
        (taken,) = await bench.claim(second)
    await _waiting(server, schema, 0)

    await bench.commit(second, step(taken, "s"))
    await bench.commit(second, end(taken))
    assert (await bench.run(run)).state is RunState.COMPLETED
    assert list(await bench.steps(run)) == ["s"]
    await other.close()
    await bench.close()


async def _waiting(server: Any, schema: str, count: int) -> None:
    """Until so many sessions wait for a lock."""
    watch = await asyncpg.connect(host=str(server.directory), port=server.port, user="postgres", database="postgres")

    async def as_many() -> bool:
        question = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0"
        found: int = await watch.fetchval(question, schema)
        return found >= count if count else not found

    try:
        await becomes(as_many, f"{count} sessions wait for a lock")
    finally:
        await watch.close()
