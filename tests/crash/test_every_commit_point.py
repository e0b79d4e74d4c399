"""A scripted run with every kind of write, and a process that dies around each of them in turn: the same end state.

The points of one test are independent (a thread, a queue and a process each), so they are tried at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from perdure.core.codec import codec_for
from perdure.core.limits import RECOVERIES_MAX
from perdure.store import open_url
from perdure.store.protocol import Store
from tests.support.children import run_children
from tests.support.faults import MOMENTS, Fault, Moment
from tests.support.lives import live, live_in_a_child
from tests.support.sidelog import SideLog
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

WRITES_MIN = 12
"""The script makes at least so many: a start, a claim, and what it commits one by one."""

LIVES_MAX = 40

T = TypeVar("T")


@dataclass
class EndState:
    """All of it that does not depend on chance or time."""

    result: Any
    run: tuple[Any, ...]
    thread: tuple[Any, ...]
    log: list[tuple[Any, ...]]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_process_killed_around_any_write_comes_to_the_same_end(store_url: str, log: SideLog, moment: Moment) -> None:
    writes = asyncio.run(live(store_url, "undisturbed"))
    assert writes >= WRITES_MIN
    # How writes are grouped depends on the moment: some lives may be over before their last points.
    points = {f"{moment}-{nth}": Fault(nth, moment) for nth in range(1, writes + 1)}

    codes = run_children(live_in_a_child, [(str(log.path), store_url, *point) for point in points.items()])
    assert set(codes) <= {0, -9} and codes.count(-9) >= WRITES_MIN
    assert len(log.lines("struck")) == codes.count(-9)
    asyncio.run(_on(store_url, _bury))
    asyncio.run(_all(live(store_url, name) for name in points))

    _check(store_url, log, list(points))


@pytest.mark.parametrize("moment", ["before", "lost"])
def test_a_worker_that_does_not_hear_of_one_of_its_writes_goes_on_to_the_same_end(
    store_url: str, log: SideLog, moment: Moment
) -> None:
    writes = asyncio.run(live(store_url, "undisturbed"))
    points = {f"{moment}-{nth}": Fault(nth, moment, dies=False) for nth in range(1, writes + 1)}

    asyncio.run(_all(live(store_url, *point) for point in points.items()))

    assert len(log.lines("struck")) >= WRITES_MIN
    _check(store_url, log, list(points))


def test_a_process_killed_at_every_second_commit_still_comes_to_the_same_end(store_url: str, log: SideLog) -> None:
    asyncio.run(live(store_url, "undisturbed"))
    # Each life writes one record more than the one before: there is progress, so the run is no poison.
    fault = Fault(2, "lost", verbs=frozenset({"commit"}))
    for lives in itertools.count(1):
        if run_children(live_in_a_child, [(str(log.path), store_url, "again", fault)]) == [0]:
            break
        asyncio.run(_on(store_url, _bury))
        assert lives < LIVES_MAX

    assert lives > RECOVERIES_MAX
    _check(store_url, log, ["again"])


def _check(store_url: str, log: SideLog, names: list[str]) -> None:
    """Each of these threads is as the undisturbed one is, and no body ran without need."""
    killed = {line["pid"] for line in log.lines("struck")} - {os.getpid()}

    async def check(store: Store) -> None:
        expected = await _end_state(store, "undisturbed")
        for name in names:
            assert await _end_state(store, name) == expected, name
        await nothing_was_repeated_after_its_record(store, log, killed=killed)

    asyncio.run(_on(store_url, check))


async def _end_state(store: Store, thread_id: str) -> EndState:
    (run,) = await all_runs(store, thread_id)
    thread = await store.get_thread(thread_id)
    assert thread is not None
    (outcome,) = await store.outcomes([run.id])
    rows = await store.checkpoints(run.id)
    return EndState(
        result=codec_for(Any).decode(outcome.payload),
        run=(run.state, run.ready, run.worker, run.super_step, run.reason, run.ordinal),
        thread=(thread.head, thread.depth, thread.last_ordinal, thread.snapshot_step, rows[-1].state),
        # The ticket is another one each time; what was made of it is not.
        log=sorted(
            (row.super_step, row.key, row.kind, row.digest, row.failed, b"" if row.key == "uuid4" else row.payload)
            for row in rows
        ),
    )


async def _bury(store: Store) -> None:
    """Declare the dead dead, as a neighbour would a moment later."""
    await store.take_over([worker.id for worker in await store.workers()], recoveries_max=RECOVERIES_MAX)


async def _on(store_url: str, act: Callable[[Store], Awaitable[T]]) -> T:
    store = open_url(store_url)
    await store.open()
    try:
        return await act(store)
    finally:
        await store.close()


async def _all(lives: Any) -> None:
    async with asyncio.TaskGroup() as group:
        for each in lives:
            group.create_task(each)
