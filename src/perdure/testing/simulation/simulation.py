"""A simulation: a seeded world with workers, clients and an operator, bad weather for a while, and then calm.

The workers, clients and the operator are the real runtime and the real app. While the weather lasts, nature kills,
stops, blocks and drains them, moves clocks and takes the store away. Then it calms down, and within a bounded time
every run that was ever started must be completed, with a result that its log explains.
"""

from __future__ import annotations

import asyncio
import functools
import random
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.core.records import RunState, run_id
from perdure.errors import Conflict, RunFailed, RunHeld, StoreError, StoreUnavailable
from perdure.runtime.frames import StepFrame
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.step import Step
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.lane import InlineLane
from perdure.testing.simulation import playbook
from perdure.testing.simulation.nature import Nature
from perdure.testing.simulation.orders import Order, draw_orders
from perdure.testing.simulation.report import Report, StoreKind
from perdure.testing.simulation.weather import Weather, draw
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.witness import Witness
from perdure.testing.simulation.world import Process, World

LEASE_S: Final = 3.0
STORM_S: Final = (4.0, 14.0)
"""How long the weather lasts."""
CALM_S: Final = 180.0
"""Within so much time after it, everything must have ended. Backoffs and suspects, one at a time, take a while."""
DEPLOYMENTS: Final = ("v1", "v2")
SPAWN_S: Final = (0.05, 3.0)
"""After how long somebody starts a new process for one that has ended."""
BODY_S: Final = 0.05


class PlayedWorld(World):
    """A world with the playbook's needs."""

    witness: Witness

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._tokens = 0
        self._mended: set[str] = set()
        self.calm = False

    def next_token(self) -> int:
        """A number that no other execution has."""
        self._tokens += 1
        return self._tokens

    def mend(self, run: str) -> None:
        self._mended.add(run)

    def mended(self, run: str) -> bool:
        """Whether what is broken works for this run."""
        return run in self._mended


def simulate(seed: int, *, store: StoreKind = "memory", weather: Weather | None = None) -> Report:
    """Live through one seed. The module `random` is seeded meanwhile, and given back as it was."""
    state = random.getstate()
    random.seed(seed)
    try:
        world = PlayedWorld(seed)
        with _root(store, world) as root:
            return Simulation(world, seed, store, root, weather or draw(world.random)).live()
    finally:
        random.setstate(state)


@contextmanager
def _root(kind: StoreKind, world: PlayedWorld) -> Iterator[Callable[[Callable[[], int]], Store]]:
    """Makes the store that everybody shares, given its clock."""
    if kind == "memory":
        yield lambda now_us: MemoryStore(now_us=now_us)
        return
    with tempfile.TemporaryDirectory(prefix="perdure-simulation-") as folder:
        path = Path(folder) / "world.db"
        yield lambda now_us: SQLiteStore(path, synchronous="off", now_us=now_us, lane=InlineLane)


@dataclass
class Simulation:
    """One life of a world."""

    world: PlayedWorld
    seed: int
    store: StoreKind
    make_root: Callable[[Callable[[], int]], Store]
    weather: Weather
    lease_s: float = LEASE_S
    orders: list[Order] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)
    spawned: int = 0
    settings: list[dict[str, Any]] = field(default_factory=list)

    def live(self) -> Report:
        """Storm, then calm, then the account."""
        world, chance = self.world, self.world.random
        database = self.database = Database(world, self.make_root(self._now_us))
        database.weather = self.weather
        steps = {step.settings.name: step.settings.retry.attempts for step in playbook.STEPS}
        self.witness = world.witness = database.witness = Witness(
            world, database.root, self.lease_s, database.now_us, steps
        )
        self._in_database(database.root.open())
        self.orders = draw_orders(chance)
        self._people()
        nature = Nature(self)
        storm_s = chance.uniform(*STORM_S)
        world.run(lambda: False, deadline_s=storm_s)
        nature.calm_down()
        done = world.run(self._all_is_done, deadline_s=CALM_S)
        if not done:
            self._blame_unfinished()
        else:
            self._account()
        left = world.close()
        self.witness.violations += [f"a loop of {name} did not end" for name in left]
        self._failures()
        return self._report()

    def _now_us(self) -> int:
        return self.database.now_us()

    def _in_database(self, act: Any) -> None:
        task = self.database.loop.create_task(act)
        self.world.run(task.done, deadline_s=1.0)
        task.result()

    # -- who lives here --------------------------------------------------------------------------------------

    def _people(self) -> None:
        chance = self.world.random
        for _ in range(chance.choice((1, 2, 2, 3, 4))):
            deployment = chance.choice(DEPLOYMENTS)
            self.settings.append({"deployment": deployment, "concurrency": chance.choice((1, 2, 5, 20))})
            self.spawn_worker(self.settings[-1])
        # Whoever is pinned to a deployment finds a worker of it, if not at once.
        for deployment in DEPLOYMENTS:
            if all(each["deployment"] != deployment for each in self.settings):
                self.settings.append({"deployment": deployment, "concurrency": 5})
                self.spawn_later(self.settings[-1])
        halves = self.orders[::2], self.orders[1::2]
        for number, half in enumerate(half for half in halves if half):
            self.spawn_client(number, half)
        operator = self.world.process("operator")
        operator.mortal = False
        operator.start(self._operate(operator))

    def spawn_worker(self, settings: dict[str, Any]) -> Process:
        """Start a worker process."""
        self.spawned += 1
        name = f"worker {self.spawned} ({settings['deployment']})"
        process = self.world.process(name, skew_s=self.world.random.choice((0.0, 0.0, 600.0, -600.0)))
        process.around_body = functools.partial(self._around_body, process)
        process.deployment = settings["deployment"]
        process.hidden = self.world.random.random() < self.database.weather.sessions_hidden
        process.at_end.append(lambda: self.workers.remove(process))
        process.at_end.append(lambda: self.spawn_later(settings))
        self.workers.append(process)
        process.start(self._work(process, settings))
        return process

    def spawn_later(self, settings: dict[str, Any]) -> None:
        """Start a worker in place of one that has ended, in a while."""
        self._spawn_later(self.spawn_worker, settings)

    def _spawn_later(self, spawn: Callable[..., object], *args: Any) -> object:
        return self.database.loop.call_later(self.world.random.uniform(*SPAWN_S), spawn, *args)

    def spawn_client(self, number: int, orders: list[Order]) -> None:
        """Start a client process; one that is killed is started again, with the same orders."""
        process = self.world.process(f"client {number}")
        process.client = True
        process.at_end.append(lambda: None if process.served else self._spawn_later(self.spawn_client, number, orders))
        process.start(self._order(process, orders))

    # -- what they do ----------------------------------------------------------------------------------------

    async def _work(self, process: Process, settings: dict[str, Any]) -> None:
        store = self.database.connect(process)
        await _insist(store.open)
        worker_settings = WorkerSettings(
            name=process.name, deployment=settings["deployment"], concurrency=settings["concurrency"],
            lease_s=self.lease_s, poll_s=1.0, grace_s=1.0,
        )  # fmt: skip
        agents = {name: role.agent for name, role in playbook.ROLES.items()}
        worker = process.worker = Worker(store, agents, settings=worker_settings, surroundings=process.surroundings())
        async with worker:
            await worker.stopped()
        await store.close()

    async def _around_body(
        self, process: Process, at: StepFrame, step: Step[..., Any], body: Callable[[], Awaitable[Any]]
    ) -> Any:
        """A body begins: nature has a word in it."""
        chance, weather = self.world.random, self.database.weather
        self.witness.body(process, at, step.settings.name)
        await asyncio.sleep(chance.expovariate(1 / BODY_S))
        if chance.random() < weather.body_kills:
            self.database.faults["died in a body"] += 1
            process.kill()
            await asyncio.sleep(0)
        if chance.random() < weather.body_slow:
            self.database.faults["body slow"] += 1
            await asyncio.sleep(chance.uniform(1.0, 8.0))
        if chance.random() < weather.body_fails:
            self.database.faults["body failed"] += 1
            raise ConnectionError("the simulated provider is gone")
        return await body()

    async def _order(self, process: Process, orders: list[Order]) -> None:
        app = App("simulated", store=self.database.connect(process))
        app.agents.update({name: role.agent for name, role in playbook.ROLES.items()})
        await _insist(app._client)
        async with asyncio.TaskGroup() as group:
            for order in orders:
                group.create_task(self._order_one(app, order))
        process.served = True
        await app.close()

    async def _order_one(self, app: App, order: Order) -> None:
        await asyncio.sleep(max(0.0, order.at_s - self.world.now))

        async def start() -> Any:
            return await app.start(
                order.agent, *order.args, thread_id=order.thread_id, key=order.key, if_busy=order.if_busy,
                delay=order.delay, priority=order.priority,
            )  # fmt: skip

        handle = await _insist(start)
        self.witness.started(order.key, int(handle.run_id[1:]))
        while order.waits:
            try:
                value = msgspec.to_builtins(await handle.result())
            except RunHeld:
                await asyncio.sleep(1.0)
            except RunFailed:
                await asyncio.sleep(1.0)  # somebody sends it on
            except StoreError:
                await asyncio.sleep(0.5)
            else:
                self.witness.ended(int(handle.run_id[1:]), value, failed=False)
                break

    async def _operate(self, process: Process) -> None:
        """Look after what needs a person."""
        app = App("simulated", store=self.database.connect(process))
        app.agents.update({name: role.agent for name, role in playbook.ROLES.items()})
        await _insist(app._client)
        while True:
            await asyncio.sleep(self.world.random.uniform(0.5, 3.0))
            try:
                await self._look_after(app)
            except (StoreError, Conflict):
                continue

    async def _look_after(self, app: App) -> None:
        for held in await app.runs(state="held"):
            self.witness.note(f"operator: releases {held.run_id}, held as {held.held_reason}")
            await app.release(held.run_id)
        for failed in await app.runs(state="failed"):
            self.world.mend(failed.run_id)
            await app.retry(failed.run_id)

    # -- the account -----------------------------------------------------------------------------------------

    def _all_is_done(self) -> bool:
        if len(self.witness.told) < len({order.key for order in self.orders}):
            return False
        runs = self.witness.look.runs.values()
        return all(process.served or not process.alive for process in self.world.processes if process.client) and all(
            run.state is RunState.COMPLETED for run in runs
        )

    def _blame_unfinished(self) -> None:
        for run in self.witness.look.runs.values():
            if run.state is not RunState.COMPLETED:
                self.witness.blame(
                    f"run {run_id(run.id)} of {run.agent} is {run.state} {CALM_S:g} s after the storm: worker "
                    f"{run.worker}, ready {run.ready}, fence {run.fence}, pinned to {run.deployment}, {run.reason}"
                )
        for order in self.orders:
            if order.key not in self.witness.told:
                self.witness.blame(f"no client was told of a run for {order.key!r}")
        if not self.witness.violations:
            self.witness.blame("all runs have completed, and a client still waits")

    def _account(self) -> None:
        """Everything has ended: does the log explain it?"""
        look = self.witness.look
        arguments = {self.witness.told[order.key]: order.args for order in reversed(self.orders)}
        entries: dict[str, list[str]] = {}
        for run in sorted(look.runs.values(), key=lambda run: (run.thread, run.ordinal)):
            if run.id not in arguments:
                self.witness.blame(f"run {run_id(run.id)} was started by nobody")
                continue
            result = self.witness.result(run)
            if (wrong := playbook.complaint(run, arguments[run.id], look.logs[run.id], result)) is not None:
                self.witness.blame(wrong)
            if run.agent == "tally":
                label, rounds = arguments[run.id][:2]
                entries.setdefault(run.thread_id, []).extend(f"{label} {n}" for n in range(rounds))
                if result != entries[run.thread_id]:
                    self.witness.blame(
                        f"thread {run.thread_id} after {run_id(run.id)}: {result}, not {entries[run.thread_id]}"
                    )

    def _failures(self) -> None:
        """What nobody caught in the loops."""
        loops = [self.database.loop, *(loop for process in self.world.processes for loop in process.loops)]
        for loop in loops:
            for context in loop.failures:
                error = context.get("exception")
                if error is not None and not isinstance(error, StoreUnavailable | asyncio.CancelledError):
                    self.witness.blame(f"nobody caught {error!r} in {loop.name}: {context.get('message')}")

    def _report(self) -> Report:
        witness, database = self.witness, self.database
        return Report(
            seed=self.seed, store=self.store, weather=self.weather, violations=tuple(witness.violations),
            faults=database.faults, runs=len(witness.look.runs), bodies=witness.bodies_all, repeated=witness.repeated,
            requests=database.requests, turns=self.world.turns, seconds=self.world.now, story=tuple(witness.history),
            digest=zlib.crc32("\n".join(witness.history).encode()),
        )  # fmt: skip


async def _insist(act: Callable[[], Any]) -> Any:
    """Do it again while the store is away."""
    while True:
        try:
            return await act()
        except StoreUnavailable:
            await asyncio.sleep(0.2)
