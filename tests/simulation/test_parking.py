"""What a worker makes of answers that it did not get while it was parking a run."""

from __future__ import annotations

from typing import Any

import perdure
from perdure.core.changes import ParkRun
from perdure.core.failures import cancellation
from perdure.core.records import RunState
from perdure.core.requests import InterruptFilter, NewAnswer
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
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


class Losing(Database):
    """A database whose answer to the first parking is lost."""

    parkings = 0

    def _fate(self, request: Request) -> Fate:
        if request.verb == "commit" and any(isinstance(change, ParkRun) for change in request.args[1]):
            self.parkings += 1
            return Fate.REPLY_LOST if self.parkings == 1 else Fate.WELL
        return Fate.WELL


def test_a_run_that_was_parked_unheard_and_woken_and_cancelled_since_is_not_gone_on_with() -> None:
    went_on.clear()
    world = World(7)
    root = MemoryStore(now_us=world.wall_us)
    database = Losing(world, root)
    agent = agent_of(asking)
    worker, client = world.process("worker"), world.process("client")

    async def work(store: Store) -> None:
        await store.open()
        async with Worker(store, {"asking": agent}, settings=SETTINGS, surroundings=worker.surroundings()) as working:
            await working.stopped()

    async def start(app: perdure.App) -> None:
        app.agents["asking"] = agent
        await app.start("asking")
        await pause(100.0)

    async def answer_and_cancel() -> None:
        while not (asked := await root.interrupts(InterruptFilter())) or not database.parkings:
            await pause(0.05)
        await pause(0.1)
        await root.answer(NewAnswer(asked[0].id, b"\xa3yes", "somebody"))
        await root.cancel(asked[0].run, "too late", cancellation("too late"))

    opening = database.loop.create_task(root.open())
    world.run(opening.done, deadline_s=1.0)
    worker.start(work(database.connect(worker)))
    client.start(start(perdure.App("simulated", store=database.connect(client))))
    speaking = database.loop.create_task(answer_and_cancel())
    world.run(speaking.done, deadline_s=10.0)
    speaking.result()
    world.run(lambda: False, deadline_s=20.0)
    states = [run.state for run in root._data.runs.values()]
    world.close()
    assert (states, went_on, database.parkings) == ([RunState.CANCELLED], [], 2)
