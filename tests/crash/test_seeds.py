"""Parallel steps of random durations, and workers that die after random prefixes: keys are structural, so nothing is
mistaken for anything else."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App
from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Kind, RunState
from perdure.runtime.frames import StepFrame, frame
from perdure.runtime.settings import worker_settings
from perdure.runtime.worker import Worker
from perdure.store.protocol import Store
from tests.support import stores

AT_ONCE = 25

AT_ONCE_TOGETHER = 6
"""Where all are on one server: each has half a dozen connections."""

Begins = list[tuple[int, int, str]]
"""Worker, run, key: what began, in order."""

begins: contextvars.ContextVar[Begins] = contextvars.ContextVar("begins")


async def work(turns: int) -> None:
    """A body's duration: turns of the event loop."""
    where = frame.get()
    assert isinstance(where, StepFrame)
    begins.get().append((where.super_step.host.worker, where.super_step.claimed.run, where.key))
    for _ in range(turns):
        await asyncio.sleep(0)


@perdure.step
async def plan(seed: int) -> str:
    await work(random.randrange(30))
    return f"plan {seed}"


@perdure.step
async def search(seed: int, query: str) -> list[str]:
    await work(random.randrange(30))
    return [f"{query} {seed}"]


@perdure.step
async def rank(seed: int) -> dict[str, int]:
    await work(random.randrange(30))
    return {"rank": seed}


async def trio(seed: int) -> str:
    """Three different steps at once, twice, and one after them."""
    planned, found, ranked = await asyncio.gather(plan(seed), search(seed, "first"), rank(seed))
    async with asyncio.TaskGroup() as group:
        again = [group.create_task(search(seed, planned)), group.create_task(search(seed, found[0]))]
    return f"{planned}; {found}; {ranked}; {[task.result() for task in again]}; {await plan(seed)}"


def trio_result(seed: int) -> str:
    """What must come out."""
    planned, found = f"plan {seed}", [f"first {seed}"]
    again = [[f"{planned} {seed}"], [f"{found[0]} {seed}"]]
    return f"{planned}; {found}; { ({'rank': seed}) }; {again}; {planned}"


class MortalStore:
    """A store that takes so many changes from its worker; then the worker is as good as dead."""

    def __init__(self, inner: Store, changes: int | None) -> None:
        self._inner = inner
        self._left = changes
        self.died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        if self._left is None or len(changes) <= self._left:
            self._left = None if self._left is None else self._left - len(changes)
            return await self._inner.commit(worker, changes)
        # Batches are in order: it might as well have been a shorter one, and the process gone before the next.
        await self._inner.commit(worker, changes[: self._left])
        self._left = 0
        self.died.set()
        return await asyncio.get_running_loop().create_future()


@pytest.mark.timeout(180)  # five hundred runs, on a busy machine
@pytest.mark.parametrize(
    ("kind", "seeds"),
    [("memory", 500), ("sqlite", 40), pytest.param("postgres", 30, marks=pytest.mark.postgres)],
)
def test_c13_three_steps_under_gather_survive_a_crash_after_each_prefix(tmp_path: Path, kind: str, seeds: int) -> None:
    shared = stores.fresh_url(kind, tmp_path) if kind == "postgres" else ""

    def url(seed: int) -> str:
        """A store for each seed, where that is cheap; else they share one, and each has its own queue."""
        return shared or (
            f"sqlite:///{tmp_path}/{seed}.db?synchronous=off" if kind == "sqlite" else f"memory://seed-{seed}"
        )

    asyncio.run(_all(url, seeds))


async def _all(url: Callable[[int], str], seeds: int) -> None:
    places = asyncio.Semaphore(AT_ONCE if url(0) != url(1) else AT_ONCE_TOGETHER)

    async def one(seed: int) -> int:
        async with places:
            return await _one(url(seed), seed)

    crashes = await asyncio.gather(*(one(seed) for seed in range(seeds)))
    assert sum(crashes) > seeds, "most seeds had two crashes"


async def _one(url: str, seed: int) -> int:
    """One seed: up to two crashes, each after a random number of changes; how many there were."""
    chance = random.Random(seed)
    begins.set(began := [])
    async with App("seeds", store=url) as app:
        app.agent(trio)
        client = await app._client()
        queue = f"seed-{seed}"
        handle = await app.start("trio", seed, queue=queue)
        crashes = 0
        while True:
            store = MortalStore(client.store, chance.randrange(5) if crashes < 2 else None)
            worker = Worker(store, app.agents, settings=worker_settings(queues=[queue]), on_ended=client.ended)  # type: ignore[arg-type]
            async with worker:
                died = asyncio.create_task(store.died.wait())
                ended = asyncio.create_task(handle.result(timeout=20))
                await asyncio.wait({died, ended}, return_when=asyncio.FIRST_COMPLETED)
                died.cancel()
                if ended.done():
                    assert ended.result() == trio_result(seed)
                    break
                ended.cancel()
                crashes += 1
                await _bury(client.store, worker)
        await _check(client.store, handle._id, began)
        return crashes


async def _bury(store: Store, worker: Worker) -> None:
    """Take the dead one's runs away, and let go of what it had in memory."""
    tenure = worker._tenure
    assert tenure is not None
    await store.take_over([tenure.worker], recoveries_max=RECOVERIES_MAX)
    worker.stop()
    tenure.lose("the test killed it")


async def _check(store: Store, run: int, began: Begins) -> None:
    """Every record was made by the last worker that ran its body, and each worker ran it once at most."""
    (row,) = await store.get_runs([run])
    assert row.state is RunState.COMPLETED
    recorded = {each.key: each.worker for each in await store.checkpoints(run) if each.kind is Kind.STEP}
    assert len(recorded) == 6
    for key, by in recorded.items():
        ran = [worker for worker, of, name in began if (of, name) == (run, key)]
        assert ran[-1:] == [by] and len(set(ran)) == len(ran), (key, by, ran)
    assert {name for _, of, name in began if of == run} == set(recorded)
