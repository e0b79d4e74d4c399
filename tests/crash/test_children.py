"""C40: however a child ends, its parent is told, with a typed ending; it never waits for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import App, Handle
from perdure.core.records import RunState
from tests.support.processes import Fleet, WorkerProcess
from tests.support.waiters import app_on
from tests.support.waiting import becomes
from tests.support.witness import all_runs

PATIENCE_S = 30.0
STRIKES = 2
"""Deaths after which a run is held, here."""


async def child_of(app: App, parent: Handle[object]) -> Handle[object]:
    """The parent's child, once it is there and the parent is parked."""
    store = (await app._client()).store

    async def look() -> list[str]:
        if (await parent.status()).state is not RunState.WAITING:
            return []
        return [f"r{run.id}" for run in await all_runs(store) if run.parent == parent._id]

    (run_id,) = await becomes(look, "the parent waits for its child")
    return app.handle(run_id)


def test_c40_a_child_that_kills_every_worker_that_takes_it_reaches_its_parent_as_held(waiters: Fleet) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire(recoveries_max=STRIKES).started()
            parent = await app.start("guards", "lethal", "deadly")
            child = await child_of(app, parent)
            victims = []
            while (await child.status()).state is not RunState.HELD:
                victims.append(waiters.hire(queues=["deadly"], recoveries_max=STRIKES))
                await becomes(lambda: _dead_or_held(victims[-1], child), "it has killed its worker, or is held")
            ending, said = await parent.result(timeout=PATIENCE_S)
            assert ending == "RunHeld" and child.run_id in said and "poison" in said
            assert (await child.status()).recoveries == STRIKES

    asyncio.run(main())


def test_c40_a_child_whose_worker_died_goes_on_elsewhere_and_its_parent_gets_the_result(
    waiters: Fleet, tmp_path: Path
) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire().started()
            parent = await app.start("guards", "opens", "other", str(tmp_path / "gate"))
            child = await child_of(app, parent)
            doomed = waiters.hire(queues=["other"]).started()
            await becomes(lambda: _begun(waiters, child), "the child is at work")
            doomed.kill()
            (tmp_path / "gate").touch()
            waiters.hire(queues=["other"]).started()
            assert await parent.result(timeout=PATIENCE_S) == ["completed", "opened"]
            assert (await child.status()).recoveries == 1

    asyncio.run(main())


def test_c40_a_child_that_fails_or_is_cancelled_reaches_its_parent_as_that(waiters: Fleet) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire().started()
            failing = await app.start("guards", "fails")
            ending, said = await failing.result(timeout=PATIENCE_S)
            assert ending == "RunFailed" and "the child broke" in said

            sitting = await app.start("guards", "sits")
            child = await child_of(app, sitting)
            assert await child.cancel("nobody needs it") is RunState.CANCELLED
            ending, said = await sitting.result(timeout=PATIENCE_S)
            assert ending == "RunCancelled" and "nobody needs it" in said

    asyncio.run(main())


def test_c40_a_child_that_nobody_has_begun_and_that_is_cancelled_reaches_its_parent(waiters: Fleet) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            waiters.hire().started()
            parent = await app.start("guards", "sits", "served by nobody")
            child = await child_of(app, parent)
            await child.cancel("nobody serves it")
            ending, said = await parent.result(timeout=PATIENCE_S)
            assert ending == "RunCancelled" and "nobody serves it" in said

    asyncio.run(main())


async def _dead_or_held(worker: WorkerProcess, child: Handle[object]) -> bool:
    return worker.process.poll() is not None or (await child.status()).state is RunState.HELD


async def _begun(fleet: Fleet, child: Handle[object]) -> bool:
    return bool(fleet.log.lines("begin", run=child.run_id))
