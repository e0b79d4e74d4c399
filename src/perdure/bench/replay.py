"""Replay: from the claim of a run with a long super-step to its first new step.

The run records its steps and stays at a gate. Its worker gives it back; the next worker claims it, reads its log, and
calls the agent, which comes to the gate again without executing anything.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from perdure import telemetry
from perdure.app import App
from perdure.bench.goals import Reading
from perdure.bench.ground import Ground
from perdure.bench.throughput import work

STEPS: Final = 5_000
STEPS_MANY: Final = 50_000
REPLAYS: Final = 3


async def replay_ms(ground: Ground, *, steps: int = STEPS, many: int = STEPS_MANY) -> list[Reading]:
    """P7: replaying a super-step of some steps, and what a step of a long one costs beside a step of a short one."""
    few_raw, many_raw = await ground.read_ms(steps), await ground.read_ms(many)
    few_ms = await _best_ms(ground.url, steps)
    many_ms = await _best_ms(ground.url, many)
    growth, raw_growth = (many_ms / many) / (few_ms / steps), (many_raw / many) / (few_raw / steps)
    each = f"{few_ms / steps * 1e3:.3g} µs a step"
    each_of_many = f"{many_ms / many * 1e3:.3g} µs a step"
    return [Reading("P7 replay", few_ms, few_raw, each), Reading("P7 flat", growth, raw_growth, each_of_many)]


async def _best_ms(url: str, steps: int) -> float:
    """The quickest of a few replays of one run."""
    app = App("bench", store=url)
    gate = Gate()

    @app.agent(name=f"long-{steps}")
    async def long() -> None:
        for number in range(steps):
            await work(number)
        await gate.arrive()

    async with app:
        await app.start(long)
        await gate.visit(app)
        return min([await gate.visit(app) for _ in range(REPLAYS)]) * 1e3


class Gate:
    """Where the agent stays until its worker gives it back."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._claimed_at = 0.0
        self._arrived_at = 0.0

    async def arrive(self) -> None:
        """Called by the agent; never returns."""
        self._arrived_at = time.perf_counter()
        self._arrived.set()
        await asyncio.get_running_loop().create_future()

    async def visit(self, app: App) -> float:
        """Have a new worker bring the agent here; the seconds from its start."""
        self._arrived.clear()
        deaf = telemetry.subscribe(self._hear)
        try:
            async with app.worker(grace_s=0):
                await self._arrived.wait()
        finally:
            deaf()
        return self._arrived_at - self._claimed_at

    def _hear(self, event: str, fields: dict[str, Any]) -> None:
        if event == "worker.started":
            self._claimed_at = time.perf_counter()
