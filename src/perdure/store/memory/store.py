"""The verbs of the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec

from perdure.clock import SYSTEM_CLOCK
from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import CLAIM_ROWS_MAX, SUSPECT_STRIKES
from perdure.core.records import (
    Attempt,
    Checkpoint,
    Claimed,
    HeldReason,
    Kind,
    Outcome,
    Run,
    RunState,
    TakenOver,
    Thread,
    Worker,
    WorkerState,
)
from perdure.core.requests import ClaimRequest, NewWorker, RunFilter, StartOutcome, StartRun
from perdure.errors import StoreUnavailable
from perdure.store import reasons
from perdure.store.memory import commits, effects, operating, reading, starts
from perdure.store.memory.handing import HandingVerbs
from perdure.store.memory.ledger import LedgerVerbs
from perdure.store.memory.tables import Listener, Presence, Tables
from perdure.store.memory.waiting import WaitingVerbs
from perdure.store.pages import page_size
from perdure.store.protocol import Hint

SCHEMA_VERSION = 1
"""Memory has no older schemas."""


class MemoryStore(WaitingVerbs, LedgerVerbs, HandingVerbs):
    """A store in this process's memory. `now_us` is its clock, so tests can move time.

    Clones share the data, on any loop and in any thread. To simulate a worker's death, give the worker a clone of
    its own and `crash()` it: its row stays alive and its runs stay running, as after a `kill -9`, until somebody
    takes over.
    """

    def __init__(self, *, now_us: Callable[[], int] = SYSTEM_CLOCK.wall_us) -> None:
        self._name = ""
        self._data = Tables(now_us)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._presence = Presence()
        self._listeners: list[Listener] = []

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """A store whose URL is `memory://NAME`."""
        store = cls()
        store._name = name
        return store

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._presence = Presence()

    async def close(self) -> None:
        self.crash()

    def abandon(self) -> None:
        self.crash()

    def crash(self) -> None:
        """Drop this open store as the death of its process would: listeners fall silent, attended workers too."""
        with self._data.lock:
            self._presence.alive = False
            self._data.listeners = [each for each in self._data.listeners if each not in self._listeners]
        self._listeners.clear()
        self._loop = None

    def clone(self) -> MemoryStore:
        store = MemoryStore()
        store._name, store._data = self._name, self._data
        return store

    async def migrate(self) -> tuple[int, int]:
        return SCHEMA_VERSION, SCHEMA_VERSION

    async def now_us(self) -> int:
        return (await self._tables()).now_us()

    async def reserve_ids(self, count: int) -> int:
        tables = await self._tables()
        with tables.lock:
            first = tables.next_id
            tables.next_id += count
        return first

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        if self._loop is None:
            raise self._not_open()
        listener = Listener(self._loop, on_hint)
        with self._data.lock:
            self._data.listeners.append(listener)
        self._listeners.append(listener)

        def stop() -> None:
            with self._data.lock:
                if listener in self._data.listeners:
                    self._data.listeners.remove(listener)

        return stop

    async def _tables(self) -> Tables:
        """The tables of an open store. Lets others run first, as every round trip to a database does."""
        if self._loop is None:
            raise self._not_open()
        assert self._loop is asyncio.get_running_loop(), "an open store belongs to the loop that opened it"
        await asyncio.sleep(0)
        return self._data

    def _not_open(self) -> StoreUnavailable:
        return StoreUnavailable(f"The store {self.url} is not open; await open() first.", url=self.url)

    # -- workers ---------------------------------------------------------------------------------------------

    async def register(self, worker: NewWorker) -> None:
        tables = await self._tables()
        with tables.writing() as now:
            if worker.id in tables.workers:
                return
            tables.workers[worker.id] = Worker(
                id=worker.id,
                name=worker.name,
                host=worker.host,
                pid=worker.pid,
                deployment=worker.deployment,
                state=WorkerState.ALIVE,
                idle=False,
                session=False,
                started_at=now,
                lease_until=now + worker.lease_us,
                ended_at=None,
            )

    async def renew(self, worker: int, lease_us: int) -> bool:
        tables = await self._tables()
        with tables.writing() as now:
            return self._mark(tables, worker, lease_until=now + lease_us)

    async def attend(self, worker: int) -> bool:
        tables = await self._tables()
        with tables.writing():
            if not self._mark(tables, worker, session=True):
                return False
            tables.presences[worker] = self._presence
            return True

    async def silent_workers(self) -> list[int]:
        tables = await self._tables()
        with tables.lock:
            return sorted(worker for worker, presence in tables.presences.items() if not presence.alive)

    async def set_idle(self, worker: int, idle: bool) -> None:
        tables = await self._tables()
        with tables.writing():
            self._mark(tables, worker, idle=idle)

    def _mark(self, tables: Tables, worker: int, **fields: int | bool) -> bool:
        """Change an alive worker's row; False if it is not alive."""
        alive = tables.is_alive(worker)
        if alive:
            tables.workers[worker] = msgspec.structs.replace(tables.workers[worker], **fields)
        return alive

    async def take_over(self, suspects: Iterable[int], *, recoveries_max: int) -> list[TakenOver]:
        tables = await self._tables()
        with tables.writing() as now:
            expired = [row.id for row in tables.workers.values() if row.lease_until <= now]
            dead = sorted({worker for worker in (*suspects, *expired) if tables.is_alive(worker)})
            return [self._take_over_one(tables, worker, recoveries_max, now=now) for worker in dead]

    def _take_over_one(self, tables: Tables, worker: int, recoveries_max: int, *, now: int) -> TakenOver:
        tables.end_worker(worker, WorkerState.DEAD, now)
        tables.outbox.give_back(worker, struck=True, now=now)
        requeued: list[int] = []
        held: list[int] = []
        for run in [tables.runs[run] for run in sorted(tables.held_by[worker])]:
            log = tables.checkpoints[run.id].values()
            recorded = any(row.super_step == run.super_step and row.fence == run.fence for row in log)
            strikes = 0 if recorded or effects.has_undone(tables, run) else run.strikes + 1
            lost = {"worker": None, "fence": run.fence + 1, "recoveries": run.recoveries + 1, "strikes": strikes}
            if strikes >= recoveries_max:
                poison = {"reason": HeldReason.POISON.value, "detail": reasons.poisoned(strikes)}
                tables.move(run.id, state=RunState.HELD, **poison, **lost)
                held.append(run.id)
            else:
                tables.move(run.id, state=RunState.QUEUED, **lost)
                requeued.append(run.id)
        return TakenOver(worker, tuple(requeued), tuple(held))

    async def retire(self, worker: int) -> int:
        tables = await self._tables()
        with tables.writing() as now:
            if not tables.is_alive(worker):
                return 0
            tables.end_worker(worker, WorkerState.STOPPED, now)
            tables.outbox.give_back(worker, now=now)
            return self._give_back(tables, tables.held_by[worker])

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        tables = await self._tables()
        with tables.writing():
            if not tables.is_alive(worker) or ticket < tables.tickets[worker]:
                return 0
            tables.tickets[worker] = ticket
            return self._give_back(tables, tables.held_by[worker] - set(keep))

    def _give_back(self, tables: Tables, runs: Iterable[int]) -> int:
        given = sorted(runs)
        for run in given:
            tables.move(run, state=RunState.QUEUED, worker=None, fence=tables.runs[run].fence + 1)
        return len(given)

    async def workers(self, *, alive: bool = True) -> list[Worker]:
        tables = await self._tables()
        with tables.lock:
            return [
                msgspec.structs.replace(row, running=len(tables.held_by[row.id]))
                for row in sorted(tables.workers.values(), key=lambda row: (row.started_at, row.id))
                if row.state is WorkerState.ALIVE or not alive
            ]

    # -- starting --------------------------------------------------------------------------------------------

    async def start(self, asked: Sequence[StartRun]) -> list[StartOutcome]:
        tables = await self._tables()
        with tables.writing() as now:
            return [starts.start(tables, ask, now) for ask in asked]

    # -- executing -------------------------------------------------------------------------------------------

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        tables = await self._tables()
        with tables.writing() as now:
            if not tables.is_alive(request.worker) or request.ticket < tables.tickets[request.worker]:
                return []
            return [self._take(tables, run, request, now=now) for run in self._choose(tables, request, now)]

    def _choose(self, tables: Tables, request: ClaimRequest, now: int) -> list[Run]:
        due = [
            run
            for run in (tables.runs[waiting] for waiting in tables.waiting)
            if run.ready_at <= now
            and run.agent in request.agents
            and run.queue in request.queues
            and run.deployment in (None, request.deployment)
        ]
        chosen: list[Run] = []
        suspects = 0
        for run in sorted(due, key=lambda run: (-run.priority, run.ready_at, run.id)):
            if len(chosen) >= min(request.limit, CLAIM_ROWS_MAX):
                break
            if run.strikes >= SUSPECT_STRIKES:
                suspects += 1
                if suspects > request.suspects:
                    continue
            chosen.append(run)
        return chosen

    def _take(self, tables: Tables, run: Run, request: ClaimRequest, *, now: int) -> Claimed:
        taken = tables.move(
            run.id,
            state=RunState.RUNNING,
            worker=request.worker,
            deployment=request.deployment,
            fence=run.fence + 1,
            attempt=run.attempt + 1,
            started_at=now if run.started_at is None else run.started_at,
        )
        return reading.claimed(tables, taken)

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        tables = await self._tables()
        with tables.writing() as now:
            return commits.apply(tables, worker, changes, now=now)

    # -- operators -------------------------------------------------------------------------------------------

    async def retry(self, run: int, drop_keys: Sequence[str], *, undo: bool = False) -> Run | None:
        tables = await self._tables()
        with tables.writing() as now:
            return operating.retry(tables, run, drop_keys, undo=undo, now=now)

    async def release(self, run: int) -> Run | None:
        tables = await self._tables()
        with tables.writing() as now:
            return operating.release(tables, run, now=now)

    # -- reading ---------------------------------------------------------------------------------------------

    async def get_runs(self, runs: Sequence[int]) -> list[Run]:
        tables = await self._tables()
        with tables.lock:
            return [tables.runs[run] for run in sorted(set(runs)) if run in tables.runs]

    async def list_runs(self, where: RunFilter) -> list[Run]:
        tables = await self._tables()
        with tables.lock:
            return reading.runs(tables, where)

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        tables = await self._tables()
        with tables.lock:
            ended = [row for run in sorted(set(runs)) for row in reading.log(tables, run) if row.kind is Kind.ENDED]
            return [Outcome(row.run, row.failed, row.payload) for row in ended]

    async def watch(self, runs: Sequence[int]) -> None:
        tables = await self._tables()
        with tables.lock:
            tables.watched.update(run for run in runs if run in tables.runs)

    async def get_thread(self, thread_id: str) -> Thread | None:
        tables = await self._tables()
        with tables.lock:
            thread = tables.thread_by_name.get(thread_id)
            return None if thread is None else tables.threads[thread]

    async def list_threads(
        self, *, agent: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[Thread]:
        tables = await self._tables()
        with tables.lock:
            return reading.threads(tables, agent=agent, limit=limit, after=after)

    async def checkpoints(
        self,
        run: int,
        *,
        super_step: int | None = None,
        boundaries: bool = False,
        limit: int = 1000,
        after: tuple[int, int] | None = None,
    ) -> list[Checkpoint]:
        tables = await self._tables()
        with tables.lock:
            return [
                row
                for row in reading.log(tables, run)
                if (super_step is None or row.super_step == super_step)
                and (not boundaries or row.kind is not Kind.STEP)
                and (after is None or (row.super_step, row.seq) > after)
            ][: page_size(limit)]

    async def thread_checkpoints(
        self, thread: int, *, limit: int = 100, after: tuple[int, int] | None = None
    ) -> list[Checkpoint]:
        tables = await self._tables()
        with tables.lock:
            rows = reading.thread_checkpoints(tables, thread)
            return reading.after(tables, rows, after)[: page_size(limit)]

    async def attempts(self, run: int) -> list[Attempt]:
        tables = await self._tables()
        with tables.lock:
            return reading.attempts(tables, run)

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        tables = await self._tables()
        with tables.lock:
            found = tables.blobs.get(thread, {})
            return {digest: found[digest] for digest in digests if digest in found}

    async def diagnose(self) -> list[tuple[str, bool, str]]:
        tables = await self._tables()
        with tables.lock:
            found = f"{len(tables.runs)} runs in this process's memory; they end with it"
            return [("data", True, found)]
