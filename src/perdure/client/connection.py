"""The client side of an app on one event loop: starts, messages, results, and reads over an open store.

Starts and messages are grouped like commits: a thousand concurrent `start` calls share a few transactions. Results are
awaited in sets: one query looks for all that anybody waits for, when a hint comes or the fallback poll is due.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perdure.client.requests import no_run
from perdure.core.records import Outcome, Run, RunState, run_id
from perdure.core.requests import NewMessage, SendOutcome, StartOutcome, StartRun
from perdure.core.states import TERMINAL
from perdure.errors import NotFound, StoreUnavailable
from perdure.runtime.ids import Ids
from perdure.runtime.patience import patiently
from perdure.runtime.service import came, serve
from perdure.runtime.starts import Sends, Starts
from perdure.store.protocol import Hint, Store

POLL_S = 1.0
"""Fallback look for results when no hint comes."""

OUTCOMES_A_READ = 1_000
"""Results read at a time: each may have up to `INLINE_BYTES_MAX` in its row."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A run that is terminal or held, and what it ended with."""

    run: Run
    outcome: Outcome | None


class Client:
    """An open store, and what several callers on one loop share."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ids = Ids(store)
        self._starts = Starts(store, patiently)
        self._sends = Sends(store, patiently)
        self._waiters: dict[int, list[asyncio.Future[Settled]]] = {}
        self._look = asyncio.Event()
        self._hinted = False
        self._told: set[int] = set()
        self._watched: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.poll_s = POLL_S
        self._deaf: Callable[[], None] | None = None

    async def open(self) -> None:
        """Connect and start the two services."""
        await self.store.open()
        self._deaf = self.store.listen(self._hear)
        self._tasks = [
            asyncio.create_task(self._starts.run(), name="perdure-starts"),
            asyncio.create_task(self._sends.run(), name="perdure-sends"),
            asyncio.create_task(serve("results", self._tick), name="perdure-results"),
        ]

    async def close(self) -> None:
        """End the services and let go of the store."""
        if self._deaf is not None:
            self._deaf()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closed = StoreUnavailable("the app was closed before this was answered; ask again on an open one")
        self._starts.fail(closed)
        self._sends.fail(closed)
        for future in [future for waiting in self._waiters.values() for future in waiting if not future.done()]:
            future.set_exception(closed)
        await self.store.close()

    def abandon(self) -> None:
        """Let go without the loop, which has closed: nobody waits here any more."""
        if self._deaf is not None:
            self._deaf()
        self.store.abandon()

    async def start(self, start: StartRun) -> StartOutcome:
        """Put one run on disk, in company."""
        return await self._starts.one(start)

    async def send(self, message: NewMessage) -> SendOutcome:
        """Put one message on disk, in company."""
        return await self._sends.one(message)

    # -- results ---------------------------------------------------------------------------------------------

    async def settled(self, run: int) -> Settled:
        """Wait until the run is terminal or held; `NotFound` if there is no such run."""
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run, []).append(future)
        self._look.set()
        try:
            return await future
        finally:
            left = [other for other in self._waiters.get(run, ()) if other is not future]
            if left:
                self._waiters[run] = left
            else:
                self._forget(run)

    def ended(self, run: int) -> None:
        """A worker in this process says that a run has ended."""
        if run in self._waiters:
            self._told.add(run)
            self._look.set()

    def _hear(self, hint: Hint) -> None:
        if hint is Hint.ENDED:
            self._hinted = True
            self._look.set()

    async def _tick(self) -> float:
        """Look at those of whom something is known, or at all of them where a hint says that it may be anybody."""
        await self._next_look()
        self._look.clear()
        fresh = [run for run in self._waiters if run not in self._watched]
        everybody, self._hinted = self._hinted, False
        told, self._told = self._told, set()
        try:
            await self._deliver(list(self._waiters) if everybody else list(told.union(fresh)))
            if fresh := [run for run in fresh if run in self._waiters]:
                await self.store.watch(fresh)
                self._watched.update(fresh)
                await self._deliver(fresh)
        except BaseException:
            self._hinted = True  # what was known is lost: the next look is at everybody
            self._look.set()
            raise
        return 0

    async def _next_look(self) -> None:
        if not await came(self._look, self.poll_s if self._waiters else None):
            self._hinted = True

    async def _deliver(self, runs: Sequence[int]) -> None:
        if not runs:
            return
        known = await self.store.get_runs(runs)
        for absent in set(runs).difference(run.id for run in known):
            self._answer(absent, no_run(run_id(absent), self.store.url))
        found = [run for run in known if run.state in TERMINAL or run.state is RunState.HELD]
        if not found:
            return
        for at in range(0, len(found), OUTCOMES_A_READ):
            some = found[at : at + OUTCOMES_A_READ]
            outcomes = {outcome.run: outcome for outcome in await self.store.outcomes([run.id for run in some])}
            for run in some:
                self._answer(run.id, Settled(run, outcomes.get(run.id)))

    def _answer(self, run: int, answer: Settled | NotFound) -> None:
        for future in self._waiters.get(run, ()):
            if future.done():
                continue
            if isinstance(answer, NotFound):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._forget(run)

    def _forget(self, run: int) -> None:
        self._waiters.pop(run, None)
        self._watched.discard(run)
        self._told.discard(run)


class Connected(ABC):
    """Whoever has a client: what the groups of an app's verbs stand on."""

    @abstractmethod
    async def _client(self) -> Client:
        """The client on this loop, open."""
