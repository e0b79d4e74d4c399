"""The people of a simulated world: worker processes, clients that start runs and wait for them, an operator.

All of them are the real runtime and the real app. Whoever is killed comes back after a while, as somebody new.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from perdure.app import App
from perdure.core.changes import IntendEffect
from perdure.core.limits import COMMIT_ROWS_MAX, SUPER_STEPS_AHEAD_MAX
from perdure.core.records import HeldReason, RunState, run_id
from perdure.errors import (
    Conflict,
    RunCancelled,
    RunFailed,
    RunHeld,
    StartMismatch,
    StoreError,
    StoreUnavailable,
    ThreadBusy,
)
from perdure.runtime.frames import BesideFrame, StepFrame
from perdure.runtime.handle import Handle
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.worker import Worker
from perdure.testing.simulation import playbook
from perdure.testing.simulation.auditor import Auditor
from perdure.testing.simulation.orders import Order, Theme
from perdure.testing.simulation.played import PlayedWorld
from perdure.testing.simulation.public import Public, app_of
from perdure.testing.simulation.readiness import POLL_S
from perdure.testing.simulation.recipients import BILLS
from perdure.testing.simulation.stewards import redeliver
from perdure.testing.simulation.wire import Database, Request
from perdure.testing.simulation.witness import Witness
from perdure.testing.simulation.world import Process

LEASE_S: Final = 3.0
GRACE_S: Final = 1.0
DEPLOYMENTS: Final = ("v1", "v2")
QUEUES: Final = ("default", "side")
COMMITS_OF: Final = (1, 3, COMMIT_ROWS_MAX)
"""How many changes a worker puts into one commit at most: with few, much is in flight and in a certain order."""
AHEAD_OF: Final = (1, 1, 2, SUPER_STEPS_AHEAD_MAX)
"""How many super-steps an agent may be ahead of the disk."""
SPAWN_S: Final = (0.05, 3.0)
"""After how long somebody starts a new process for one that has ended."""
BODY_S: Final = 0.05
UNSEEN_S: Final = (0.9, 2.1)
UNSEEN: Final = (0.0, 0.3, 0.7)
"""How often a worker that lives is stopped and not seen for so long, in three kinds of world."""
AGAIN: Final = 0.05
"""How often, at each look, an operator sends on a run that was cancelled."""
ENDS_TOLD: Final = (RunState.COMPLETED, RunState.CANCELLED)
KILLS: Final = 0.95
"""How often a deadly body kills."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker process is started with, each time."""

    deployment: str
    concurrency: int
    queues: tuple[str, ...]


@dataclass
class People:
    """Who lives in this world."""

    world: PlayedWorld
    database: Database
    witness: Witness
    orders: list[Order]
    theme: Theme
    auditor: Auditor
    workers: list[Process] = field(default_factory=list)
    """The worker processes that live."""
    unseen: float = 0.0
    _spawned: int = 0

    def settle(self) -> None:
        """Begin."""
        chance = self.world.random
        self.world.ahead_max = chance.choice(AHEAD_OF)
        posts: list[Settings] = []
        for _ in range(chance.choice((1, 2, 2, 3, 4))):
            queues = chance.choice((("default",), QUEUES, QUEUES))
            posts.append(Settings(chance.choice(DEPLOYMENTS), chance.choice((1, 2, 5, 20)), queues))
            if self.theme is Theme.EFFECTS:  # whoever is taken over has somebody who goes on at once
                posts[-1] = Settings(DEPLOYMENTS[0], 20, QUEUES)
            self._spawn_worker(posts[-1])
        # Whoever is pinned to a deployment finds a worker of it that serves its queue, if not at once.
        for deployment in DEPLOYMENTS:
            if all(each.deployment != deployment or each.queues != QUEUES for each in posts):
                self._spawn_later(self._spawn_worker, Settings(deployment, 5, QUEUES))
        halves = self.orders[::2], self.orders[1::2]
        for number, half in enumerate(half for half in halves if half):
            self._spawn_client(number, half)
        Public(self.world, self.database, self.witness, self.theme).settle()
        if self.theme is Theme.EFFECTS:
            self.unseen = self.world.provider.chance.choice(UNSEEN)
            self.database.overheard = functools.partial(self._overhear, self.database.overheard)
        operator = self.world.process("operator")
        operator.mortal = False
        operator.start(self._operate(operator))

    def _spawn_worker(self, settings: Settings) -> None:
        """Start a worker process."""
        self._spawned += 1
        name = f"worker {self._spawned} ({settings.deployment})"
        process = self.world.process(name, skew_s=self.world.random.choice((0.0, 0.0, 600.0, -600.0)))
        process.around_body = functools.partial(self._around_body, process)
        process.deployment, process.queues = settings.deployment, settings.queues
        process.commit_rows_max = self.world.random.choice(COMMITS_OF)
        process.hidden = self.world.random.random() < self.database.weather.sessions_hidden
        process.at_end.append(lambda: self.workers.remove(process))
        process.at_end.append(lambda: self._spawn_later(self._spawn_worker, settings))
        self.workers.append(process)
        process.start(self._work(process, settings))

    def _spawn_later(self, spawn: Callable[..., object], *args: Any) -> object:
        """Start a process in place of one that has ended, in a while."""
        return self.database.loop.call_later(self.world.random.uniform(*SPAWN_S), spawn, *args)

    def _spawn_client(self, number: int, orders: list[Order]) -> None:
        """Start a client process; one that is killed is started again, with the same orders."""
        process = self.world.process(f"client {number}")
        process.client = True
        process.at_end.append(lambda: None if process.served else self._spawn_later(self._spawn_client, number, orders))
        process.start(self._order(process, orders))

    def _overhear(self, known: Callable[[Request], None], request: Request) -> None:
        """Some worker with effects is not seen any more, and soon taken over. Where it puts an intent on disk, it stops
        before it hears of that; when it goes on, its lease has not run out: it does what it intended."""
        known(request)
        changes = request.args[1] if request.verb == "commit" else ()
        policies = {each.policy for each in changes if isinstance(each, IntendEffect)}
        chance, calm = self.world.provider.chance, self.witness.readiness.calm_since is not None
        if not policies or calm or chance.random() >= self.unseen:
            return
        worker, process, loop = request.args[0], request.caller.process, self.database.loop
        if worker not in self.database.unseen:
            self.database.unseen = {worker}
        elif policies != {"retry"}:
            self.database.faults["worker stopped out of sight"] += 1
            loop.call_soon(process.pause)
            loop.call_later(chance.uniform(*UNSEEN_S), self._is_back, process)

    def _is_back(self, process: Process) -> None:
        self.database.unseen = set()
        process.resume()

    # -- what they do ----------------------------------------------------------------------------------------

    async def _work(self, process: Process, settings: Settings) -> None:
        store = self.database.connect(process)
        await _insist(store.open)
        worker_settings = WorkerSettings(
            name=process.name, deployment=settings.deployment, concurrency=settings.concurrency,
            queues=settings.queues, lease_s=LEASE_S, poll_s=POLL_S, grace_s=GRACE_S,
        )  # fmt: skip
        agents = {name: role.agent for name, role in playbook.ROLES.items()}
        hands_over = self.world.hands_over
        worker = process.worker = Worker(
            store, agents, settings=worker_settings, surroundings=process.surroundings(),
            sinks=self.world.recipients.sinks(self.witness) if hands_over else None,
            billing=BILLS if hands_over else None,
        )  # fmt: skip
        async with worker:
            await worker.stopped()
        await store.close()

    async def _around_body(self, process: Process, at: StepFrame, body: Callable[[], Awaitable[Any]]) -> Any:
        """A body begins: nature has a word in it."""
        if isinstance(at, BesideFrame):  # the provider sees what is undone, and asked
            return await body()
        self.witness.body(process, at)
        try:
            if at.effect_key is not None:  # nature has it in the provider's hands: what begins late may be sent late
                return await body()
            return await self._body(process, at, at.name, body)
        finally:
            self.witness.body_over(at)

    async def _body(self, process: Process, at: StepFrame, name: str, body: Callable[[], Awaitable[Any]]) -> Any:
        chance, weather = self.world.random, self.database.weather
        await asyncio.sleep(chance.expovariate(1 / BODY_S))
        poison = name == "deadly" and not self.world.mended(run_id(at.super_step.claimed.run))
        undoing = weather.undoing_kills if name == "undo" else 0.0
        if chance.random() < (KILLS if poison else weather.body_kills + undoing):
            self.database.faults["died in a body"] += 1
            process.kill()
            await asyncio.sleep(0)
        if chance.random() < weather.body_slow:
            self.database.faults["body slow"] += 1
            await asyncio.sleep(chance.uniform(1.0, 8.0))
        if chance.random() < weather.body_fails and name != "flaky":
            self.database.faults["body failed"] += 1
            raise ConnectionError("the simulated provider is gone")
        return await body()

    async def _order(self, process: Process, orders: list[Order]) -> None:
        app = app_of(self.database, process)
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
                queue=order.queue, delay=order.delay, priority=order.priority, deadline=order.deadline,
                tenant=order.tenant, budget=order.budget,
            )  # fmt: skip

        try:
            handle = await _insist(start)
        except (ThreadBusy, StartMismatch) as refusal:
            self.witness.refused(order.name, refusal)
        else:
            run = int(handle.run_id[1:])
            self.witness.started(order.name, order.key, run)
            if order.waits:
                await self._wait(handle, run)

    async def _wait(self, handle: Handle[Any], run: int) -> None:
        """For the result, however often somebody has to send the run on before."""
        while not self.witness.is_over(run) or self.witness.look.runs[run].state in ENDS_TOLD:
            try:
                value = await handle.result()
            except (RunHeld, RunFailed):
                await asyncio.sleep(1.0)
            except RunCancelled:
                self.witness.told_cancelled(run)
                break
            except StoreError:
                await asyncio.sleep(0.5)
            else:
                self.witness.ended(run, msgspec.to_builtins(value))
                break

    async def _operate(self, process: Process) -> None:
        """Look after what needs a person."""
        app = app_of(self.database, process)
        await _insist(app._client)
        while True:
            await asyncio.sleep(self.world.random.uniform(0.5, 3.0))
            try:
                await self._look_after(app)
            except StoreError:
                continue

    async def _look_after(self, app: App) -> None:
        if self.theme is Theme.EFFECTS:
            await self.auditor.look_after(app)
        if self.world.hands_over:
            await redeliver(app, self.world, self.witness)
        for held in await app.runs(state="held"):
            self.witness.note(f"operator: releases {held.run_id}, held as {held.held_reason}")
            if held.held_reason == HeldReason.POISON:
                self.world.mend(held.run_id)
            with suppress(Conflict):
                await app.release(held.run_id)
        for failed in await app.runs(state="failed"):
            self.world.mend(failed.run_id)
            with suppress(Conflict):  # its thread has gone on, or the answer to an earlier word was lost
                await app.retry(failed.run_id)
        for run in await app.runs(state="cancelled") if self.theme is not Theme.WORK else ():
            again = self.witness.readiness.calm_since is None and self.world.random.random() < AGAIN
            if again and not playbook.ROLES[run.agent].cleans_up and self.world.times(f"retry of {run.run_id}") == 1:
                with suppress(Conflict):
                    await app.retry(run.run_id)

    def out_of_service(self) -> list[str]:
        """Worker processes that live, and do not serve."""
        look = self.witness.look
        return [each.name for each in self.workers if each.worker is None or not look.alive(each.worker.id)]

    def all_served(self) -> bool:
        """Whether every client has all that it wanted."""
        clients = (process for process in self.world.processes if process.client)
        return all(process.served or not process.alive for process in clients)


async def _insist(act: Callable[[], Any]) -> Any:
    """Do it again while the store is away."""
    while True:
        try:
            return await act()
        except StoreUnavailable:
            await asyncio.sleep(0.2)
