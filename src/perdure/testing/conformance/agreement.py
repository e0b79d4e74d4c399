"""Random histories: the store and the reference in memory are told the same, and must agree.

A history is a seeded sequence of verbs with everything that worries a store: keys that collide, stale fences, dead and
retired workers, batches sent twice, records that exist under another fence, runs retried into a busy thread. After
each verb both answers are compared, and at the end all rows. Left out is what differs by right: times, the order of
claims (it depends on them), the text of reasons, and what the contract does not say (whether a stale change that
was written before its fence grew old is `lost` or a no-op).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from perdure.core.changes import (
    Change,
    ClaimRequest,
    CommitOutcome,
    NewWorker,
    RunFilter,
    StartRun,
)
from perdure.core.records import Checkpoint, Claimed, HeldReason, IfBusy, Kind, Run, RunState
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.conformance.harness import (
    LEASE_S,
    Bench,
    Harness,
    again,
    attempt,
    blob,
    end,
    fail,
    hold,
    requeue,
    scenario,
    step,
)

HISTORIES = 12
VERBS = 120
"""Of one history."""

Call = Callable[[Store], Awaitable[Any]]


class Agreement(Harness):
    """The store means what the reference means."""

    @scenario
    async def test_random_histories_end_as_they_do_in_memory(self, bench: Bench) -> None:
        reference = MemoryStore()
        await reference.open()
        for seed in range(HISTORIES):
            history = History(seed, bench.store, reference)
            first = await bench.store.reserve_ids(VERBS * 10)
            history.ids = iter(range(first, first + VERBS * 10))
            for _ in range(VERBS):
                await history.go_on()
            await history.compare_rows()
        await reference.close()


class History:
    """One random history, told to both stores."""

    def __init__(self, seed: int, store: Store, reference: MemoryStore) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.store = store
        self.reference = reference
        self.ids: Iterator[int] = iter(())
        self.told: list[str] = []
        self.workers: list[int] = []
        self.runs: list[int] = []
        self.claims: list[tuple[int, Claimed]] = []
        self.batches: list[tuple[int, list[Change]]] = []
        self.seq = 0
        self.agents = (f"a{seed}", f"b{seed}")

    def new_id(self) -> int:
        return next(self.ids)

    async def both(self, name: str, call: Call, show: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Tell both stores; their answers must look the same. Returns the reference's."""
        self.told.append(name)
        expected = await call(self.reference)
        found = await call(self.store)
        assert show(found) == show(expected), self._story(show(found), show(expected))
        return expected

    def _story(self, found: Any, expected: Any) -> str:
        told = "\n  ".join(self.told)
        return f"history {self.seed} ends with\n  {found}\ninstead of\n  {expected}\nafter\n  {told}"

    async def go_on(self) -> None:
        """Tell one more thing."""
        verbs: dict[Callable[[], Awaitable[None]], int] = {
            self.start: 5,
            self.register: 3,
            self.claim: 8,
            self.commit: 16,
            self.commit_stale: 2,
            self.commit_again: 2,
            self.take_over: 3,
            self.retire: 1,
            self.give_back: 1,
            self.release: 3,
            self.retry: 3,
        }
        verb = self.random.choices(list(verbs), list(verbs.values()))[0]
        await verb()

    # -- the verbs -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        asked = [self._ask() for _ in range(self.random.randint(1, 4))]
        self.runs += [ask.id for ask in asked]
        await self.both(f"start {asked}", lambda store: store.start(asked))

    def _ask(self) -> StartRun:
        choose = self.random.choice
        agent, payload = choose(self.agents), choose([b"1", b"1", b"2"])
        thread = f"{agent if self.random.random() < 0.9 else self.agents[0]}-{self.random.randint(1, 3)}"
        return StartRun(
            id=self.new_id(),
            thread=self.new_id(),
            thread_id=thread,
            agent=agent,
            queue="default",
            priority=self.random.randint(-2, 2),
            delay_us=0,
            key=choose([*[None] * 6, f"{self.seed}-x", f"{self.seed}-y"]),
            digest=(agent.encode() + payload).ljust(16, b"."),
            payload=payload,
            if_busy=choose([IfBusy.ENQUEUE, IfBusy.ENQUEUE, IfBusy.JOIN, IfBusy.REJECT]),
            tenant=choose([None, "acme"]),
            tags=tuple(self.random.sample(["red", "green", "blue"], self.random.randint(0, 3))),
            blobs=(blob(b"shared"), blob(payload)),
        )

    async def register(self) -> None:
        worker = NewWorker(self.new_id(), "w", "h", 1, self.random.choice(["v1", "v2"]), int(LEASE_S * 4e6))
        self.workers.append(worker.id)
        await self.both(f"register {worker}", lambda store: store.register(worker))

    async def claim(self) -> None:
        if not self.workers:
            return
        worker = self.random.choice(self.workers[-2:])
        agents = tuple(self.random.sample(self.agents, self.random.randint(1, 2)))
        deployment = self.random.choice([*["v1"] * 5, "v2"])
        request = ClaimRequest(worker, agents, ("default",), deployment, limit=100, suspects=100)
        claimed = await self.both(f"claim {request}", lambda store: store.claim(request), show_claims)
        self.claims += [(worker, each) for each in claimed]

    async def commit(self) -> None:
        """A batch over some of a worker's runs as it believes them to be."""
        if not self.claims:
            return
        worker, _ = self.random.choice(self.claims[-10:])
        mine = {claimed.run: claimed for owner, claimed in self.claims if owner == worker}
        rows = await self.reference.get_runs(list(mine))
        live = [mine[row.id] for row in rows if (row.worker, row.fence) == (worker, mine[row.id].fence)]
        if live:
            picked = self.random.sample(live, min(len(live), self.random.randint(1, 4)))
            parts = [self._changes(claimed, await self._super_step(claimed)) for claimed in picked]
            await self._send(worker, self._interleave(parts))

    async def commit_stale(self) -> None:
        """A record from a slice that is over, by its worker or another."""
        if not self.claims:
            return
        owner, claimed = self.random.choice(self.claims)
        worker = self.random.choice([owner, *self.workers])
        (row,) = await self.reference.get_runs([claimed.run])
        if row.fence != claimed.fence or (worker != owner and row.worker is not None):
            await self._send(worker, [self._step(claimed, row.super_step, key=f"stale {self.seq}")])

    async def commit_again(self) -> None:
        if self.batches:
            worker, batch = self.random.choice(self.batches[-3:])
            await self._send(worker, batch, show=lambda answer: answer.alive)

    async def _send(self, worker: int, batch: list[Change], show: Callable[[CommitOutcome], Any] | None = None) -> None:
        if not batch:
            return
        self.batches.append((worker, batch))
        await self.both(f"commit {worker} {batch}", lambda store: store.commit(worker, batch), show or show_outcome)

    async def take_over(self) -> None:
        if self.workers:
            worker, recoveries_max = self.random.choice(self.workers[-4:]), self.random.randint(1, 4)
            await self.both(
                f"take_over {worker} {recoveries_max}",
                lambda store: store.take_over([worker], recoveries_max=recoveries_max),
                lambda answer: [(each.worker, sorted(each.requeued), sorted(each.held)) for each in answer],
            )

    async def retire(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            await self.both(f"retire {worker}", lambda store: store.retire(worker))

    async def give_back(self) -> None:
        if self.workers:
            worker, keep = self.random.choice(self.workers), self.runs[::2]
            await self.both(f"give_back {worker} {keep}", lambda store: store.give_back(worker, keep=keep))

    async def release(self) -> None:
        if held := [row.id for row in await self._rows() if row.state is RunState.HELD]:
            run = self.random.choice([*held, *self.runs])
            await self.both(f"release {run}", lambda store: store.release(run), show_run)

    async def retry(self) -> None:
        if ended := [row.id for row in await self._rows() if row.state in (RunState.FAILED, RunState.CANCELLED)]:
            run, keys = self.random.choice(ended), self.random.sample(KEYS, 2)
            await self.both(f"retry {run} {keys}", lambda store: store.retry(run, keys), show_run)

    # -- batches ---------------------------------------------------------------------------------------------

    def _changes(self, claimed: Claimed, super_step: int) -> list[Change]:
        """What a slice might send, in an order it might send it in."""
        changes: list[Change] = []
        taken: set[tuple[int, str]] = set()
        for _ in range(self.random.randint(0, 4)):
            key = self.random.choice(KEYS)
            match self.random.randint(0, 5):
                case 0:
                    super_step += 1
                    changes.append(again(claimed, super_step, b"again", state=self._state(), blobs=(blob(b"shared"),)))
                case 1:
                    number, error = self.random.randint(1, 2), self.random.choice([None, b"boom"])
                    changes.append(attempt(claimed, key, number, super_step=super_step, error=error))
                case _ if (super_step, key) not in taken:
                    taken.add((super_step, key))
                    changes.append(self._step(claimed, super_step, key=key))
        return changes + self._ending(claimed, super_step)

    def _ending(self, claimed: Claimed, super_step: int) -> list[Change]:
        match self.random.randint(0, 12):
            case 0 | 1:
                return [end(claimed, super_step=super_step + 1, state=self._state())]
            case 2 | 3:
                return [fail(claimed, super_step=super_step + 1)]
            case 4:
                return [end(claimed, super_step=super_step + 1, outcome=RunState.CANCELLED)]
            case 5:
                return [requeue(claimed, drop_keys=tuple(self.random.sample(KEYS, 2)))]
            case 6:
                return [hold(claimed, self.random.choice(list(HeldReason)))]
            case _:
                return []

    def _step(self, claimed: Claimed, super_step: int, *, key: str) -> Change:
        self.seq += 1
        return step(
            claimed,
            key,
            f"{key} {claimed.fence}".encode(),
            super_step=super_step,
            seq=self.seq,
            failed=key in ("c", "d"),
            blobs=(blob(key.encode()), blob(b"shared")) if self.random.random() < 0.3 else (),
        )

    def _state(self) -> bytes | None:
        self.seq += 1
        return f"state {self.seq}".encode() if self.random.random() < 0.8 else None

    def _interleave(self, parts: list[list[Change]]) -> list[Change]:
        """Mix the runs' changes, keeping each run's own order."""
        parts = [list(part) for part in parts]
        mixed: list[Change] = []
        while parts := [part for part in parts if part]:
            mixed.append(self.random.choice(parts).pop(0))
        return mixed

    async def _super_step(self, claimed: Claimed) -> int:
        (row,) = await self.reference.get_runs([claimed.run])
        return row.super_step

    async def _rows(self) -> list[Run]:
        return await self.reference.get_runs(self.runs)

    # -- the end ---------------------------------------------------------------------------------------------

    async def compare_rows(self) -> None:
        """Everything both stores remember of this history."""
        await self.both("runs", lambda store: store.get_runs(self.runs), show_runs)
        await self.both("workers", lambda store: store.workers(alive=False), show_workers)
        for agent in self.agents:
            await self._compare_agent(agent)
        for run in self.runs:
            await self._compare_run(run)
        where = RunFilter(state=RunState.QUEUED, agent=self.agents[0], tenant="acme", tags=("red",), limit=3)
        await self.both("filtered", lambda store: store.list_runs(where), show_runs)

    async def _compare_agent(self, agent: str) -> None:
        await self.both("listed", lambda store: store.list_runs(RunFilter(agent=agent)), show_runs)
        await self.both("threads", lambda store: store.list_threads(agent=agent), without("created_at"))
        for thread in await self.reference.list_threads(agent=agent):
            await self._compare_thread(thread.id)

    async def _compare_thread(self, thread: int) -> None:
        digests = [blob(data).digest for data in (b"shared", b"1", b"2", *(key.encode() for key in KEYS))]
        await self.both("blobs", lambda store: store.blobs(thread, digests))
        await self.both("history", lambda store: store.thread_checkpoints(thread), show_log)

    async def _compare_run(self, run: int) -> None:
        await self.both("log", lambda store: store.checkpoints(run), show_log)
        await self.both("tries", lambda store: store.attempts(run))
        await self.both("outcome", lambda store: store.outcomes([run]))


KEYS = ["a", "b", "c", "d", "e/1"]
"""Of steps; `c` and `d` always fail."""


# -- what of an answer must agree ----------------------------------------------------------------------------


def without(*fields: str) -> Callable[[Any], Any]:
    """Rows as dictionaries without these fields."""

    def show(rows: list[msgspec.Struct]) -> list[dict[str, Any]]:
        return [{k: v for k, v in msgspec.structs.asdict(row).items() if k not in fields} for row in rows]

    return show


def show_run(run: Run | None) -> Any:
    return None if run is None else show_runs([run])


def show_runs(runs: list[Run]) -> Any:
    """Runs without times and texts; whether a run is ready says something only while it is queued."""
    rows = without("created_at", "ready_at", "started_at", "ended_at", "detail")(runs)
    for run, row in zip(runs, rows, strict=True):
        row["started"], row["ended"] = run.started_at is not None, run.ended_at is not None
        row["ready"] = run.ready and run.state is RunState.QUEUED
        row["reason"] = run.reason if run.state is RunState.HELD else None
    return rows


def show_workers(workers: Any) -> Any:
    rows = without("started_at", "lease_until", "ended_at", "session")(workers)
    return sorted(rows, key=lambda row: row["id"])


def show_claims(claims: list[Claimed]) -> Any:
    found = sorted(claims, key=lambda claimed: claimed.run)
    rows = without("created_at", "records")(found)
    for claimed, row in zip(found, rows, strict=True):
        row["records"] = show_log(claimed.records)
    return rows


def show_log(rows: Iterable[Checkpoint]) -> Any:
    """Checkpoints; of a boundary not what has no meaning there."""
    return [
        row
        if row.kind is Kind.STEP
        else (row.run, row.super_step, row.key, row.kind, row.failed, row.payload, row.state)
        for row in rows
    ]


def show_outcome(outcome: CommitOutcome) -> Any:
    return outcome.alive, outcome.lost, sorted(outcome.refused)
