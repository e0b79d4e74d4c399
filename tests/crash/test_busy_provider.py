"""C24: a provider answers 429 and says when to come again. Nobody comes earlier, in whatever process the run is by
then: an early call is refused once more, and a try is wasted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import App
from perdure.core.records import RunState
from perdure.store.protocol import Store
from tests.support import stores
from tests.support.agents import app_on
from tests.support.processes import Fleet
from tests.support.sidelog import SideLog
from tests.support.waiting import becomes
from tests.support.witness import all_runs

WAIT_S = 2


@pytest.mark.parametrize(("end", "as_date"), [("kill", False), ("drain", True)])
def test_c24_a_wait_that_a_provider_asked_for_outlives_the_worker(
    fleet: Fleet, tmp_path: Path, end: str, as_date: bool
) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            old = fleet.hire().started()
            handle = await app.start("polite", str(tmp_path / "opens"), WAIT_S, as_date)
            await becomes(lambda: _says(fleet.log, "step.retried"), "the first try has failed")
            new = fleet.hire().started()
            old.kill() if end == "kill" else old.drain()
            assert await handle.result(timeout=15) == "answered"

            first, second = fleet.log.lines("begin", run=handle.run_id)
            assert (first["pid"], second["pid"]) == (old.pid, new.pid)
            assert (first["attempt"], second["attempt"]) == (1, 2)
            assert second["at"] - first["at"] >= WAIT_S
            assert old.ended(within_s=5) == (-9 if end == "kill" else 0)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", *stores.PARAMETERS])
def test_c24_an_agent_that_is_tried_again_waits_as_long_as_the_provider_asked_and_holds_no_slot(
    kind: str, tmp_path: Path, log: SideLog
) -> None:
    """Its step has used up its tries; what the provider said is in the step's record."""

    async def main(app: App) -> None:
        async with app:
            store = (await app._client()).store
            handle = await app.start("polite_as_a_whole", str(tmp_path / "opens"), WAIT_S)
            async with app.worker(concurrency=1, poll_s=0.1):
                await becomes(lambda: _waits(store), "the run waits for its time, on disk")
                assert await (await app.start("single", "another")).result(timeout=5) == "ANOTHER"
            async with app.worker(poll_s=0.1):
                assert await handle.result(timeout=15) == "answered"

    asyncio.run(main(app_on("memory://c24" if kind == "memory" else stores.fresh_url(kind, tmp_path))))
    first, second = log.lines("begin", key="ask_provider")
    assert second["at"] - first["at"] >= WAIT_S


def test_c24_a_wait_that_a_provider_asked_for_outlives_the_worker_in_memory(tmp_path: Path, log: SideLog) -> None:
    async def main() -> None:
        async with app_on("memory://c24-restart") as app:
            handle = await app.start("polite", str(tmp_path / "opens"), WAIT_S)
            async with app.worker(poll_s=0.1):
                await becomes(lambda: _first_try_is_recorded(app, handle._id), "the first try has failed")
            async with app.worker(poll_s=0.1):
                assert await handle.result(timeout=15) == "answered"

    asyncio.run(main())
    first, second = log.lines("begin", key="ask_provider")
    assert second["at"] - first["at"] >= WAIT_S


async def _says(log: SideLog, event: str) -> bool:
    return bool(log.events(event))


async def _waits(store: Store) -> bool:
    return [(run.state, run.attempt) for run in await all_runs(store)] == [(RunState.QUEUED, 1)]


async def _first_try_is_recorded(app: App, run: int) -> bool:
    return any(each.error is not None for each in await (await app._client()).store.attempts(run))
