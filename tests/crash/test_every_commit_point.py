"""Every scenario of the catalogue, and a process that dies around each of its writes in turn: the same end state.

The enumeration is the public one, `perdure.testing.crashpoints`; the side log is the witness that it does not have. The
points of a scenario share a store (a thread, a queue and a process each), and are tried at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psutil
import pytest

from perdure.core.limits import RECOVERIES_MAX
from perdure.store import open_url
from perdure.store.protocol import Store
from perdure.testing.crashpoints import Fault, Moment, Report, crash_points
from perdure.testing.crashpoints.endings import read_ends
from tests.support import children
from tests.support.lives import app
from tests.support.scenarios import CASES, at, every_point, live, live_in_a_child
from tests.support.sidelog import SideLog
from tests.support.waiting import until
from tests.support.witness import nothing_was_repeated_after_its_record

SCRIPT = "every kind of record"
WRITES_MIN = 12
"""The script makes at least so many: a start, a claim, and what it commits one by one."""

DIED_MIN = 0.5
"""This share of the points at least is reached. How the writes of steps that nobody awaits are grouped depends on the
moment: some lives may be over before their last points."""

LIVES_MAX = 40

T = TypeVar("T")


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if every_point() or not case.slow])
def test_a_process_killed_around_any_write_comes_to_the_same_end(case: str, store_url: str, log: SideLog) -> None:
    children.context()
    tried = CASES[case]

    report = crash_points(
        app, tried.play, store=store_url, verbs=tried.verbs, moments=tried.moments(store_url), **tried.options
    )

    assert report.died >= DIED_MIN * len(report.trials) > 0, report
    asyncio.run(_on(store_url, lambda store: _nothing_was_repeated(store, log, report)))


@pytest.mark.parametrize("moment", ["before", "lost"])
def test_a_worker_that_does_not_hear_of_one_of_its_writes_goes_on_to_the_same_end(
    store_url: str, log: SideLog, moment: Moment
) -> None:
    writes = asyncio.run(live(store_url, SCRIPT, "undisturbed")).calls
    assert writes >= WRITES_MIN
    points = {f"{moment}-{nth}": Fault(nth, moment, dies=False) for nth in range(1, writes + 1)}

    stores = asyncio.run(_all(live(store_url, SCRIPT, *point) for point in points.items()))

    assert sum(len(store.struck) for store in stores) >= DIED_MIN * writes
    _check(store_url, log, list(points))


def test_a_process_killed_at_every_second_commit_still_comes_to_the_same_end(store_url: str, log: SideLog) -> None:
    asyncio.run(live(store_url, SCRIPT, "undisturbed"))
    # Each life writes one record more than the one before: there is progress, so the run is no poison.
    fault = at("commit", 2, "lost")
    for nth in itertools.count(1):
        codes = children.run_children(live_in_a_child, [(str(log.path), store_url, SCRIPT, "again", fault)])
        if codes == [0]:
            break
        asyncio.run(_on(store_url, _bury))
        assert nth < LIVES_MAX

    assert nth > RECOVERIES_MAX
    _check(store_url, log, ["again"])


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_killed_worker_takes_its_pool_of_processes_along(store_url: str, log: SideLog) -> None:
    death = at("commit", 1, "before")

    codes = children.run_children(live_in_a_child, [(str(log.path), store_url, "steps in processes", "pool", death)])

    assert codes == [-9]
    pool = {line["pid"] for line in log.lines("factors")}
    assert pool
    until(lambda: not any(map(_is_alive, pool)), "the processes of the pool have ended")


def _check(store_url: str, log: SideLog, names: list[str]) -> None:
    """Each of these scenarios has ended as the undisturbed one has, and no body ran without need."""

    async def check(store: Store) -> None:
        ends = await read_ends(store, names=["undisturbed", *names])
        expected = ends.pop("undisturbed")
        assert {name: expected.differences(end) for name, end in ends.items() if end != expected} == {}
        killed = {line["pid"] for line in log.lines("begin")} - {os.getpid()}
        await nothing_was_repeated_after_its_record(store, log, killed=killed)

    asyncio.run(_on(store_url, check))


async def _nothing_was_repeated(store: Store, log: SideLog, report: Report) -> None:
    await nothing_was_repeated_after_its_record(store, log, killed=report.killed)


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


async def _all(lives: Any) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in lives]
    return [task.result() for task in tasks]


def _is_alive(pid: int) -> bool:
    """Whether it still runs; a dead process that nobody has reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
