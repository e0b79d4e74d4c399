"""Forks on real stores, by real workers: from every checkpoint of a run of ten steps, what was recorded before it is
reused, what comes from it on runs exactly once, and the original stays as it is, byte for byte."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from perdure import App, Handle
from perdure.core.records import Kind
from perdure.store.protocol import Store
from tests.support.processes import Fleet
from tests.support.sidelog import SideLog
from tests.support.waiters import Names, app_on
from tests.support.witness import all_runs

PATIENCE_S = 30.0

STEPS = {"go_on": "a", "start:one_step": "b", "1/go_on": "c", "2/go_on": "d", "go_on#2": "e"}
"""What a super-step of the run records, in the order of its making but for the parallel ones, and what runs again where
that record is missing. (Of a child its start: its result is had from the child that there is.)"""

WHOLE = [f"{round}{letter}" for round in (1, 2) for letter in "abcde"]

Checkpoint = tuple[int, str | None]


def test_from_every_checkpoint_what_was_before_is_reused_and_what_follows_runs_exactly_once(waiters: Fleet) -> None:
    async def main() -> None:
        async with app_on(waiters.store_url) as app:
            store = (await app._client()).store
            for worker in [waiters.hire() for _ in range(2)]:
                worker.started()
            original = await app.start("ten", thread_id="original")
            assert await original.result(timeout=PATIENCE_S) == WHOLE
            before = await everything(store, "original")
            log = await store.checkpoints(original._id)
            places: list[Checkpoint] = [(row.super_step, row.key or None) for row in log if row.kind is not Kind.ENDED]
            assert len(places) == 2 * (1 + len(STEPS) + 1), "two boundaries; a step, a child's two records, three steps"

            forks = await asyncio.gather(*(fork(app, place) for place in places))
            results = [await each.result(timeout=PATIENCE_S) for each in forks]

            assert results == [WHOLE] * len(places)
            ran = await what_ran(store, waiters.log)
            for place, each in zip(places, forks, strict=True):
                assert ran[each._id] == from_there_on(places, place), place
                assert await app.thread(each.thread_id).state() == Names(WHOLE)
            assert await everything(store, "original") == before

    asyncio.run(main())


async def fork(app: App, place: Checkpoint) -> Handle[Any]:
    """A fork from there."""
    super_step, key = place
    return await app.thread("original").fork(super_step=super_step, key=key)


async def everything(store: Store, thread_id: str) -> list[Any]:
    """All rows of a thread and of the children of its runs, as they are stored."""
    thread = await store.get_thread(thread_id)
    assert thread is not None
    own = await all_runs(store, thread_id)
    family = own + [run for run in await all_runs(store) if run.parent in {each.id for each in own}]
    logs = [await store.checkpoints(run.id) for run in family]
    tries = [await store.attempts(run.id) for run in family]
    return [thread, family, logs, tries]


async def what_ran(store: Store, log: SideLog) -> dict[int, list[str]]:
    """The bodies that ran for each run, its children's included, sorted."""
    parents = {f"r{run.id}": run.parent or run.id for run in await all_runs(store)}
    found: dict[int, list[str]] = defaultdict(list)
    for line in log.lines("begin"):
        found[parents[line["run"]]].append(line["after"])
    return defaultdict(list, {run: sorted(names) for run, names in found.items()})


def from_there_on(places: list[Checkpoint], place: Checkpoint) -> list[str]:
    """What runs in a fork from there: whose record comes at it or later."""
    missing = places[places.index(place) :]
    return sorted(f"{super_step}{STEPS[key]}" for super_step, key in missing if key in STEPS)
