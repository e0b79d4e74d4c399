"""The names of threads by their numbers: in one query."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.core import limits
from perdure.runtime import awaited
from perdure.runtime.awaited import thread_names
from tests.runtime.world import fresh_app


@pytest.mark.parametrize(("page", "queries"), [(limits.LIST_ROWS_MAX, 1), (3, 8)])
def test_threads_are_looked_up_together(monkeypatch: pytest.MonkeyPatch, page: int, queries: int) -> None:
    app = fresh_app()
    asked: list[int] = []

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            for number in range(20):
                await app.start(agent, thread_id=f"t{number}")
            store = (await app._client()).store
            rows = {row.id: row.thread_id for row in await store.list_threads(limit=100)}
            list_threads = store.list_threads

            async def counted(**given: Any) -> Any:
                asked.append(given["limit"])
                return await list_threads(**given)

            monkeypatch.setattr(store, "list_threads", counted)
            monkeypatch.setattr(awaited, "LIST_ROWS_MAX", page)
            assert await thread_names(store, rows) == rows
            assert len(asked) <= queries
            assert await thread_names(store, [max(rows) + 5, min(rows)]) == {min(rows): rows[min(rows)]}
            assert await thread_names(store, [10**9]) == {}
            assert await thread_names(store, []) == {}

    asyncio.run(main())
