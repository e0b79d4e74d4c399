"""Waiting by the hundred thousand: what parked runs cost, and how fast one of them goes on."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

from perdure.app import App
from perdure.bench.goals import Reading
from perdure.bench.ground import Ground
from perdure.bench.laps import Laps
from perdure.core.limits import KIB
from perdure.runtime.asking import interrupt
from perdure.runtime.children import call
from perdure.runtime.mail import receive
from perdure.runtime.step import step
from perdure.runtime.timers import sleep
from perdure.runtime.worker import Worker

RUNS: Final = 100_000
RESUMED: Final = 1_000
WAVE: Final = 2_000
"""Runs that are started together."""
TIDY: Final = 8_000
"""Runs after which the database is tidied; started in hours and not in a minute, it would be by itself."""
WARM_UP: Final = 10_000
"""Parked runs after which the worker's memory is first read: by then it has all that it needs."""
RAW_KB: Final = 0.1
"""What a run brings of its own: arguments, a thread's name, a question's payload."""
LOOK_S: Final = 0.01
PERIOD: Final = 5
"""Of so many runs one waits for a time, one for an answer, one for a message, and one for a child, which is the fifth
and waits for a time."""


class Bench:
    """The agents of this measure, and when the last one that was resumed went on."""

    def __init__(self, url: str) -> None:
        self.app = App("bench", store=url)
        self.went_on = asyncio.Event()
        self.started = 0
        app, went_on = self.app, self.went_on

        @step
        async def go_on() -> None:
            went_on.set()

        @app.agent
        async def sleeper(_: int) -> None:
            await sleep("30d")

        @app.agent
        async def asker(number: int) -> Any:
            answer = await interrupt({"approve": f"order {number}", "cents": number, "why": "it is over the limit"})
            await go_on()
            return answer

        @app.agent
        async def reader(_: int) -> Any:
            message = await receive()
            await go_on()
            return message

        @app.agent
        async def parent(number: int) -> None:
            await call(sleeper, number)

        self.kinds = (sleeper, asker, reader, parent)

    async def park(self, runs: int, worker: Worker, ground: Ground) -> None:
        """Start so many (children counted), and wait until all of them are parked."""
        to_start = runs * len(self.kinds) // PERIOD
        while to_start > 0:
            wave = range(self.started, self.started + min(WAVE, to_start))
            await asyncio.gather(*(self._start(number) for number in wave))
            self.started += len(wave)
            to_start -= len(wave)
            await self.rest(worker)
            if self.started % TIDY == 0:
                await ground.tidy()

    async def rest(self, worker: Worker) -> None:
        """Wait until nothing runs and nothing is to be claimed."""
        while worker.running or await self.app.runs(state="queued", limit=1):  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(LOOK_S)

    async def resume(self, number: int) -> None:
        """Give one what it waits for, and wait until its code has gone on."""
        self.went_on.clear()
        if self.kinds[number % len(self.kinds)].name == "asker":
            await self.app.resume(f"t{number}", "yes")
        else:
            await self.app.send(f"t{number}", "go")
        await self.went_on.wait()

    async def _start(self, number: int) -> None:
        await self.app.start(self.kinds[number % len(self.kinds)], number, thread_id=f"t{number}")


async def waiting(ground: Ground, *, runs: int = RUNS, resumed: int = RESUMED) -> list[Reading]:
    """P6: bytes of database and of the worker's memory for each parked run, and the time from an answer or a message to
    the next step of its run."""
    bench = Bench(ground.url)
    raw_ms = await ground.commit_ms()
    async with bench.app, bench.app.worker() as worker:
        empty = await ground.bytes()
        began = time.perf_counter()
        first = min(WARM_UP, runs // 2)
        await bench.park(first, worker, ground)
        before = _memory_bytes()
        await bench.park(runs - first, worker, ground)
        took_s = time.perf_counter() - began
        grown = (_memory_bytes() - before) / (runs - first)
        each = (await ground.bytes() - empty) / runs
        numbers = [number for number in range(bench.started) if number % len(bench.kinds) in (1, 2)]
        laps = Laps()
        for number in random.Random(6).sample(numbers, min(resumed, len(numbers))):
            with laps:
                await bench.resume(number)
            await bench.rest(worker)
    return [
        Reading("P6 bytes", each / KIB, RAW_KB, f"{runs:,} parked, {runs / took_s:,.0f}/s"),
        Reading("P6 memory", grown / KIB, RAW_KB, "growth of the worker and its client, a run"),
        Reading("P6 resume", laps.median, raw_ms, f"p99 {laps.p99:.3g} ms"),
    ]


def _memory_bytes() -> float:
    """What this process holds now; where that cannot be read, the most that it has held."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most * (1 if sys.platform == "darwin" else 1024)
