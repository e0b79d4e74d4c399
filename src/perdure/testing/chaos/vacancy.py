"""Whether a store is free: chaos would hurt whoever else uses it, and they would disturb what is judged.

What an earlier chaos has left unfinished is in nobody's way: its queue is its own, and nobody serves it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Run, RunState, Worker, run_id
from perdure.core.requests import RunFilter
from perdure.core.states import TERMINAL
from perdure.errors import UsageError
from perdure.store.protocol import Store

NAME: Final = re.compile(r"chaos-\d{8}-\d{6}-[0-9a-f]{4}\b")
"""What a chaos calls itself, its queue and, in the beginning, its workers."""

REMEDY: Final = "give chaos a database of its own, or say --force"


async def check_vacant(store: Store) -> None:
    """Refuse a store with workers that live, or with unfinished runs that are not an earlier chaos's."""
    if workers := await living(store):
        name = workers[0].name
        if other := NAME.match(name):
            raise UsageError(f"another chaos is at work on this store: {other[0]}; wait for its end, or {REMEDY}")
        raise UsageError(f"this store is in use: worker {name!r} on {workers[0].host} is alive; {REMEDY}")
    async for run in unfinished(store):
        if not NAME.fullmatch(run.queue):
            raise UsageError(f"this store is in use: {run_id(run.id)} of agent {run.agent} is {run.state}; {REMEDY}")


async def living(store: Store) -> list[Worker]:
    """Workers that have been heard of within their lease."""
    now_us, silent = await store.now_us(), set(await store.silent_workers())
    return [worker for worker in await store.workers() if worker.lease_until > now_us and worker.id not in silent]


async def unfinished(store: Store) -> AsyncIterator[Run]:
    """Every run that is not terminal, newest first in each state."""
    for state in RunState:
        after: int | None = None
        while state not in TERMINAL:
            page = await store.list_runs(RunFilter(state=state, limit=LIST_ROWS_MAX, after=after))
            for run in page:
                yield run
            if len(page) < LIST_ROWS_MAX:
                break
            after = page[-1].id
