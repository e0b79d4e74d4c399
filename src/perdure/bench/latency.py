"""One run alone: how long a step takes when nobody shares its commit."""

from __future__ import annotations

from typing import Final

from perdure.app import App
from perdure.bench.goals import Reading
from perdure.bench.ground import Ground
from perdure.bench.laps import Laps
from perdure.bench.throughput import work
from perdure.runtime.step import Durability

STEPS: Final = 300
WARM_UP: Final = 20
"""Steps before the first that counts: connections open, statements are prepared."""


async def step_ms(ground: Ground, *, steps: int = STEPS) -> list[Reading]:
    """P3: sequential steps, without and with waiting for the disk."""
    raw = await ground.commit_ms()
    modes: tuple[tuple[str, Durability], ...] = (("P3 async", "async"), ("P3 sync", "sync"))
    readings = []
    for row, durability in modes:
        laps = await _laps(ground.url, durability, steps)
        readings.append((row, laps.median, f"p99 {laps.p99:.3g} ms"))
    raw = (raw + await ground.commit_ms()) / 2
    return [Reading(row, value, raw, note) for row, value, note in readings]


async def _laps(url: str, durability: Durability, steps: int) -> Laps:
    app = App("bench", store=url, durability=durability)
    laps = Laps()

    @app.agent(name=f"alone-{durability}")
    async def alone() -> None:
        for number in range(WARM_UP + steps):
            with laps:
                await work(number)

    async with app, app.worker():
        await (await app.start(alone)).result()
    del laps.ms[:WARM_UP]
    return laps
