"""One app on many event loops, as in programs that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure import App
from tests.support import stores

LOOPS = 5


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    """An app with one agent."""
    memory = request.param == "memory"
    app = App("test", store=f"memory://{tmp_path.name}" if memory else stores.fresh_url(request.param, tmp_path))

    @app.agent
    async def idle(number: int) -> int:
        return number

    return app


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # a socket without its loop is closed as it is dropped
def test_loops_that_close_without_the_app_leave_one_open_store_at_most(app: App) -> None:
    before = threading.active_count()
    counts = []
    for number in range(LOOPS):
        asyncio.run(app.start("idle", number))
        counts.append(threading.active_count() - before)
        assert len(app._clients) == 1
        gc.collect()
    assert max(counts) <= max(counts[0], 1)

    async def all_of_them() -> int:
        async with app:
            return len(await app.runs())

    assert asyncio.run(all_of_them()) == LOOPS
    gc.collect()
    assert not app._clients
    assert threading.active_count() <= before  # one that an earlier test has left may have ended meanwhile


def test_many_threads_each_with_its_loop_start_runs_of_one_app(app: App) -> None:
    async def start(number: int) -> str:
        async with app:
            return (await app.start("idle", number)).run_id

    with ThreadPoolExecutor(LOOPS) as threads:
        runs = list(threads.map(lambda number: asyncio.run(start(number)), range(4 * LOOPS)))
    assert len(set(runs)) == 4 * LOOPS
    assert not app._clients
