"""A world: processes on one machine-less timeline, and the wire to their database.

A `Process` is one or more event loops, a skew of its clocks, and a state: it runs, is paused (as by SIGSTOP: its loops
get no turns while everybody else's do), or is gone (as by `kill -9`: its loops never get another turn, so not even a
`finally` runs). A `World` has the time. It gives a turn to one of the loops that have something to do now, chosen by
the seed; when none has, time jumps to the next timer.

Nothing in a world looks at the machine's clock, and all chance comes from one seed, so a world that is made twice
from one seed takes the same turns.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from perdure.core.limits import COMMIT_ROWS_MAX, SUPER_STEPS_AHEAD_MAX
from perdure.runtime.callables import Pools
from perdure.runtime.surroundings import AroundBody, Main, SideLoop, Surroundings
from perdure.runtime.worker import Worker
from perdure.testing.simulation.inline import InlinePools
from perdure.testing.simulation.loop import VirtualLoop, virtual_loop

EPOCH_S: Final = 1_800_000_000.0
"""What the calendars of a world say at its beginning: some time in 2027."""


class Stuck(AssertionError):
    """Nothing in the world will ever happen again, or far too much happens at one moment."""


TURNS_AT_ONCE_MAX: Final = 50_000
"""Turns without time passing, after which the world is taken to run in a circle."""


ROUNDS_MAX: Final = 6
"""A loop that is not alone gets fewer rounds than this in its turn, as it happens."""
ROUNDS_ALONE: Final = 50


class World:
    """The timeline, and who lives on it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.turns = 0
        self.ahead_max = SUPER_STEPS_AHEAD_MAX
        self.loops: list[VirtualLoop] = []
        self.processes: list[Process] = []

    def loop(self, name: str, owner: object = None) -> VirtualLoop:
        """A new loop that takes turns."""
        loop = virtual_loop(self, name, owner)
        self.loops.append(loop)
        return loop

    def process(self, name: str, **options: Any) -> Process:
        """A new process."""
        made = Process(self, name, **options)
        self.processes.append(made)
        return made

    def wall_us(self) -> int:
        """The true time, in microseconds since the epoch."""
        return int((EPOCH_S + self.now) * 1e6)

    def run(self, until: Callable[[], bool], *, deadline_s: float) -> bool:
        """Take turns until the condition holds (True), or until that much time has passed (False)."""
        end = self.now + deadline_s
        at_once = 0
        while not until():
            before = self.now
            if not self._turn(end):
                return False
            at_once = at_once + 1 if self.now == before else 0
            if at_once > TURNS_AT_ONCE_MAX:
                raise Stuck(f"{at_once} turns were taken at {self.now:.6f} s: somebody runs in a circle")
        return True

    def _turn(self, end: float) -> bool:
        """One turn of one loop, at the time it comes; False if nothing is due until then."""
        now = self.now
        ready = [loop for loop in self.loops if loop.ready or (loop.timers and loop.timers[0][0] <= now)]
        if not ready:
            soonest = end
            for loop in self.loops:
                when = loop.next_timer()
                if when is None or when > soonest:
                    continue
                if when < soonest or not ready:
                    soonest, ready = when, []
                ready.append(loop)
            self.now = max(now, soonest)
            if not ready:
                return False
        loop = ready[0] if len(ready) == 1 else ready[self.random.randrange(len(ready))]
        self.turns += 1
        loop.turn(ROUNDS_ALONE if len(ready) == 1 else self.random.randrange(1, ROUNDS_MAX))
        return True

    def close(self) -> list[str]:
        """End every process and unwind every loop; what was left over and would not end. A second time does nothing."""
        for process in self.processes:
            process.kill()
        left = [loop.name for loop in self._all_loops() if not loop.unwind()]
        for loop in self._all_loops():
            loop.close()
        return left

    def _all_loops(self) -> list[VirtualLoop]:
        of_processes = [loop for process in self.processes for loop in process.loops]
        return of_processes + [loop for loop in self.loops if loop not in of_processes]


class Process:
    """A process of the world: what runs in it ends with it."""

    def __init__(self, world: World, name: str, *, skew_s: float = 0.0, around_body: AroundBody | None = None) -> None:
        self.world = world
        self.name = name
        self.skew_s = skew_s
        """How far its wall clock is ahead of the true time; may be changed while it runs."""
        self.around_body = around_body
        self.mortal = True
        """Whether a message's fate may end it."""
        self.hidden = False
        """Whether the store cannot see its death, so that the lease alone decides."""
        self.client = False
        self.served = False
        """Whether a client has all it wanted."""
        self.deployment = ""
        self.queues: tuple[str, ...] = ("default",)
        self.commit_rows_max = COMMIT_ROWS_MAX
        self.worker: Worker | None = None
        self.alive = True
        self.paused = False
        self.at_end: list[Callable[[], object]] = []
        """Called when it is killed or has ended."""
        self._started_at = world.now
        self.loops: list[VirtualLoop] = [world.loop(name, self)]
        self.main: asyncio.Task[Any] | None = None

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        """Begin; the process ends when this does. It inherits no context: whoever starts it may be in the middle of
        something, the end of the process before it, say."""
        self.main = self.loops[0].create_task(main, context=contextvars.Context())
        self.main.add_done_callback(lambda _: self.kill())

    # -- fates -----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it here and now."""
        if not self.alive:
            return
        self.alive = False
        for loop in self.loops:
            loop.halted = True
        self._silence(self.loops)
        for tell in self.at_end:
            tell()

    def pause(self) -> None:
        """Stop the whole process, as SIGSTOP does."""
        self._silence(self.loops)
        self.paused = True

    def block(self) -> None:
        """Stop its main loop only, as code that does not await does."""
        self._silence(self.loops[:1])
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        if self.alive and self.paused:
            self.paused = False
            self.world.loops += [loop for loop in self.loops if loop not in self.world.loops]

    def _silence(self, loops: list[VirtualLoop]) -> None:
        self.world.loops = [loop for loop in self.world.loops if loop not in loops]

    # -- surroundings ----------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Its monotonic clock, which began somewhere else than its neighbours'."""
        return self.world.now - self._started_at + 1000.0

    def wall_us(self) -> int:
        """Its wall clock."""
        return self.world.wall_us() + int(self.skew_s * 1e6)

    def surroundings(self, *, beside: Callable[[str, Main], SideLoop] | None = None) -> Surroundings:
        """What a worker in it stands on."""
        chance = random.Random(self.world.random.random())
        return Surroundings(
            clock=self, random=chance, pools=self._pools, beside=beside or self._beside, around_body=self.around_body,
            commit_rows_max=self.commit_rows_max, ahead_max=self.world.ahead_max,
        )  # fmt: skip

    def _pools(self) -> Pools:
        return InlinePools()

    def _beside(self, name: str, main: Main) -> SideLoop:
        return _VirtualSideLoop(self, name, main)


class _VirtualSideLoop:
    """A second loop of a process."""

    def __init__(self, process: Process, name: str, main: Main) -> None:
        self._process = process
        self._name = name
        self._main = main
        self._task: asyncio.Task[Any] | None = None
        self._loop: VirtualLoop | None = None

    def start(self) -> None:
        world = self._process.world
        self._loop = world.loop(f"{self._process.name} {self._name}", self._process)
        self._process.loops.append(self._loop)
        self._task = self._loop.create_task(self._main())

    async def stop(self) -> None:
        if self._task is None or self._loop is None:
            return
        task, loop = self._task, self._loop
        here = asyncio.get_running_loop()
        ended = here.create_future()
        task.add_done_callback(lambda _: here.call_soon_threadsafe(ended.set_result, None))
        loop.call_soon_threadsafe(task.cancel)
        await ended
        self._process.world.loops = [each for each in self._process.world.loops if each is not loop]
