"""A worker that stands still past its lease: a laptop's lid, a paused machine. It must not write afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.core.records import Checkpoint, WorkerState
from perdure.store.protocol import Store
from tests.support.agents import app_on
from tests.support.processes import Fleet, WorkerProcess
from tests.support.waiting import becomes
from tests.support.witness import all_runs

LEASE_S = 1.0
LOCK_S = 0.5


def test_a_stopped_worker_that_was_taken_over_writes_nothing_and_its_code_is_told(fleet: Fleet, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(lease_s=LEASE_S).started()
            goes_on = await app.start("gated", str(first))
            waits = await app.start("gated", str(second))
            await becomes(lambda: _begun(fleet, old, 2), "both bodies run")
            new = fleet.hire(lease_s=LEASE_S).started()
            identity = old.identities[0]

            await _stop_outside_of_a_write(old, store)
            await becomes(lambda: _is_dead(store, identity), "the stopped worker is taken over")
            await becomes(lambda: _begun(fleet, new, 2), "the other worker runs both bodies")
            first.touch()  # so that the old worker, when it wakes, has something to write
            assert await goes_on.result(timeout=10) == "opened AFTER"
            written = await _written_by(store, identity)
            said = len(fleet.log.lines())
            old.wake()
            await becomes(lambda: _was_told(fleet, old), "its code is told")
            await becomes(lambda: _identities(old, 2), "the process works under another identity")
            second.touch()
            assert await waits.result(timeout=10) == "opened AFTER"

            assert await _written_by(store, identity) == written
            told = fleet.log.lines("broken", pid=old.pid, run=waits.run_id)[0]
            assert told["error"] == "CancelledError" and "lease lost" in told["why"]
            since = fleet.log.lines()[said:]
            renewed_at = next(i for i, line in enumerate(since) if line.get("event") == "worker.started")
            assert [line for line in since[:renewed_at] if line["what"] == "begin" and line["pid"] == old.pid] == []
            assert {run.recoveries for run in await all_runs(store)} == {1}

            new.kill()
            assert await (await app.start("single", "go on")).result(timeout=10) == "GO ON"
            assert old.process.poll() is None and len(old.identities) == 2

    asyncio.run(main())


async def _stop_outside_of_a_write(worker: WorkerProcess, store: Store) -> None:
    """Stop it, but not while it holds the lock of a SQLite file: then everybody would wait until it wakes."""
    while True:
        worker.stop()
        try:
            async with asyncio.timeout(LOCK_S):
                await store.reserve_ids(1)
        except TimeoutError:
            worker.wake()
        else:
            return


async def _begun(fleet: Fleet, worker: WorkerProcess, count: int) -> bool:
    return len(fleet.log.lines("begin", pid=worker.pid)) >= count


async def _is_dead(store: Store, worker: int) -> bool:
    return any(row.id == worker and row.state is WorkerState.DEAD for row in await store.workers(alive=False))


async def _was_told(fleet: Fleet, worker: WorkerProcess) -> bool:
    return bool(fleet.log.lines("broken", pid=worker.pid))


async def _identities(worker: WorkerProcess, count: int) -> bool:
    return len(worker.identities) >= count


async def _written_by(store: Store, worker: int) -> list[Checkpoint]:
    """All that this identity has in any log."""
    rows = [row for run in await all_runs(store) for row in await store.checkpoints(run.id)]
    return [row for row in rows if row.worker == worker]
