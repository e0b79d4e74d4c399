"""A scripted run with every kind of write, and a process that dies around each of them in turn: the same end state."""

from __future__ import annotations

import asyncio
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from perdure import telemetry
from perdure.core.codec import codec_for
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Kind
from perdure.store import open_url
from perdure.store.protocol import Store
from tests.support.agents import app_on, witness
from tests.support.children import run_child
from tests.support.faults import MOMENTS, WRITES, Fault, FaultyStore, Moment
from tests.support.sidelog import VARIABLE, SideLog
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

POINTS_MAX = 60
"""More writes than the script makes: a test that gets here does not end by itself."""


@dataclass
class EndState:
    """All of it that does not depend on chance or time."""

    result: Any
    run: tuple[Any, ...]
    state: Any
    log: list[tuple[Any, ...]]


def live(store_url: str, log: str, fault: Fault | None) -> None:
    """In a process: start the run (or find it), work until it has ended."""
    os.environ[VARIABLE] = log

    async def main() -> None:
        app = app_on(store_url)
        if fault is not None:
            app._store = FaultyStore(app._store, fault)  # type: ignore[assignment]
        async with app, app.worker(lease_s=30, poll_s=0.05):
            handle = await app.start("scripted", "word", key="the start", thread_id="the thread")
            await handle.result(timeout=20)

    telemetry.subscribe(witness)
    asyncio.run(main())


@pytest.fixture
def undisturbed(store_url: str, tmp_path: Path) -> EndState:
    """What comes out when nothing goes wrong."""
    url, log = _fresh(store_url, tmp_path, "undisturbed")
    assert run_child(live, url, str(log), None) == 0
    return asyncio.run(_end_state(url, SideLog(log), killed=set()))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_killed_around_any_write_comes_to_the_same_end(
    store_url: str, tmp_path: Path, undisturbed: EndState, moment: Moment
) -> None:
    for nth in itertools.count(1):
        assert nth < POINTS_MAX
        url, log = _fresh(store_url, tmp_path, f"{moment}-{nth}")
        code = run_child(live, url, str(log), Fault(nth, moment))
        if code == 0:
            break
        assert code == -9
        killed = asyncio.run(_bury(url))
        assert run_child(live, url, str(log), None) == 0
        assert asyncio.run(_end_state(url, SideLog(log), killed=killed)) == undisturbed, (moment, nth)
    assert nth > 15, "the script makes more writes than that"


def test_a_process_killed_at_its_second_write_again_and_again_still_comes_to_an_end(
    store_url: str, tmp_path: Path, undisturbed: EndState
) -> None:
    url, log = _fresh(store_url, tmp_path, "again")
    killed = set[int]()
    for nth in range(1, POINTS_MAX):
        # Each life writes one record more than the one before could: it makes progress, so it is no poison.
        if run_child(live, url, str(log), Fault(2, "lost", verbs=frozenset({"commit"}))) == 0:
            break
        killed |= asyncio.run(_bury(url))
    assert nth > RECOVERIES_MAX
    assert asyncio.run(_end_state(url, SideLog(log), killed=killed)) == undisturbed


@pytest.mark.parametrize("moment", ["before", "lost"])
def test_a_worker_that_does_not_hear_of_any_write_goes_on_to_the_same_end(
    store_url: str, tmp_path: Path, undisturbed: EndState, moment: Moment
) -> None:
    verbs = WRITES - {"watch"}
    for nth in itertools.count(1):
        assert nth < POINTS_MAX
        url, log = _fresh(store_url, tmp_path, f"unheard-{moment}-{nth}")
        code = run_child(live, url, str(log), Fault(nth, moment, dies=False, verbs=verbs))
        assert code == 0, (moment, nth)
        if not SideLog(log).lines("struck"):
            break
        assert asyncio.run(_end_state(url, SideLog(log), killed=set())) == undisturbed, (moment, nth)
    assert nth > 15, "the script makes more writes than that"


def _fresh(store_url: str, folder: Path, name: str) -> tuple[str, Path]:
    """A store and a side log for one life: a file of its own, or a schema of its own on the same server."""
    name = name.replace("-", "_")
    before, _, schema = store_url.rpartition("schema=")
    url = f"{before}schema={schema}_{name}" if schema and before else store_url.replace("runs.db", f"{name}.db")
    return url, folder / f"{name}.jsonl"


async def _bury(url: str) -> set[int]:
    """Declare all workers dead, as a neighbour would a moment later; the pids of those who were not before."""
    store = open_url(url)
    await store.open()
    try:
        alive = {worker.id: worker.pid for worker in await store.workers()}
        await store.take_over(list(alive), recoveries_max=RECOVERIES_MAX)
        return set(alive.values())
    finally:
        await store.close()


async def _end_state(url: str, log: SideLog, *, killed: set[int]) -> EndState:
    store = open_url(url)
    await store.open()
    try:
        await nothing_was_repeated_after_its_record(store, log, killed=killed)
        return await _read(store)
    finally:
        await store.close()


async def _read(store: Store) -> EndState:
    (run,) = await all_runs(store)
    thread = await store.get_thread("the thread")
    assert thread is not None
    decode = codec_for(Any).decode
    (outcome,) = await store.outcomes([run.id])
    rows = await store.checkpoints(run.id)
    return EndState(
        result=decode(outcome.payload),
        run=(run.state, run.ready, run.worker, run.super_step, run.reason, run.key, run.ordinal),
        state=(thread.head, thread.depth, thread.last_ordinal, thread.snapshot_step, rows[-1].state),
        # The ticket is another one each time; what was made of it is not.
        log=sorted(
            (row.super_step, row.key, row.kind, row.digest, row.failed, b"" if row.key == "uuid4" else row.payload)
            for row in rows
            if row.kind is Kind.STEP or row.key == ""
        ),
    )
