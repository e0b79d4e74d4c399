"""Ways to work: inside a block, until a signal, or until one run has ended."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.client.consuming import consuming
from perdure.client.grounds import grounds
from perdure.client.requests import run_number
from perdure.client.telling import Teller
from perdure.errors import UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.service import serve as keep_serving
from perdure.runtime.settings import WorkerSettings, worker_settings
from perdure.runtime.worker import Worker

if TYPE_CHECKING:
    from perdure.app import App

T = TypeVar("T")

COLLECTOR_THRESHOLDS: Final = (10_000, 20, 50)
"""New objects before a look at them, such looks before one at the older ones, and those before one at all."""


@asynccontextmanager
async def worker_of(app: App, settings: WorkerSettings) -> AsyncIterator[Worker]:
    """A worker for the app's agents, on the store that the app has open on this loop."""
    if not app.agents:
        raise UsageError(f"app {app.name} has no agents to execute; decorate one with @app.agent")
    if (here := grounds()) is not None:
        here.employ()
    client = await app._client()
    worker = Worker(
        client.store, app.agents, settings=settings, durability=app.durability, on_ended=client.ended, sinks=app.sinks,
        billing=app._billing(),
    )  # fmt: skip
    async with worker, consuming(app):
        yield worker


def serve_until_signalled(
    app: App, settings: WorkerSettings, on_started: Callable[[Worker], None] = lambda worker: None
) -> None:
    """Execute runs until SIGTERM or SIGINT."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with app, worker_of(app, settings) as worker:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, worker.stop)
            on_started(worker)
            await worker.stopped()

    run_loop(serve())


def run_until_done(
    app: App, agent: Agent[..., Any], args: tuple[Any, ...], thread_id: str | None, kwargs: dict[str, Any]
) -> Any:
    """Start or join one run, work until it has ended, return its result."""

    async def work() -> Any:
        async with app:
            handle = await app.start(agent, *args, thread_id=thread_id, if_busy="join", **kwargs)
            teller = Teller(await app._client(), run_number(handle.run_id))
            async with worker_of(app, worker_settings(queues=_queues(app))):
                telling = asyncio.create_task(keep_serving("telling", teller.tick), name="perdure-telling")
                try:
                    return await handle.result()
                finally:
                    telling.cancel()

    return run_loop(work())


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run on a loop of the fast kind where the platform has it, in a process that is there for nothing else."""
    if asyncio._get_running_loop() is not None:
        main.close()
        if (here := grounds()) is not None:
            here.employ()
        raise UsageError(
            "app.run() and app.serve() block, and were called inside a running event loop; there, use "
            "`async with app, app.worker():` and await app.start(...)"
        )
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with _patient_collector(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


@contextmanager
def _patient_collector() -> Iterator[None]:
    """Look for reference cycles less often, and not among what was imported. A worker makes and drops small objects by
    the thousand, few of them in cycles; looking for those at the usual pace took a quarter of its time."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _queues(app: App) -> list[str]:
    return sorted({agent.settings.queue for agent in app.agents.values()})
