"""A worker: a process's place to execute runs, through as many tenures as it takes.

`async with Worker(...)` executes runs until the block ends, then drains. `stop()` asks for a drain; asked a second
time it hands everything back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from perdure.errors import StoreError, StoreUnavailable
from perdure.runtime.agent import Agent
from perdure.runtime.frames import install_task_factory
from perdure.runtime.service import Backoff, first_of
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.sinks import Sink, closed
from perdure.runtime.step import Durability
from perdure.runtime.surroundings import Surroundings
from perdure.runtime.tenure import Tenure
from perdure.store.protocol import Store


class Worker:
    """Executes runs of these agents from this (open) store."""

    def __init__(
        self, store: Store, agents: Mapping[str, Agent[..., Any]], *, settings: WorkerSettings,
        durability: Durability = "async", surroundings: Surroundings | None = None,
        on_ended: Callable[[int], None] = lambda run: None, sinks: Mapping[str, Sink] | None = None,
        billing: str | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._agents = agents
        self._settings = settings
        self._durability = durability
        self._surroundings = surroundings or Surroundings()
        self._on_ended = on_ended
        self._sinks = {} if sinks is None else sinks
        self._billing = billing
        self._pools = self._surroundings.pools()
        self._stopping = asyncio.Event()
        self._began = asyncio.Event()
        self._tenure: Tenure | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> int | None:
        """The identity it has now; None between two."""
        return None if self._tenure is None else self._tenure.worker

    @property
    def running(self) -> int:
        """Runs in its hands."""
        return 0 if self._tenure is None else len(self._tenure.executions)

    async def __aenter__(self) -> Self:
        install_task_factory(asyncio.get_running_loop())
        self._task = asyncio.create_task(self._run(), name="perdure-worker")
        began = asyncio.create_task(self._began.wait())
        try:
            await asyncio.wait({began, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # what was never entered is never left: end it here
            self._stopping.set()
            await self.stopped()
            raise
        finally:
            began.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        await self.stopped()

    def stop(self) -> None:
        """Drain; when draining already, hand everything back at once."""
        if self._tenure is not None:
            if self._stopping.is_set():
                self._tenure.hand_back()
            self._tenure.draining = True  # from this moment on, not from when the loop comes round
        self._stopping.set()

    async def stopped(self) -> None:
        """Wait until it has drained."""
        assert self._task is not None, "the worker was never entered"
        try:
            await asyncio.shield(self._task)
        finally:
            self._pools.close()
            await self._close_sinks()

    async def _close_sinks(self) -> None:
        await asyncio.gather(*(closed(f"sink {name!r}", sink.close) for name, sink in self._sinks.items()))

    async def _run(self) -> None:
        while not self._stopping.is_set():
            tenure = Tenure(
                self._store, self._agents, settings=self._settings, durability=self._durability, pools=self._pools,
                surroundings=self._surroundings, on_ended=self._on_ended, sinks=self._sinks, billing=self._billing,
            )  # fmt: skip
            if not await self._begun(tenure):
                return
            self._tenure = tenure
            self._began.set()
            await first_of(tenure.lost, self._stopping)
            if tenure.lost.is_set():
                await tenure.end_lost()
            else:
                await tenure.drain()
            self._tenure = None

    async def _begun(self, tenure: Tenure) -> bool:
        """Begin a tenure, however long the store is away; False if the worker is asked to stop before that."""
        beginning = asyncio.create_task(self._begin(tenure), name="perdure-begin")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({beginning, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not beginning.done():
                beginning.cancel()
        if not beginning.done():
            return False
        beginning.result()
        return True

    async def _begin(self, tenure: Tenure) -> None:
        """What is wrong at the start is the caller's to see. Later on nobody is there to see it: then it is logged, and
        tried again."""
        backoff = Backoff("worker")
        while True:
            try:
                return await tenure.begin()
            except StoreError as error:
                if not isinstance(error, StoreUnavailable) and not self._began.is_set():
                    raise
                await asyncio.sleep(backoff.failed(error))
