"""What a worker makes of answers that it did not get while it was parking a run, and of what comes while it hears
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest

import perdure
from perdure.core.changes import ParkRun
from perdure.core.failures import cancellation
from perdure.core.records import Interrupt, RunState
from perdure.core.requests import InterruptFilter, NewAnswer
from perdure.runtime.agent import Agent
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.waker import Waker
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.testing.simulation.roles import agent_of
from perdure.testing.simulation.wire import Database, Fate, Request
from perdure.testing.simulation.world import World
from tests.simulation.virtual import pause

SETTINGS = WorkerSettings(name="worker", deployment="v1", concurrency=1, lease_s=30.0, poll_s=0.2)

went_on: list[str] = []


@perdure.step
async def after(answer: Any) -> None:
    went_on.append(answer)


async def asking() -> str:
    """Asks, and goes on."""
    answer = await perdure.interrupt("well?")
    await after(answer)
    return str(answer)


async def asking_beside() -> None:
    """Asks in one branch, while another is busy with something that nobody knows."""
    await asyncio.gather(pause(30.0), asking())


class Losing(Database):
    """A database whose answer to the first parking is lost."""

    parkings = 0

    def _fate(self, request: Request) -> Fate:
        if request.verb == "commit" and any(isinstance(change, ParkRun) for change in request.args[1]):
            self.parkings += 1
            return Fate.REPLY_LOST if self.parkings == 1 else Fate.WELL
        return Fate.WELL


class Scene:
    """A worker and one run of an agent, over a database."""

    def __init__(self, agent: Agent[Any, Any], make: Callable[[World, MemoryStore], Database] = Database) -> None:
        went_on.clear()
        self.agent = agent
        self.world = World(7)
        self.root = MemoryStore(now_us=self.world.wall_us)
        self.database = make(self.world, self.root)

    def begin(self) -> None:
        """The worker works, and the run is started."""
        worker, client = self.world.process("worker"), self.world.process("client")
        opening = self.database.loop.create_task(self.root.open())
        self.world.run(opening.done, deadline_s=1.0)
        worker.start(self._work(self.database.connect(worker), worker))
        client.start(self._start(perdure.App("simulated", store=self.database.connect(client))))

    async def _work(self, store: Any, process: Any) -> None:
        await store.open()
        agents, surroundings = {self.agent.name: self.agent}, process.surroundings()
        async with Worker(store, agents, settings=SETTINGS, surroundings=surroundings) as working:
            await working.stopped()

    async def _start(self, app: perdure.App) -> None:
        app.agents[self.agent.name] = self.agent
        await app.start(self.agent.name)
        await pause(100.0)

    async def question(self) -> Interrupt:
        """The run's question, once it is asked."""
        while not (asked := await self.root.interrupts(InterruptFilter())):
            await pause(0.05)
        return asked[0]

    def speak(self, words: Coroutine[Any, Any, None]) -> None:
        """Somebody beside the worker does this."""
        speaking = self.database.loop.create_task(words)
        self.world.run(speaking.done, deadline_s=10.0)
        speaking.result()

    def pass_time(self, seconds: float) -> None:
        self.world.run(lambda: False, deadline_s=seconds)

    def states(self) -> list[RunState]:
        return [run.state for run in self.root._data.runs.values()]


def test_a_run_that_was_parked_unheard_and_woken_and_cancelled_since_is_not_gone_on_with() -> None:
    scene = Scene(agent_of(asking), Losing)
    database = scene.database
    assert isinstance(database, Losing)

    async def answer_and_cancel() -> None:
        asked = await scene.question()
        while not database.parkings:
            await pause(0.05)
        await pause(0.1)
        await scene.root.answer(NewAnswer(asked.id, b"\xa3yes", "somebody"))
        await scene.root.cancel(asked.run, "too late", cancellation("too late"))

    scene.begin()
    scene.speak(answer_and_cancel())
    scene.pass_time(20.0)
    states = scene.states()
    scene.world.close()
    assert (states, went_on, database.parkings) == ([RunState.CANCELLED], [], 2)


async def _waits_for_a_hint(waker: Any) -> float:
    await waker._wake.wait()
    waker._wake.clear()
    told, waker._told = waker._told, False
    await waker._look(told)
    return 0.002


@pytest.mark.parametrize(
    ("tick", "seen"), [(Waker._tick, ["yes"]), (_waits_for_a_hint, [])], ids=["as it is", "without its poll"]
)
def test_an_answer_is_seen_without_a_hint_while_another_branch_works(tick: Any, seen: list[str]) -> None:
    """No seed shows that nearly always: something else gives a hint in time. So it has a world of its own."""
    scene = Scene(agent_of(asking_beside))
    scene.database.silent = True

    async def answer() -> None:
        asked = await scene.question()
        await pause(1.0)
        await scene.root.answer(NewAnswer(asked.id, b"\xa3yes", "somebody"))

    with patch.object(Waker, "_tick", tick):
        scene.begin()
        scene.speak(answer())
        scene.pass_time(5.0)
        states = scene.states()
        scene.world.close()
    assert (states, went_on) == ([RunState.RUNNING], seen)
