"""Transactions that the database breaks off, or cannot take now: tried again as their policy says, or later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, Retry, RunFailed, StoreUnavailable, Transaction, telemetry
from perdure.runtime.patience import Pace
from perdure.store.sqlite import SQLiteStore
from tests.runtime.world import working
from tests.support import stores


@pytest.mark.postgres
def test_a_transaction_that_the_database_breaks_off_is_tried_as_its_step_says(tmp_path: Path) -> None:
    app = App("t", store=stores.fresh_url("postgres", tmp_path))
    begun: list[int] = []

    @perdure.transaction(retry=Retry(attempts=3, delay_s=0.01))
    async def end_it(tx: Transaction, times: int) -> int:
        begun.append(1)
        if len(begun) <= times:
            await tx.execute("select pg_terminate_backend(pg_backend_pid())")
        return len(begun)

    @app.agent
    async def agent(times: int) -> int:
        return await end_it(times)

    async def main() -> None:
        async with working(app):
            assert await (await app.start(agent, 2)).result(timeout=20) == 3
            begun.clear()
            handle = await app.start(agent, 100)
            with pytest.raises(RunFailed, match=r"TransactionBroken.*administrator command"):
                await handle.result(timeout=20)
            assert len(begun) == 3
            assert (await handle.status()).attempt == 1

    asyncio.run(main())


def test_a_store_that_is_away_is_waited_for_and_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("t", store=f"sqlite:///{tmp_path}/runs.db")
    transact, failed = SQLiteStore.transact, Pace.failed
    asked: list[int] = []
    pauses: list[float] = []
    told: list[str] = []

    async def away_at_first(self: SQLiteStore, *args: Any) -> Any:
        asked.append(1)
        if len(asked) <= 3:
            raise StoreUnavailable("away")
        return await transact(self, *args)

    def paced(self: Pace, *args: Any) -> float:
        pauses.append(failed(self, *args))
        return pauses[-1]

    monkeypatch.setattr(SQLiteStore, "transact", away_at_first)
    monkeypatch.setattr(Pace, "failed", paced)

    @perdure.transaction
    async def write(tx: Transaction) -> int:
        return await tx.execute("create table mine (a)")

    @app.agent
    async def agent() -> int:
        return await write()

    async def main() -> None:
        async with working(app):
            assert await (await app.start(agent)).result(timeout=20) == 0

    deaf = telemetry.subscribe(
        lambda event, fields: told.append(event) if fields.get("service") == "transactions" else None
    )
    try:
        asyncio.run(main())
    finally:
        deaf()

    assert len(asked) == 4 and len(pauses) == 3
    assert told == ["service.failed", "service.recovered"]


def test_a_run_is_paced_by_what_it_meets_itself() -> None:
    pace = Pace("transactions")
    away = StoreUnavailable("away")

    for _ in range(20):
        slow = pace.failed(1, away)
        pace.succeeded(2)
    first = pace.failed(2, away)

    assert 1.0 <= slow <= 2.0 and first <= 0.05
    pace.succeeded(1)
    assert pace.failed(1, away) <= 0.05
