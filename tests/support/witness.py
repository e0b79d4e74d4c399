"""What must hold after any number of crashes, judged from the rows and from the side log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Checkpoint, Kind, Run, run_id
from perdure.core.requests import RunFilter
from perdure.store.protocol import Store
from tests.support.sidelog import Body, SideLog


async def all_runs(store: Store, thread_id: str | None = None) -> list[Run]:
    """Every run (of a thread), newest first."""
    found: list[Run] = []
    while True:
        after = found[-1].id if found else None
        page = await store.list_runs(RunFilter(thread_id=thread_id, limit=LIST_ROWS_MAX, after=after))
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found


async def records(store: Store, runs: Iterable[Run]) -> dict[Body, Checkpoint]:
    """What each step body's record is."""
    found: dict[Body, Checkpoint] = {}
    for run in runs:
        for row in await store.checkpoints(run.id):
            if row.kind is Kind.STEP:
                found[run_id(run.id), row.super_step, row.key] = row
    return found


async def nothing_was_repeated_after_its_record(
    store: Store, log: SideLog, *, killed: Set[int] = frozenset(), thread_id: str | None = None
) -> int:
    """No body began after its record was committed, and only processes that were killed left one unfinished; how many
    bodies ran more than once.

    A record is its worker's last word on a body: whoever began it elsewhere did so before that worker had claimed the
    run, so the last `begin` is the recorder's own.
    """
    pids = {worker.id: worker.pid for worker in await store.workers(alive=False)}
    found = await records(store, await all_runs(store, thread_id))
    begins = log.begins()
    failed = {
        (line["run"], line["super_step"], line["key"], line["attempt"], line["pid"])
        for line in log.lines("broken")
        if line["error"] != "CancelledError"
    }
    repeated = 0
    for body, row in found.items():
        if body not in begins:
            continue  # a recorded value without a body, such as now()
        last = begins[body][-1]["pid"]
        assert last == pids[row.worker], f"{body} began again after its record: {begins[body]}, recorded by {row}"
        left = [line["pid"] for line in begins[body][:-1] if (*body, line["attempt"], line["pid"]) not in failed]
        assert set(left) <= killed, f"{body} was left by a process that was not killed: {begins[body]}, {killed}"
        repeated += bool(left)
    assert set(begins) <= set(found), "a body that ran has no record at the end"
    return repeated


class FenceWatch:
    """Samples the runs while something else goes on; a fence that is smaller than before is remembered."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.samples = 0
        self.highest: dict[int, int] = {}
        self.fell: list[tuple[int, int, int]] = []

    async def sample(self) -> list[Run]:
        """Look once."""
        runs = await all_runs(self.store)
        for run in runs:
            before = self.highest.get(run.id, 0)
            if run.fence < before:
                self.fell.append((run.id, before, run.fence))
            self.highest[run.id] = max(before, run.fence)
        self.samples += 1
        return runs

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(0.02)
