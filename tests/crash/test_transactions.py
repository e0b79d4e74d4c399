"""Transactions under `kill -9`: the user's own rows and the record of the step, both or neither, once."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
from typing import Any

import asyncpg
import pytest

from perdure import App
from perdure.store.postgres.address import parse
from tests.support.moving import POINTS, TABLE, app_on
from tests.support.processes import Fleet
from tests.support.waiting import becomes

RUNS = int(os.environ.get("PERDURE_TEST_MOVES", "60"))
KILLS = 50 if RUNS >= 1000 else 8
WORKERS = 3


async def rows_of(url: str, sql: str) -> list[tuple[Any, ...]]:
    """What this says, beside perdure."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)
        try:
            with connection:
                return connection.execute(sql).fetchall()
        finally:
            connection.close()
    postgres = await asyncpg.connect(parse(url).dsn)
    try:
        return [tuple(row) for row in await postgres.fetch(sql)]
    finally:
        await postgres.close()


@pytest.fixture
def movers(fleet: Fleet) -> Fleet:
    fleet.extra |= {"PERDURE_TEST_AGENTS": "tests.support.moving", TABLE: table_of(fleet)}
    return fleet


def table_of(fleet: Fleet) -> str:
    """The user's own table: on Postgres, where all tests have one database, in the schema of this one's store."""
    sqlite = fleet.store_url.startswith("sqlite")
    return "moves" if sqlite else f'"{parse(fleet.store_url).schema}".moves'


async def create(fleet: Fleet) -> None:
    await rows_of(fleet.store_url, f"create table {table_of(fleet)} (who text not null, number integer not null)")


def test_whatever_the_point_of_a_kill_each_move_is_made_once(movers: Fleet) -> None:
    async def main(app: App) -> None:
        async with app:
            await create(movers)
            for _ in POINTS:
                movers.hire(concurrency=1)
            handles = [await app.start("moving", point, point) for point in POINTS]
            await becomes(lambda: _dead(movers, len(POINTS)), "each point has killed a worker")
            movers.hire(concurrency=20)
            for handle in handles:
                assert await handle.result(timeout=40) == [1, 2, 3]
        found = await rows_of(movers.store_url, f"select who, number from {table_of(movers)} order by who, number")
        assert found == sorted((point, number) for point in POINTS for number in range(3))

    asyncio.run(main(app_on(movers.store_url)))


async def _dead(fleet: Fleet, count: int) -> bool:
    return len(fleet.workers) - len(fleet.alive) >= count


def test_after_random_kills_every_move_is_made_once(movers: Fleet) -> None:
    chance = random.Random()

    async def main(app: App) -> None:
        async with app:
            await create(movers)
            for worker in [movers.hire(concurrency=20) for _ in range(WORKERS)]:
                worker.started()
            handles = await asyncio.gather(*(app.start("moving", f"p{number}") for number in range(RUNS)))
            for kill in range(KILLS):
                wanted = int((kill + chance.random()) / KILLS * 0.9 * RUNS * 3)
                await becomes(lambda wanted=wanted: _moved(movers, wanted), f"{wanted} moves")
                chance.choice(movers.alive).kill()
                movers.hire(concurrency=20)
            for handle in handles:
                assert await handle.result(timeout=40) == [1, 2, 3]
        sums = f"select count(*), count(distinct who || '/' || number) from {table_of(movers)}"
        assert await rows_of(movers.store_url, sums) == [(3 * RUNS, 3 * RUNS)]

    asyncio.run(main(app_on(movers.store_url)))


async def _moved(fleet: Fleet, wanted: int) -> bool:
    [(count,)] = await rows_of(fleet.store_url, f"select count(*) from {table_of(fleet)}")
    return bool(count >= wanted)
