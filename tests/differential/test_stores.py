"""Programs give the same visible history in memory, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from perdure.store.postgres import attendance
from perdure.testing.differential import (
    APP,
    STORE,
    Level,
    MemoryGround,
    PostgresGround,
    SQLiteGround,
    differ,
    shortened,
)
from perdure.testing.differential.grounds import StoreGround
from tests.support import postgres

PARTS = range(4)
"""The seeds come in parts, so that they may be told in several processes."""


@pytest.mark.parametrize("part", PARTS)
def test_a_stores_programs_give_on_sqlite_the_history_they_give_in_memory(part: int) -> None:
    alike(STORE, seeds(part, 38), [MemoryGround(), SQLiteGround()])


@pytest.mark.postgres
@pytest.mark.parametrize("part", PARTS)
def test_a_stores_programs_give_on_postgres_the_history_they_give_in_memory(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendance, "RESTART_GRACE_S", 0.0)  # the server started for these tests, with nobody on it

    alike(STORE, seeds(part, 8), [MemoryGround(), PostgresGround(postgres.shared().url())])


@pytest.mark.postgres
@pytest.mark.parametrize("part", PARTS)
def test_an_apps_programs_give_the_same_history_on_every_store(part: int) -> None:
    alike(APP, seeds(part, 5), [MemoryGround(), SQLiteGround(), PostgresGround(postgres.shared().url())])


def seeds(part: int, count: int) -> range:
    return range(part * count, (part + 1) * count)


def alike(level: Level, seeds: Iterable[int], grounds: list[StoreGround]) -> None:
    """Fail with a short program that tells the stores apart, if one of these seeds does."""

    async def main() -> None:
        try:
            for seed in seeds:
                found = await differ(level, seed, grounds)
                if found is not None:
                    short = await shortened(level, found, grounds)
                    pytest.fail(f"{level.name} seed {seed}\n{short.described()}")
        finally:
            for ground in grounds:
                await ground.close()

    asyncio.run(main())
