"""Many starts at once: one run for one key, no deadlock, and nobody is left without an answer."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import asyncpg
import pytest

from perdure.core.records import Run, RunState
from perdure.errors import StartMismatch, StoreUnavailable, UsageError
from tests.support.agents import app_on
from tests.support.children import go_when_ready, run_children
from tests.support.processes import Fleet
from tests.support.sidelog import VARIABLE, SideLog, say
from tests.support.waiting import becomes, until
from tests.support.witness import all_runs

PRODUCERS = 8
KEYS = 40

CONNECTIONS_MAX = 8
"""Of one app with one worker: a line each for commits, claims and hints, the keeper's, and a few of a pool."""


def start_one(log: str, store_url: str, gate: str, ready: str, go: str) -> None:
    """In a process of its own: connect, say so, wait for the signal, start."""
    os.environ[VARIABLE] = log

    async def main() -> None:
        async with app_on(store_url) as app:
            await app.runs()
            Path(ready).touch()
            until(Path(go).exists, "the signal comes")
            try:
                handle = await app.start("gated", gate, key="the key")
            except StartMismatch as error:
                say("refused", run=error.run_id, text=str(error))
            else:
                say("started", run=handle.run_id)

    asyncio.run(main())


def test_c04_ten_processes_that_start_one_key_at_once_get_one_run_and_the_odd_one_a_typed_conflict(
    fleet: Fleet, log: SideLog, tmp_path: Path
) -> None:
    """Then ten more while it runs, and ten more when it has ended."""
    gate = tmp_path / "gate"

    def ten(number: int, odd: int) -> None:
        go = tmp_path / f"go-{number}"
        ready = [tmp_path / f"ready-{number}-{place}" for place in range(10)]
        gates = [f"{gate}-other" if place == odd else str(gate) for place in range(10)]
        with go_when_ready(ready, go):
            codes = run_children(
                start_one,
                [
                    (str(log.path), fleet.store_url, path, str(at), str(go))
                    for path, at in zip(gates, ready, strict=True)
                ],
            )
        assert codes == [0] * 10

    async def the_only_run() -> Run:
        async with app_on(fleet.store_url) as app:
            (run,) = await all_runs((await app._client()).store)
            return run

    ten(1, odd=-1)
    run = asyncio.run(the_only_run())
    fleet.hire().started()
    until(lambda: log.lines("begin", key="hold_open"), "the run executes")
    ten(2, odd=7)
    assert asyncio.run(the_only_run()).state is RunState.RUNNING
    gate.touch()
    until(lambda: log.lines("end", key="note"), "its last step has run")
    ten(3, odd=2)

    assert [line["run"] for line in log.lines("started")] == [f"r{run.id}"] * 28
    assert [line["run"] for line in log.lines("refused")] == [f"r{run.id}"] * 2
    assert all("another key" in line["text"] for line in log.lines("refused"))
    assert all(len(begins) == 1 for begins in log.begins().values()), "and it was executed once"
    assert asyncio.run(the_only_run()).id == run.id


def test_c22_two_groups_of_producers_that_start_the_same_keys_in_opposite_orders_do_not_deadlock(
    store_url: str,
) -> None:
    async def produce(keys: list[int], own: int) -> list[str]:
        async with app_on(store_url) as app:
            # One by one, so that the producers overlap key by key, and all at once, so that their batches do.
            one_by_one = [
                (await app.start("single", f"t{key}", key=f"k{key}", thread_id=f"thread-{key % 7}")).run_id
                for key in keys
            ]
            batch = await asyncio.gather(
                *(app.start("single", f"b{key}", key=f"b{key}", thread_id=f"thread-{key % 5}") for key in keys)
            )
            await app.start("single", f"own {own}", key=f"own-{own}")
            return one_by_one + [handle.run_id for handle in batch]

    async def main() -> None:
        async with app_on(store_url):
            pass  # the schema is there
        forth, back = list(range(KEYS)), list(reversed(range(KEYS)))
        produced = await asyncio.gather(
            *(produce(back if number % 2 else forth, number) for number in range(2 * PRODUCERS))
        )
        async with app_on(store_url) as app:
            runs = await all_runs((await app._client()).store)
        assert len(runs) == 2 * KEYS + 2 * PRODUCERS
        assert len({tuple(sorted(ids)) for ids in produced}) == 1, "everybody got the same runs"

    asyncio.run(main())


def test_c11_a_run_that_its_own_process_started_before_it_began_to_work_is_executed_once(
    store_url: str, log: SideLog
) -> None:
    async def main() -> None:
        async with app_on(store_url) as app:
            handles = [await app.start("single", f"t{number}") for number in range(20)]
            async with app.worker(lease_s=0.5, poll_s=0.05):
                handles += [await app.start("single", f"t{number}") for number in range(20, 40)]
                assert [await handle.result(timeout=10) for handle in handles] == [f"T{n}" for n in range(40)]
            runs = await all_runs((await app._client()).store)
            assert {(run.attempt, run.recoveries) for run in runs} == {(1, 0)}

    asyncio.run(main())
    assert all(len(lines) == 1 for lines in log.begins().values())


def test_c14_runs_whose_handles_were_dropped_all_finish_under_constant_garbage_collection(store_url: str) -> None:
    async def main() -> None:
        async with app_on(store_url) as app, app.worker(poll_s=0.05):
            for number in range(50):
                await app.start("survey", number, 10)
            store = (await app._client()).store

            async def all_done() -> bool:
                gc.collect()
                return {run.state for run in await all_runs(store)} == {RunState.COMPLETED}

            await becomes(all_done, "all have completed")

    asyncio.run(main())


def test_c25_five_hundred_waits_hold_no_connection(store_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        before = await _connections(store_url)
        async with app_on(store_url) as app, app.worker(poll_s=0.05):
            held = await asyncio.gather(*(app.start("gated", str(gate)) for _ in range(500)))
            waits = [asyncio.create_task(handle.result(timeout=30)) for handle in held]
            # While all of them wait, others come and go.
            others = await asyncio.gather(*(app.start("single", f"t{number}") for number in range(50)))
            assert [await handle.result(timeout=30) for handle in others] == [f"T{number}" for number in range(50)]
            assert not any(wait.done() for wait in waits)
            opened = await _connections(store_url) - before
            assert opened <= CONNECTIONS_MAX, "whatever waits, waits without one"
            gate.touch()
            assert set(await asyncio.gather(*waits)) == {"opened AFTER"}

    asyncio.run(main())


async def _connections(store_url: str) -> int:
    """How many connections of stores there are to this test's server; a file has none."""
    if store_url.startswith("sqlite"):
        return 0
    watcher = await asyncpg.connect(store_url.rpartition("&")[0])
    try:
        count: int = await watcher.fetchval("select count(*) from pg_stat_activity where application_name = 'perdure'")
        return count
    finally:
        await watcher.close()


def test_an_app_that_is_closed_answers_whoever_still_waits(store_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with app_on(store_url) as app:
            handle = await app.start("gated", str(tmp_path / "never"))
            waits = asyncio.create_task(handle.result())
            await asyncio.sleep(0)
            client = await app._client()
            await becomes(lambda: _waited_for(client), "somebody waits")
        with pytest.raises(StoreUnavailable, match="closed"):
            await asyncio.wait_for(waits, 5)

    asyncio.run(main())


async def _waited_for(client: object) -> bool:
    return bool(client._waiters)  # type: ignore[attr-defined]


def test_c18_hints_carry_no_payload_however_large_it_is(fleet: Fleet) -> None:
    """20 kB in the result, and ids as long as they may be, in four-byte characters."""
    thread_id, key, text = "🦜" * 512, "🦉" * 512, "🐙" * 2000 + "x" * 20_000

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            fleet.hire(poll_s=30).started()
            handle = await app.start("single", text, thread_id=thread_id, key=key, tags=["🦜" * 128])
            assert await handle.result(timeout=10) == text.upper()
            assert (await app.thread(thread_id).info()).thread_id == thread_id
            assert (await app.start("single", text, thread_id=thread_id, key=key)).run_id == handle.run_id
            with pytest.raises(UsageError, match="512"):
                await app.start("single", "tea", thread_id="🦜" * 2000)
            with pytest.raises(UsageError, match="128"):
                await app.start("single", "tea", tags=["🦜" * 2000])

    asyncio.run(main())
