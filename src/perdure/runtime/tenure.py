"""A tenure: one identity of a worker, from its registration to its end.

A worker process has one tenure at a time: a row in the store, one lease, one writer. It claims runs, executes them and
commits what they record. It ends in one of two ways: the worker drains (finish or hand back what is in hand, then
retire the row), or the identity is lost (somebody took over: every execution is told, nothing more is written, and the
worker begins a new tenure under a new identity).
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.core.changes import AppendCheckpoint, BeginSuperStep, Change, CommitOutcome, HoldRun, bytes_of
from perdure.core.endings import Ending, HandedBack, Held, Lost, Parked
from perdure.core.leases import trust_until
from perdure.core.limits import SUSPECT_STRIKES
from perdure.core.records import Claimed, HeldReason, worker_id
from perdure.core.requests import NewWorker
from perdure.errors import StoreUnavailable
from perdure.runtime.agent import Agent
from perdure.runtime.callables import Pools
from perdure.runtime.claimer import Claimer
from perdure.runtime.deadlines import Deadlines
from perdure.runtime.execution import Execution
from perdure.runtime.group import GroupCommit
from perdure.runtime.ids import Ids
from perdure.runtime.keeper import Keeper
from perdure.runtime.patience import Pace, insist, outlast
from perdure.runtime.reads import Reads
from perdure.runtime.relay import Relay
from perdure.runtime.service import first_of
from perdure.runtime.settings import WorkerSettings
from perdure.runtime.sinks import Sink
from perdure.runtime.starts import Starts
from perdure.runtime.step import Durability
from perdure.runtime.surroundings import SideLoop, Surroundings
from perdure.runtime.tasks import MOMENT_S
from perdure.runtime.threads import post
from perdure.runtime.trust import Trust
from perdure.runtime.waker import Waker
from perdure.runtime.watchdog import Watchdog
from perdure.store.protocol import Store
from perdure.telemetry import emit, logger

HAND_BACK_S = 10.0
"""How long a draining worker waits for the store to take back what is left, once nothing is executed any more."""


class Tenure:
    """One identity of a worker; it is the `Host` of the executions it starts."""

    def __init__(
        self, store: Store, agents: Mapping[str, Agent[..., Any]], *, settings: WorkerSettings, durability: Durability,
        pools: Pools, surroundings: Surroundings, on_ended: Callable[[int], None], sinks: Mapping[str, Sink],
        billing: str | None,
    ) -> None:  # fmt: skip
        self.store = store
        self.agents = agents
        self.sinks = sinks
        self.billing = billing
        self.settings = settings
        self.deployment = settings.deployment
        self.durability = durability
        self.pools = pools
        self.clock = surroundings.clock
        self.deadlines = Deadlines(self.clock)
        self.random = surroundings.random
        self.around_body = surroundings.around_body
        self.ahead_max = surroundings.ahead_max
        self.clean_up_s = settings.clean_up_s
        self.worker = 0
        self.draining = False
        self.lost = asyncio.Event()
        self.executions: dict[int, Execution] = {}
        self.committer: GroupCommit[Change, CommitOutcome] = GroupCommit(
            self._commit, size=bytes_of, rows_max=surroundings.commit_rows_max
        )
        self.ids = Ids(store, outlast)
        self.starts = Starts(store, outlast)
        self.reads = Reads(store)
        self.transactions = Pace("transactions")
        self._on_ended = on_ended
        self.suspects: set[int] = set()
        """Runs in hand that kept losing their workers, until they have recorded something."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unwinding: set[int] = set()
        """Runs in hand that are over, and of whose code some is not: they hold no slot."""
        self._refused: dict[int, str] = {}
        """Runs of which a write was refused, and why. The agent may be ahead of its commits: nothing that it wrote
        after that one may be written, for a log has no gaps."""
        self._services: list[asyncio.Task[None]] = []
        self._beside = surroundings.beside
        self._keeper: SideLoop | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self.hurry = asyncio.Event()

    # -- life ------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Register, and start to renew, commit and claim."""
        self.worker = await self.store.reserve_ids(1)
        asked_at = self.clock.monotonic()
        lease_us = int(self.settings.lease_s * 1_000_000)
        await self.store.register(
            NewWorker(self.worker, self.settings.name, socket.gethostname(), os.getpid(), self.deployment, lease_us)
        )
        loop = asyncio.get_running_loop()
        self.trust = Trust(self.clock, trust_until(asked_at, self.settings.lease_s))
        watchdog = Watchdog(loop, self.clock, stall_limit_s=self.settings.stall_limit_s)
        keeper = Keeper(
            self.store.clone(), self.worker, settings=self.settings, trust=self.trust, watchdog=watchdog,
            clock=self.clock, on_lost=functools.partial(self._lose_from, loop),
        )  # fmt: skip
        self._keeper = self._beside(f"perdure-keeper-{self.worker}", keeper.run)
        self._keeper.start()
        self.claimer = Claimer(self)
        self.waker = Waker(self)
        self.relay = Relay(self) if self.sinks else None
        self._services = [
            asyncio.create_task(self.committer.run(), name="perdure-committer"),
            asyncio.create_task(self.claimer.run(), name="perdure-claimer"),
            asyncio.create_task(self.starts.run(), name="perdure-child-starts"),
            asyncio.create_task(self.waker.run(), name="perdure-waker"),
        ]
        if self.relay is not None:
            self._services.append(asyncio.create_task(self.relay.run(), name="perdure-relay"))
        emit("worker.started", worker=worker_id(self.worker), name=self.settings.name, deployment=self.deployment)

    async def drain(self) -> None:
        """Claim nothing new; hand back what waits, let bodies in flight finish (for `grace_s`), retire the row. The
        lease is renewed until the very end. Code that was told to end has its time for that, as ever (`tasks.py`). A
        store that stays away cannot hold a worker for ever: after `HAND_BACK_S` it goes as if it had been killed, and
        others take its runs over."""
        self.draining = True
        emit("worker.draining", worker=worker_id(self.worker), runs=len(self.executions))
        for execution in tuple(self.executions.values()):
            execution.drain()
        await self.claimer.stop()
        delivered = asyncio.ensure_future(self._deliveries())
        await self._bodies()
        await self._code()
        await delivered
        try:
            async with asyncio.timeout(HAND_BACK_S):
                await self._empty.wait()
                await self.committer.flushed()
                if not self.lost.is_set():
                    await insist("retire", self._retire)
        except TimeoutError:
            self.lose(f"the store did not take its runs back within {HAND_BACK_S:g} s")
            await self._empty.wait()
        await self._end()

    def hand_back(self) -> None:
        """Stop executing at once: cancel what is in flight and give every run back."""
        self.hurry.set()
        for execution in tuple(self.executions.values()):
            execution.close(HandedBack())

    async def _bodies(self) -> None:
        """Give bodies in flight their grace, unless somebody asks again."""
        await first_of(self._empty, self.hurry, timeout_s=self.settings.grace_s)
        if not self._empty.is_set():
            self.hand_back()

    async def _deliveries(self) -> None:
        """Give deliveries in flight their grace."""
        if self.relay is not None:
            await self.relay.drain()

    async def _code(self) -> None:
        """Let code that was told to end have the time that it is given. A run is given back after it, and the store is
        not to blame for how long that takes."""
        await first_of(self._empty, self.lost, timeout_s=MOMENT_S)
        while not self.lost.is_set() and any(execution.unwinds for execution in self.executions.values()):
            await first_of(self._empty, self.lost, timeout_s=MOMENT_S)

    def lose(self, why: str) -> None:
        """This identity is not alive any more: tell every execution, write nothing."""
        if self.lost.is_set():
            return
        emit("worker.lost", worker=worker_id(self.worker), why=why, runs=len(self.executions))
        self.draining = True
        lost = StoreUnavailable(f"worker {worker_id(self.worker)} has lost its lease: {why}")
        self.committer.fail(lost)
        self.starts.fail(lost)
        for execution in tuple(self.executions.values()):
            execution.close(Lost(why))
        self.lost.set()

    def _lose_from(self, loop: asyncio.AbstractEventLoop) -> None:
        post(loop, self.lose, "another worker took over")

    async def end_lost(self) -> None:
        """Clean up after a loss: wait until user code has let go."""
        await self.claimer.stop()
        await self._empty.wait()
        await self._end()

    # -- executing -------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Slots that are free."""
        return self.settings.concurrency - len(self.executions) + len(self._unwinding)

    def launch(self, claimed: Claimed) -> None:
        """Execute a claimed run."""
        on_over = functools.partial(self._over, claimed.run, claimed.fence)
        execution = Execution(self, claimed, self.agents[claimed.agent], on_over=on_over)
        before = self._tasks.get(claimed.run)  # an earlier claim whose code is still unwinding: one after the other
        if (earlier := self.executions.get(claimed.run)) is not None:
            earlier.close(Lost("its worker has claimed it again"))  # nobody could tell it any more
        self.executions[claimed.run] = execution
        self._unwinding.discard(claimed.run)
        self._empty.clear()
        if claimed.strikes >= SUSPECT_STRIKES:
            self.suspects.add(claimed.run)
        if self.lost.is_set():
            execution.close(Lost("the lease was lost while it was claimed"))
        self._tasks[claimed.run] = asyncio.create_task(self._execute(execution, before), name=f"run r{claimed.run}")

    async def _execute(self, execution: Execution, before: asyncio.Task[None] | None) -> None:
        run = execution.claimed.run
        ending: Ending | None = None
        try:
            if before is not None:
                await asyncio.wait([before])
            ending = await execution.run()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise
            if not self.lost.is_set():
                logger.error("run r%s: its execution broke off; it is given back", run, exc_info=error)
                self.claimer.give_back()
        finally:
            if self.executions.get(run) is execution:
                del self.executions[run], self._tasks[run]
                self._refused.pop(run, None)
                self._unwinding.discard(run)
                self._clear_suspects({run})
            self.claimer.slot_freed()
            if not self.executions:
                self._empty.set()
        if isinstance(ending, Lost):
            # To whom? Perhaps to this worker itself: by a claim whose answer was lost, and while this execution had not
            # ended, nothing was given back.
            self.claimer.give_back()
        elif isinstance(ending, Parked) and ending.timed:
            self.claimer.look()  # it may be asleep for longer
        elif ending is not None and not isinstance(ending, Parked):
            self._on_ended(run)

    def _over(self, run: int, fence: int) -> None:
        """This run's ending is on disk, and its code goes on: somebody else may have its slot."""
        execution = self.executions.get(run)
        if execution is not None and execution.claimed.fence == fence:
            self._unwinding.add(run)
            self.claimer.slot_freed()

    # -- writing ---------------------------------------------------------------------------------------------

    async def _commit(self, changes: list[Change]) -> CommitOutcome:
        """Write a batch, however long the store is away; repeating one that went through is a no-op."""
        outcome = CommitOutcome()
        tries = 0
        # A run that was lost and claimed again has changes of both claims here: the older ones would be lost, and the
        # newer ones with them. (The last one has the newest fence.)
        fences = {change.run: change.fence for change in changes}
        writable, refused = self._without_followers([each for each in changes if each.fence == fences[each.run]])

        async def attempt() -> None:
            nonlocal outcome, tries
            tries += 1
            outcome = await self.store.commit(self.worker, writable)

        try:
            await insist("committer", attempt)
        except Exception as error:
            logger.error(
                "worker %s: a commit failed for a reason that no repeat mends", worker_id(self.worker), exc_info=error
            )
            self.lose(f"a commit failed: {error}")
            raise
        if not outcome.alive:
            self.lose("the store says that this worker is not alive")
        for run in outcome.lost:
            self._close(run, fences[run], Lost("another worker has claimed it"))
        if tries > 1:
            self._hand_back_unsure(outcome, fences)
        if any(run in self.executions and self.executions[run].interruption is None for run in outcome.cancelled):
            self.waker.look()
        if self.suspects:
            recorded = {each.run for each in writable if isinstance(each, AppendCheckpoint | BeginSuperStep)}
            self._clear_suspects(recorded - outcome.lost - outcome.refused.keys())
        self._refused |= outcome.refused
        for run, why in outcome.refused.items():
            self._close(run, fences[run], Held(HeldReason.REFUSED, f"the store refused a write of this run: {why}"))
        return msgspec.structs.replace(outcome, refused=refused | outcome.refused) if refused else outcome

    def _hand_back_unsure(self, outcome: CommitOutcome, fences: dict[int, int]) -> None:
        """After a commit that was sent again: its first copy may still come. What was written it leaves alone. But what
        was not, a parking or a change that bounced, it might then do, under the same fence and behind the code's back.
        So those runs go on under another one. (The model found this.)"""
        for run in outcome.awake.union(run for run, _, _ in outcome.bounced):
            self._close(run, fences[run], HandedBack())

    def _without_followers(self, changes: list[Change]) -> tuple[list[Change], dict[int, str]]:
        """The batch without what follows a refused write of its run, and the runs that this concerns. That a run is
        held still counts."""
        if not self._refused:
            return changes, {}
        follows = [each.run in self._refused and not isinstance(each, HoldRun) for each in changes]
        refused = {each.run: self._refused[each.run] for each, out in zip(changes, follows, strict=True) if out}
        return [each for each, out in zip(changes, follows, strict=True) if not out], refused

    def _clear_suspects(self, runs: set[int]) -> None:
        """These are suspects no more: the next one may be claimed."""
        if self.suspects & runs:
            self.suspects -= runs
            self.claimer.look()

    def _close(self, run: int, fence: int, ending: Ending) -> None:
        execution = self.executions.get(run)
        if execution is not None and execution.claimed.fence == fence:
            execution.close(ending)

    async def _retire(self) -> None:
        await self.store.retire(self.worker)

    async def _end(self) -> None:
        self.deadlines.sweep()
        self.reads.close()
        for task in self._services:
            task.cancel()
        await asyncio.gather(*self._services, return_exceptions=True)
        if self._keeper is not None:
            await self._keeper.stop()
        emit("worker.stopped", worker=worker_id(self.worker))
