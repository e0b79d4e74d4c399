"""Many runs at once: steps a second, and runs a second.

One process is the client and the worker. In the first measure it starts all runs, executes them and reads every result;
in the second the runs wait in the queue before the worker begins.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from perdure.app import App
from perdure.bench.goals import Reading
from perdure.bench.ground import Ground
from perdure.runtime.agent import Agent
from perdure.runtime.settings import worker_settings
from perdure.runtime.step import step
from perdure.runtime.worker import Worker

RUNS = 1_000
STEPS = 20
JOBS = 8_000
TEXT = "x" * 170
"""With its key and its number, a record of 200 bytes."""


@step
async def work(number: int) -> dict[str, Any]:
    """A step that costs nothing but its record."""
    return {"number": number, "text": TEXT}


def app_at(url: str) -> tuple[App, Agent[..., int]]:
    """An app whose one agent makes steps, one after the other."""
    app = App("bench", store=url)

    @app.agent
    async def steps(count: int) -> int:
        for number in range(count):
            await work(number)
        return count

    return app, steps


async def steps_per_s(ground: Ground, *, runs: int = RUNS, steps: int = STEPS) -> list[Reading]:
    """P1 and P2: `runs` at once, start and completion included."""
    before = await ground.rows_per_s()
    app, agent = app_at(ground.url)
    async with app, app.worker(concurrency=runs):
        began = time.perf_counter()
        handles = await asyncio.gather(*(app.start(agent, steps) for _ in range(runs)))
        results = await asyncio.gather(*(handle.result() for handle in handles))
        took_s = time.perf_counter() - began
    assert results == [steps] * runs
    raw = (before + await ground.rows_per_s()) / 2
    row = "P1" if ground.kind == "postgres" else "P2"
    return [Reading(row, runs * steps / took_s, raw)]


async def runs_per_s(ground: Ground, *, runs: int = JOBS, concurrency: int = 1_000) -> list[Reading]:
    """P5: runs of one step that wait in the queue when the worker begins."""
    before = await ground.rows_per_s()
    app, agent = app_at(ground.url)
    async with app:
        await asyncio.gather(*(app.start(agent, 1) for _ in range(runs)))
        client = await app._client()
        done = asyncio.Event()
        left = runs

        def on_ended(run: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        began = time.perf_counter()
        settings = worker_settings(concurrency=concurrency)
        async with Worker(client.store, app.agents, settings=settings, on_ended=on_ended):
            await done.wait()
            took_s = time.perf_counter() - began
    raw = (before + await ground.rows_per_s()) / 2
    return [Reading("P5", runs / took_s, raw)]
