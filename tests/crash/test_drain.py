"""Going away in good order: SIGTERM hands back what waits, lets what runs finish, and strands nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.core.records import Run, RunState, WorkerState
from perdure.store.protocol import Store
from tests.support.agents import app_on
from tests.support.processes import Fleet
from tests.support.waiting import becomes
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record


def test_c08_a_draining_worker_gives_back_at_once_what_waits_and_lets_four_bodies_finish(
    fleet: Fleet, tmp_path: Path
) -> None:
    gate, later = tmp_path / "gate", tmp_path / "later"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire().started()
            idle = await asyncio.gather(*(app.start("idling", str(later)) for _ in range(96)))
            busy = await asyncio.gather(*(app.start("gated", str(gate)) for _ in range(4)))
            await becomes(lambda: _said(fleet, 100), "100 runs are in hand")
            await becomes(lambda: _ended(fleet, 96), "96 of them wait in their own code")

            old.drain()
            given_back = await becomes(lambda: _in_state(store, RunState.QUEUED, 96), "96 runs are given back")
            assert {run.agent for run in given_back} == {"idling"}
            assert {(run.attempt, run.recoveries, run.strikes) for run in given_back} == {(1, 0, 0)}
            assert old.process.poll() is None, "the four bodies still run"
            assert len(await _in_state(store, RunState.RUNNING, 4)) == 4

            gate.touch()
            assert old.ended() == 0
            finished = await _records_of(store, "hold_open")
            assert finished == 4, "what the bodies made in the grace period is recorded"
            assert [worker.state for worker in await store.workers(alive=False)] == [WorkerState.STOPPED]

            later.touch()
            fleet.hire().started()
            assert {await handle.result(timeout=15) for handle in idle} == {"IDLE BEFORE IDLE AFTER"}
            assert {await handle.result(timeout=15) for handle in busy} == {"opened AFTER"}
            assert await nothing_was_repeated_after_its_record(store, fleet.log) == 0

    asyncio.run(main())


def test_a_second_sigterm_hands_everything_back_at_once(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(grace_s=600).started()
            handles = [await app.start("gated", str(gate)) for _ in range(3)]
            await becomes(lambda: _said(fleet, 3), "three bodies run")

            old.drain()
            await becomes(lambda: _reported(fleet, "worker.draining"), "it drains")
            old.drain()
            assert old.ended(within_s=5) == 0
            runs = await all_runs(store)
            assert {(run.state, run.ready, run.recoveries, run.strikes) for run in runs} == {
                (RunState.QUEUED, True, 0, 0)
            }
            assert len(fleet.log.lines("broken", error="CancelledError")) == 3, "the bodies are told"

            gate.touch()
            fleet.hire().started()
            assert {await handle.result(timeout=15) for handle in handles} == {"opened AFTER"}

    asyncio.run(main())


def test_after_the_grace_period_bodies_in_flight_are_handed_back_all_the_same(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(grace_s=0.3).started()
            handle = await app.start("gated", str(gate))
            await becomes(lambda: _said(fleet, 1), "the body runs")
            old.drain()
            assert old.ended(within_s=5) == 0
            (run,) = await all_runs(store)
            assert (run.state, run.recoveries) == (RunState.QUEUED, 0)
            gate.touch()
            fleet.hire().started()
            assert await handle.result(timeout=15) == "opened AFTER"

    asyncio.run(main())


def test_c02_a_worker_that_drains_beside_a_new_one_of_the_same_name_claims_nothing(
    fleet: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(name="blue").started()
            held = await app.start("gated", str(gate))
            await becomes(lambda: _said(fleet, 1), "the old one has a body in flight")
            old.drain()
            await becomes(lambda: _reported(fleet, "worker.draining"), "it drains")
            new = fleet.hire(name="blue").started()

            handles = [await app.start("single", f"t{number}") for number in range(30)]
            assert [await handle.result(timeout=15) for handle in handles] == [f"T{number}" for number in range(30)]
            assert {line["pid"] for line in fleet.log.lines("begin", key="note")} == {new.pid}
            gate.touch()
            assert old.ended() == 0
            assert await held.result(timeout=15) == "opened AFTER"
            rows = await store.workers(alive=False)
            assert [(row.name, row.state) for row in rows] == [
                ("blue", WorkerState.STOPPED),
                ("blue", WorkerState.ALIVE),
            ]

    asyncio.run(main())


def test_c03_a_worker_that_drains_for_longer_than_its_lease_keeps_what_it_executes(
    fleet: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            old = fleet.hire(lease_s=0.5).started()
            held = await app.start("gated", str(gate))
            await becomes(lambda: _said(fleet, 1), "the body runs")
            fleet.hire(lease_s=0.5).started()
            old.drain()
            await becomes(lambda: _reported(fleet, "worker.draining"), "it drains")
            (drained_at, first_lease) = await store.now_us(), (await store.workers())[0].lease_until
            await becomes(lambda: _past(store, drained_at + 1_500_000), "three leases have passed on the store's clock")
            assert (await store.workers())[0].lease_until > first_lease
            assert (await held.status()).recoveries == 0
            gate.touch()
            assert old.ended() == 0
            assert await held.result(timeout=15) == "opened AFTER"
            assert await nothing_was_repeated_after_its_record(store, fleet.log) == 0

    asyncio.run(main())


async def _said(fleet: Fleet, count: int) -> bool:
    return fleet.log.count("begin") >= count


async def _ended(fleet: Fleet, count: int) -> bool:
    return fleet.log.count("end") >= count


async def _reported(fleet: Fleet, event: str) -> bool:
    return bool(fleet.log.events(event))


async def _past(store: Store, time_us: int) -> bool:
    return await store.now_us() > time_us


async def _in_state(store: Store, state: RunState, count: int) -> list[Run]:
    found = [run for run in await all_runs(store) if run.state is state]
    return found if len(found) == count else []


async def _records_of(store: Store, key: str) -> int:
    rows = [row for run in await all_runs(store) for row in await store.checkpoints(run.id)]
    return sum(row.key == key for row in rows)
