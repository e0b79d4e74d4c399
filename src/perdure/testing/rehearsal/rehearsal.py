"""The stage: an app's agents on workers of a simulated world."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, cast

from perdure.app import App
from perdure.client.handles import Handle
from perdure.core.changes import AppendCheckpoint
from perdure.core.durations import seconds
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Run, run_id
from perdure.errors import UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.frames import StepFrame
from perdure.runtime.settings import worker_settings
from perdure.runtime.step import Step
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.rehearsal.backstage import Crossroads, Nobody
from perdure.testing.rehearsal.faults import Fault, Moment
from perdure.testing.simulation.wire import Database, Request
from perdure.testing.simulation.world import Process, World

T = TypeVar("T")

LEASE_S: Final = 30 * 365 * 86_400.0
"""Nobody renews here: a death is told at once, and no rehearsal lasts longer."""
POLL_S: Final = 86_400.0
"""Hints are never lost here; looks are for what becomes due by itself."""
SPAWN_S: Final = 0.1
"""After how long a new worker takes the place of one that died."""
WITHIN: Final = "30d"


@dataclass(frozen=True, slots=True)
class Execution:
    """A step's body that began."""

    step: str
    key: str
    run_id: str
    super_step: int
    attempt: int
    worker: str
    at: datetime


class NeverEnded(AssertionError):
    """What was waited for did not happen within the (virtual) time given; the message says where everything stands."""


@contextmanager
def rehearse(app: App, *faults: Fault, deployment: str = "rehearsal", seed: int = 0) -> Iterator[Rehearsal]:
    """Put the app's agents on a stage of their own until the block ends: no store, no time and no process of the real
    world. `seed`: other interleavings of what happens at the same moment."""
    state = random.getstate()
    random.seed(seed)
    stage = Rehearsal(app, faults, deployment=deployment, seed=seed)
    try:
        with stage._set():
            yield stage
    finally:
        random.setstate(state)


@dataclass
class Rehearsal:
    """The stage, while it is set. Make it by `rehearse`."""

    app: App
    faults: tuple[Fault, ...]
    deployment: str
    seed: int
    executions: list[Execution] = field(default_factory=list)
    """Every body that began, in order."""
    crashes: int = 0
    """Worker processes that died."""
    _names: dict[tuple[int, int, str], str] = field(default_factory=dict, repr=False)
    """By run, super-step and key, the name of the step: a key need not show it."""

    # -- the play --------------------------------------------------------------------------------------------

    def run(
        self, agent: Agent[..., Any] | str, /, *args: Any, within: float | str | timedelta = WITHIN, **kwargs: Any
    ) -> Any:
        """Start a run and return its result. Raises what `Handle.result` raises, and `NeverEnded` after `within`."""

        async def scene() -> Any:
            handle: Handle[Any] = await self.app.start(agent, *args, **kwargs)
            return await handle.result()

        return self.play(scene, within=within)

    def play(self, scene: Callable[[], Coroutine[Any, Any, T]], *, within: float | str | timedelta = WITHIN) -> T:
        """Call this async function as a client of the app would, in virtual time, and return what it returns:
        `await app.start(...)`, `await handle.result()`, `await asyncio.sleep(3600)`."""
        client = self._world.process(f"client {len(self._world.processes)}")
        task = client.loops[0].create_task(self._act(scene))
        limit_s = seconds(within)
        if not self._world.run(task.done, deadline_s=limit_s):
            raise NeverEnded(f"not over after {limit_s:g} s of virtual time; {self._standing()}")
        client.kill()
        result: T = task.result()
        return result

    def advance(self, by: float | str | timedelta) -> None:
        """Let virtual time pass."""
        self._world.run(lambda: False, deadline_s=seconds(by))

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._world.wall_us() / 1e6, UTC)

    # -- what happens to it ----------------------------------------------------------------------------------

    def crash(self) -> None:
        """End the worker's process now; another one takes its place."""
        self._crash(self._worker)

    def deploy(self, deployment: str, agents: Mapping[str, Agent[..., Any]] | App | None = None) -> None:
        """Let a worker with this version's code take the place of the present one, which is drained: other agents under
        the same names, or the same. Runs stay pinned to the version they began under."""
        old = self._worker
        if agents is not None:
            self._agents = agents.agents if isinstance(agents, App) else dict(agents)
        self.deployment = deployment
        self._hire()
        if old.worker is not None:
            old.loops[0].call_soon_threadsafe(old.worker.stop)

    # -- what has happened -----------------------------------------------------------------------------------

    def count(self, step: str) -> int:
        """How often a body of this step (by name, or by key) began."""
        return sum(step in (each.step, each.key) for each in self.executions)

    def keys(self) -> list[str]:
        """The keys of all bodies that began, in order, as they began."""
        return [each.key for each in self.executions]

    # -- inside ----------------------------------------------------------------------------------------------

    @contextmanager
    def _set(self) -> Iterator[None]:
        self._world = World(self.seed)
        self._agents = dict(self.app.agents)
        if not self._agents:
            raise UsageError(f"app {self.app.name} has no agents to rehearse; decorate one with @app.agent")
        self._root = MemoryStore(now_us=self._world.wall_us)
        self._database = Database(self._world, self._root, witness=cast(Any, self))
        opening = self._database.loop.create_task(self._root.open())
        self._world.run(opening.done, deadline_s=1.0)
        if isinstance(self.app._store, Crossroads):
            raise UsageError(f"app {self.app.name} is on a stage already; end that rehearsal first")
        before = self.app.use_store(cast(Store, Crossroads(self._database)))
        try:
            self._hire()
            yield
            self._check_faults()
        finally:
            self._world.close()
            self.app.use_store(before)

    def _hire(self) -> None:
        """Start a worker process."""
        process = self._worker = self._world.process(f"worker {len(self._world.processes)}")
        process.around_body = functools.partial(self._around_body, process)
        process.start(self._work(process, self.deployment, self._agents))

    async def _work(self, process: Process, deployment: str, agents: Mapping[str, Agent[..., Any]]) -> None:
        client = await self.app._client()
        settings = worker_settings(
            name=process.name, deployment=deployment, lease_s=LEASE_S, poll_s=POLL_S,
            queues=sorted({agent.settings.queue for agent in agents.values()}), grace_s=60.0,
        )  # fmt: skip
        process.worker = Worker(
            client.store, agents, settings=settings, durability=self.app.durability, on_ended=client.ended,
            surroundings=process.surroundings(beside=Nobody),
        )  # fmt: skip
        async with process.worker:
            await process.worker.stopped()
        await self.app.close()

    async def _act(self, scene: Callable[[], Coroutine[Any, Any, T]]) -> T:
        (await self.app._client()).poll_s = POLL_S
        try:
            return await scene()
        finally:
            await self.app.close()

    async def _around_body(
        self, process: Process, at: StepFrame, step: Step[..., Any], body: Callable[[], Awaitable[Any]]
    ) -> Any:
        claimed, name = at.super_step.claimed, step.settings.name
        worker = f"w{at.super_step.host.worker}"
        self._names[claimed.run, at.super_step.number, at.key] = name
        self.executions.append(
            Execution(name, at.key, run_id(claimed.run), at.super_step.number, at.attempt, worker, self.now)
        )
        for fault in self._striking(Moment.BEFORE, name, at.key):
            await asyncio.sleep(fault.delay_s)
            if fault.crashes:
                await self._die(process)
        value: Any = None
        instead = self._striking(Moment.INSTEAD, name, at.key)
        if not instead:
            value = await body()
        elif instead[0].error is not None:
            raise instead[0].error
        else:
            value = self._answer(instead[0], body)
        if any(fault.crashes for fault in self._striking(Moment.IN, name, at.key)):
            await self._die(process)
        return value

    def _answer(self, fault: Fault, body: Callable[[], Awaitable[Any]]) -> Any:
        assert fault.answer is not None and isinstance(body, functools.partial)
        args, kwargs = body.args[-2:]
        return fault.answer(*args, **kwargs)

    def _striking(self, moment: Moment, name: str, key: str) -> list[Fault]:
        """Every fault counts, also while another one strikes."""
        return [fault for fault in self.faults if fault.strikes(moment, name, key)]

    async def saw(self, request: Request, answer: Any) -> None:
        """The database has done this (`Witness`)."""
        if request.verb != "commit" or isinstance(answer, Exception) or not answer.alive:
            return
        for change in request.args[1]:
            if isinstance(change, AppendCheckpoint) and change.run not in answer.lost:
                name = self._names.get((change.run, change.super_step, change.key), "")
                if self._striking(Moment.AFTER, name, change.key):
                    self._crash(request.caller.process)

    async def _die(self, process: Process) -> None:
        self._crash(process)
        await asyncio.get_running_loop().create_future()

    def _crash(self, process: Process) -> None:
        if not process.alive:
            return
        worker = None if process.worker is None else process.worker.id
        process.kill()
        self.crashes += 1
        self._database.loop.call_later(SPAWN_S, self._succeed, process, worker)

    def _succeed(self, process: Process, worker: int | None) -> None:
        """Take over from a worker that died, and start another one in its place."""
        if worker is not None:
            self._database.loop.create_task(self._root.take_over([worker], recoveries_max=RECOVERIES_MAX))
        if process is self._worker:
            self._hire()

    def _check_faults(self) -> None:
        """A fault that never struck proves nothing: its step is misspelt, or was never reached."""
        idle = [fault for fault in self.faults if not fault.struck]
        if idle:
            seen = sorted({each.step for each in self.executions})
            raise AssertionError(
                f"these never happened: {', '.join(f'{each.moment.value} {each.step!r}' for each in idle)}; steps that "
                f"were executed: {', '.join(seen) or 'none'}"
            )

    def _standing(self) -> str:
        """Where every run stands, in words."""
        rows = [row for row in self._root._data.runs.values() if row.ended_at is None]
        return "; ".join(_stands(row) for row in rows) or "every run has ended"


def _stands(row: Run) -> str:
    """Where an unfinished run stands."""
    pinned = f", pinned to {row.deployment}" if row.deployment is not None else ""
    why = f" ({row.reason}: {row.detail})" if row.reason else ""
    return f"{run_id(row.id)} of {row.agent} is {row.state}{pinned}{why}"
