"""The client side of an app on one event loop: starts, results, and reads over an open store.

Starts are grouped like commits: a thousand concurrent `start` calls share a few transactions. Results are awaited in
sets: one query looks for all that anybody waits for, when a hint comes or the fallback poll is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perdure.client.requests import no_run
from perdure.core.changes import StartOutcome, StartRun, bytes_of
from perdure.core.limits import ID_BLOCK
from perdure.core.records import Outcome, Run, RunState, run_id
from perdure.core.states import TERMINAL
from perdure.errors import NotFound, StoreUnavailable
from perdure.runtime.group import GroupCommit
from perdure.runtime.service import Backoff, serve
from perdure.store.protocol import Hint, Store

T = TypeVar("T")

POLL_S = 1.0
"""Fallback look for results when no hint comes."""

OUTCOMES_A_READ = 1_000
"""Results read at a time: each may have up to `INLINE_BYTES_MAX` in its row."""

START_PATIENCE_S = 10.0
"""How long `start` outwaits a store that restarts before it raises `StoreUnavailable`."""


async def patiently(what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """What `start` does again while the store restarts: ids may be left unused, and starts are recognised by theirs."""
    backoff = Backoff(what)
    give_up_at = asyncio.get_running_loop().time() + START_PATIENCE_S
    while True:
        try:
            outcome = await attempt()
        except StoreUnavailable as error:
            pause_s = backoff.failed(error)
            if asyncio.get_running_loop().time() + pause_s > give_up_at:
                raise
            await asyncio.sleep(pause_s)
        else:
            backoff.succeeded()
            return outcome


class Ids:
    """Hands out store-wide unique numbers, reserved in blocks that grow with use."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._block = 10
        self._lock = asyncio.Lock()

    async def take(self, count: int) -> int:
        """The first of `count` consecutive ids."""
        async with self._lock:
            if self._next + count > self._end:
                block = max(count, self._block)
                self._next = await patiently("ids", lambda: self._store.reserve_ids(block))
                self._end = self._next + block
                self._block = min(self._block * 2, ID_BLOCK)
            first = self._next
            self._next += count
            return first


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
        self._starts: GroupCommit[StartRun, list[StartOutcome | Exception]] = GroupCommit(
            self._start_batch, size=bytes_of
        )
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
        batch = self._starts.submit(start)
        place = len(batch.items) - 1
        outcome = (await asyncio.shield(batch.done))[place]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _start_batch(self, starts: list[StartRun]) -> list[StartOutcome | Exception]:
        """One transaction for all; if the store refuses one of them, each for itself, so that it fails alone."""
        try:
            return list(await patiently("starts", lambda: self.store.start(starts)))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(starts) == 1:
                return [error]
            return [outcome for start in starts for outcome in await self._start_batch([start])]

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
        try:
            async with asyncio.timeout(self.poll_s if self._waiters else None):
                await self._look.wait()
        except TimeoutError:
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
