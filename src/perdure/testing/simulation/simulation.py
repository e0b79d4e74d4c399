"""A simulation: a seeded world with workers, clients and an operator, bad weather for a while, and then calm.

The workers, clients and the operator are the real runtime and the real app. While the weather lasts, nature kills,
stops, blocks and drains them, moves clocks and takes the store away. Then it calms down, and within a bounded time
every run that was ever started must be completed, with a result that its log explains.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from perdure.app import App
from perdure.core.records import RunState, run_id
from perdure.errors import Conflict, RunFailed, RunHeld, StoreError, StoreUnavailable
from perdure.runtime.frames import StepFrame
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.lane import InlineLane
from perdure.testing.simulation import playbook
from perdure.testing.simulation.weather import CALM, Weather, draw
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.witness import Witness
from perdure.testing.simulation.world import Process, World

StoreKind = Literal["memory", "sqlite"]

LEASE_S: Final = 3.0
STORM_S: Final = (4.0, 14.0)
"""How long the weather lasts."""
CALM_S: Final = 180.0
"""Within so much time after it, everything must have ended. Backoffs and suspects, one at a time, take a while."""
DEPLOYMENTS: Final = ("v1", "v2")
SPAWN_S: Final = (0.05, 3.0)
"""After how long somebody starts a new process for one that has ended."""
BODY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """A run that a client is to start."""

    number: int
    agent: str
    args: tuple[Any, ...]
    key: str
    thread_id: str | None
    if_busy: str
    delay: float
    priority: int
    at_s: float
    waits: bool
    """Whether the client waits for its result."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a seed."""

    seed: int
    store: StoreKind
    weather: Weather
    violations: tuple[str, ...]
    faults: Counter[str]
    runs: int
    bodies: int
    repeated: int
    """Bodies that began again."""
    requests: int
    turns: int
    seconds: float
    """Of virtual time."""
    story: tuple[str, ...]
    digest: int
    """Of the story: the same seed gives the same."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        if self.ok:
            return f"seed {self.seed} on {self.store}: well"
        first = "\n  ".join(self.violations)
        return f"seed {self.seed} on {self.store}:\n  {first}\n{self.command}"

    @property
    def command(self) -> str:
        """The line that repeats it."""
        return f"python -m perdure.testing.simulation --seed {self.seed} --store {self.store} --story"


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
            world, database.root, LEASE_S, database.now_us, steps
        )
        self._in_database(database.root.open())
        self.orders = _orders(chance)
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
        operator = self.world.process("operator", before_body=None)
        operator.mortal = False
        operator.start(self._operate(operator))

    def spawn_worker(self, settings: dict[str, Any]) -> Process:
        """Start a worker process."""
        self.spawned += 1
        name = f"worker {self.spawned} ({settings['deployment']})"
        process = self.world.process(name, before_body=None, skew_s=self.world.random.choice((0.0, 0.0, 600.0, -600.0)))
        process.before_body = lambda at: self._before_body(process, at)
        process.deployment = settings["deployment"]
        process.hidden = self.world.random.random() < self.database.weather.sessions_hidden
        process.at_end.append(lambda: self.workers.remove(process))
        process.at_end.append(lambda: self.spawn_later(settings))
        self.workers.append(process)
        process.start(self._work(process, settings))
        return process

    def spawn_later(self, settings: dict[str, Any]) -> None:
        """Start a worker in place of one that has ended, in a while."""
        delay_s = self.world.random.uniform(*SPAWN_S)
        self.database.loop.call_later(delay_s, self._spawn, settings)

    def _spawn(self, settings: dict[str, Any]) -> None:
        self.spawn_worker(settings)

    def spawn_client(self, number: int, orders: list[Order]) -> None:
        """Start a client process; one that is killed is started again, with the same orders."""
        process = self.world.process(f"client {number}", before_body=None)
        process.client = True
        process.at_end.append(
            lambda: process.served
            or self.database.loop.call_later(self.world.random.uniform(*SPAWN_S), self.spawn_client, number, orders)
        )
        process.start(self._order(process, orders))

    # -- what they do ----------------------------------------------------------------------------------------

    async def _work(self, process: Process, settings: dict[str, Any]) -> None:
        store = self.database.connect(process)
        await _insist(store.open)
        worker_settings = WorkerSettings(
            name=process.name, deployment=settings["deployment"], concurrency=settings["concurrency"], lease_s=LEASE_S,
            poll_s=1.0, grace_s=1.0,
        )  # fmt: skip
        agents = {name: role.agent for name, role in playbook.ROLES.items()}
        worker = process.worker = Worker(
            store, agents, settings=worker_settings, surroundings=process.surroundings()
        )
        async with worker:
            await worker.stopped()
        await store.close()

    async def _before_body(self, process: Process, at: StepFrame) -> None:
        """A body begins: nature has a word in it."""
        chance, weather = self.world.random, self.database.weather
        name = at.key.rpartition("/")[2].partition("#")[0]
        self.witness.body(process, at, name)
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
                return self.witness.ended(int(handle.run_id[1:]), value, failed=False)

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
        runs = self.witness.look.runs.values()
        return (
            all(process.served or not process.alive for process in self.world.processes if process.client)
            and len(self.witness.told) == len({order.key for order in self.orders})
            and all(run.state is RunState.COMPLETED for run in runs)
        )

    def _blame_unfinished(self) -> None:
        for run in self.witness.look.runs.values():
            if run.state is not RunState.COMPLETED:
                self.witness.blame(
                    f"run {run_id(run.id)} of {run.agent} is {run.state} {CALM_S:g} s after faults have stopped: worker "
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


def _orders(chance: random.Random) -> list[Order]:
    """What clients start in this world."""
    orders: list[Order] = []
    roles = list(playbook.ROLES.values())
    threads = [f"thread {n}" for n in range(chance.choice((1, 2, 5)))]
    for number in range(chance.choice((1, 3, 6, 10, 16))):
        role = chance.choice(roles)
        shared = chance.random() < 0.5
        orders.append(
            Order(
                number=number,
                agent=role.agent.name,
                args=role.arguments(number),
                key=f"key {number}",
                thread_id=f"{role.agent.name} on {chance.choice(threads)}" if shared else None,
                if_busy="enqueue",
                delay=chance.choice((0.0, 0.0, 0.0, 1.5)),
                priority=chance.choice((0, 0, 5)),
                at_s=chance.uniform(0.0, 5.0),
                waits=chance.random() < 0.7,
            )
        )
    # Two clients may start the same thing at once: one run.
    return orders + [chance.choice(orders) for _ in range(chance.choice((0, 0, 2)))]


class Nature:
    """What happens to processes, clocks and the store, at random times, until it calms down."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.database = simulation.database
        self.events = {
            "kills": self._kill,
            "pauses": self._pause,
            "blocks": self._block,
            "drains": self._drain,
            "outages": self._outage,
            "wall_jumps": self._wall_jump,
            "store_jumps": self._store_jump,
            "client_kills": self._client_kill,
        }
        self._calm = False
        for name in self.events:
            self._schedule(name)

    def calm_down(self) -> None:
        """No faults from here on; what is stopped goes on."""
        self._calm = True
        self.database.weather = CALM
        self.database.down = False
        for process in self.world.processes:
            process.hidden = False
            process.resume()

    def _schedule(self, name: str) -> None:
        a_minute = getattr(self.database.weather, name)
        if a_minute and not self._calm:
            self.database.loop.call_later(self.world.random.expovariate(a_minute / 60), self._happen, name)

    def _happen(self, name: str) -> None:
        if not self._calm:
            self.events[name]()
            self._schedule(name)

    def _note(self, fault: str, what: object = "") -> None:
        self.database.faults[fault] += 1
        self.simulation.witness.note(f"-- {fault} {what}")

    def _worker(self) -> Process | None:
        running = [process for process in self.simulation.workers if process.alive and not process.paused]
        return self.world.random.choice(running) if running else None

    def _kill(self) -> None:
        if (process := self._worker()) is not None:
            self._note("worker killed", process.name)
            process.kill()

    def _client_kill(self) -> None:
        running = [each for each in self.world.processes if each.client and each.alive and not each.served]
        if running:
            process = self.world.random.choice(running)
            self._note("client killed", process.name)
            process.kill()

    def _pause(self) -> None:
        if (process := self._worker()) is not None:
            self._note("worker stopped", process.name)
            process.pause()
            self._resume_later(process)

    def _block(self) -> None:
        if (process := self._worker()) is not None:
            self._note("event loop blocked", process.name)
            process.block()
            self._resume_later(process)

    def _resume_later(self, process: Process) -> None:
        for_s = self.world.random.choice((0.2, 1.0, LEASE_S, 2 * LEASE_S, 3 * LEASE_S))
        self.database.loop.call_later(for_s, process.resume)

    def _drain(self) -> None:
        process = self._worker()
        if process is not None and process.worker is not None:
            self._note("worker drained", process.name)
            self._signal(process)
            if self.world.random.random() < 0.3:
                self.database.loop.call_later(self.world.random.uniform(0.0, 1.0), self._signal, process)

    def _signal(self, process: Process) -> None:
        if process.alive and process.worker is not None:
            process.loops[0].call_soon_threadsafe(process.worker.stop)

    def _outage(self) -> None:
        self._note("store outage")
        self.database.down = True
        self.database.loop.call_later(self.world.random.choice((0.3, 2.0, 2 * LEASE_S)), self._back)

    def _back(self) -> None:
        self.database.down = False

    def _wall_jump(self) -> None:
        process = self._worker()
        if process is not None:
            self._note("wall clock jumped", process.name)
            process.skew_s += self.world.random.choice((-3600.0, -5.0, 5.0, 3600.0))

    def _store_jump(self) -> None:
        self._note("store clock jumped")
        self.database.ahead_us += int(self.world.random.choice((0.5, 5.0, 60.0)) * 1e6)

