"""Slots: a worker of `concurrency=3` executes three runs at a time, whatever dies or is lost on the way to each, and
what is in its hands is what it executes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import App
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Run, RunState
from perdure.runtime.worker import Worker
from perdure.store.protocol import Store
from tests.support import stores
from tests.support.agents import app_on
from tests.support.children import run_children
from tests.support.faults import MOMENTS, Fault, FaultyStore, Moment
from tests.support.processes import Fleet
from tests.support.sidelog import VARIABLE, SideLog
from tests.support.waiting import becomes
from tests.support.witness import all_runs

SLOTS = 3
RUNS = 8

WAYS = [
    Fault(nth, moment, verbs=frozenset({verb})) for verb in ("claim", "commit") for nth in (1, 2) for moment in MOMENTS
]
"""Before and after a slot is taken, the runs are marked, a body is dispatched, a step and a run are finished."""


def work_and_die(log: str, store_url: str, queue: str, fault: Fault) -> None:
    """In a process of its own: three slots, and one of its writes is its last."""
    os.environ[VARIABLE] = log

    async def main() -> None:
        app = app_on(store_url)
        app._store = FaultyStore(app._store, fault)  # type: ignore[assignment]
        async with app, app.worker(queues=[queue], concurrency=SLOTS, lease_s=30, poll_s=0.05):
            await asyncio.get_running_loop().create_future()

    asyncio.run(main())


def test_c23_after_a_kill_between_any_two_moves_of_a_slot_as_many_runs_execute_as_there_are_slots(
    store_url: str, log: SideLog, tmp_path: Path
) -> None:
    gates = {f"queue-{number}": tmp_path / f"gate-{number}" for number in range(len(WAYS))}

    async def start() -> None:
        async with app_on(store_url) as app:
            for queue, gate in gates.items():
                gate.touch()
                for _ in range(RUNS):
                    await app.start("gated", str(gate), queue=queue)

    async def look() -> None:
        async with app_on(store_url) as app:
            store = (await app._client()).store
            await store.take_over([worker.id for worker in await store.workers()], recoveries_max=RECOVERIES_MAX)
            for queue, gate in gates.items():
                gate.unlink()
                async with app.worker(queues=[queue], concurrency=SLOTS, lease_s=30, poll_s=0.05) as worker:
                    await _three_execute_and_then_all_complete(store, worker, queue, gate)

    asyncio.run(start())
    arguments = [(str(log.path), store_url, queue, fault) for queue, fault in zip(gates, WAYS, strict=True)]
    assert run_children(work_and_die, arguments) == [-9] * len(WAYS)
    asyncio.run(look())


def test_c23_a_survivor_takes_over_no_more_than_its_slots_hold(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old, new = (fleet.hire(concurrency=SLOTS).started() for _ in range(2))
            handles = [await app.start("gated", str(gate)) for _ in range(3 * SLOTS)]
            await becomes(lambda: _count(fleet, 2 * SLOTS), "both workers have their slots full")
            assert len(await _in_hand(store)) == 2 * SLOTS

            old.kill()
            await becomes(lambda: _dead(store, old.identities[0]), "the dead one is taken over")
            in_hand = await _in_hand(store)
            assert {run.worker for run in in_hand} == {new.identities[0]} and len(in_hand) == SLOTS
            assert len(fleet.log.lines("begin", pid=new.pid)) == SLOTS, "it dispatched nothing past its slots"

            gate.touch()
            assert {await handle.result(timeout=15) for handle in handles} == {"opened AFTER"}
            assert await _in_hand(store) == []

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", *stores.PARAMETERS])
@pytest.mark.parametrize("moment", ["before", "lost"])
@pytest.mark.parametrize("verb", ["claim", "commit"])
def test_c23_a_write_whose_answer_is_lost_costs_no_slot(kind: str, verb: str, moment: Moment, tmp_path: Path) -> None:
    """Runs that the worker owns and never heard of are given back; until then they would wait for ever."""
    gate = tmp_path / "gate"
    url = f"memory://slots-{verb}-{moment}" if kind == "memory" else stores.fresh_url(kind, tmp_path)

    async def main(app: App) -> None:
        store = FaultyStore(app._store, Fault(1, moment, dies=False, verbs=frozenset({verb})))
        app._store = store  # type: ignore[assignment]
        async with app:
            handles = [await app.start("gated", str(gate), queue="q") for _ in range(RUNS)]
            async with app.worker(queues=["q"], concurrency=SLOTS, poll_s=0.05) as worker:
                sound = store.inner.clone()
                await sound.open()
                await _three_execute_and_then_all_complete(sound, worker, "q", gate)
                await sound.close()
                assert store.calls
                assert {await handle.result(timeout=15) for handle in handles} == {"opened AFTER"}

    asyncio.run(main(app_on(url)))


async def _three_execute_and_then_all_complete(store: Store, worker: Worker, queue: str, gate: Path) -> None:
    """With the gate closed, three slots are in use and three rows say so; with it open, nothing is left."""

    async def full() -> bool:
        owners = [run.worker for run in await _in_hand(store, queue)]
        return worker.running == SLOTS and owners == [worker.id] * SLOTS

    async def done() -> bool:
        states = {run.state for run in await all_runs(store) if run.queue == queue}
        return states == {RunState.COMPLETED} and worker.running == 0

    await becomes(full, f"three slots and three rows are in use in {queue}")
    gate.touch()
    await becomes(done, f"nothing is left in {queue}")


async def _in_hand(store: Store, queue: str = "default") -> list[Run]:
    return [run for run in await all_runs(store) if run.state is RunState.RUNNING and run.queue == queue]


async def _count(fleet: Fleet, begins: int) -> bool:
    return fleet.log.count("begin") >= begins


async def _dead(store: Store, worker: int) -> bool:
    return all(row.id != worker for row in await store.workers())
