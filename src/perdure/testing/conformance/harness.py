"""What a scenario stands on: a fresh store, its clones, and short words for the usual moves.

A scenario is an `async def` that takes a `Bench`; `@scenario` turns it into the plain method that a test runner
collects. It opens the store, runs the body on a new event loop, and closes every store and clone that was opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

import msgspec

from perdure.core import limits
from perdure.core.changes import Change, CommitOutcome, NewInterrupt, OpenWait
from perdure.core.effects import Effect, EffectFilter, EffectState
from perdure.core.records import (
    Checkpoint,
    Claimed,
    IfBusy,
    Interrupt,
    Message,
    Run,
    RunState,
    Thread,
    Wait,
    WaitKind,
    Worker,
)
from perdure.core.requests import (
    ClaimRequest,
    InterruptFilter,
    NewMessage,
    NewWorker,
    Sent,
    Started,
    StartOutcome,
    StartRun,
)
from perdure.store.protocol import Hint, Store
from perdure.testing.conformance.builders import (
    again,
    answer,
    at,
    attempt,
    blob,
    bury,
    cancelled,
    close,
    end,
    fail,
    found_out,
    hold,
    intend,
    parent,
    park,
    requeue,
    send,
    settle,
    step,
    undo,
    wait,
)

__all__ = [
    "LEASE_S",
    "PATIENCE_S",
    "Bench",
    "Harness",
    "again",
    "answer",
    "at",
    "attempt",
    "blob",
    "bury",
    "cancelled",
    "close",
    "end",
    "eventually",
    "fail",
    "found_out",
    "hints",
    "hold",
    "in_threads",
    "intend",
    "parent",
    "park",
    "requeue",
    "scenario",
    "send",
    "settle",
    "step",
    "undo",
    "wait",
]

ID_BLOCK = 200
LEASE_S = 30.0
"""Long enough that no scenario outlives its lease by being slow."""
PATIENCE_S = 10.0
"""How long a scenario waits for what must happen soon; only a failing one waits that long."""


class Harness:
    """What a store's author fills in; the scenarios inherit from it."""

    durable = True
    """Whether the data outlive the last open store."""

    has_sql = True
    """Whether users' own SQL can be part of a commit (`transact`)."""

    def store(self) -> Store:
        """A new store, not yet open, on data of its own that nobody else touches."""
        raise NotImplementedError

    async def open_store(self) -> Store:
        """`store()`, opened and empty. Override it where emptying takes a query."""
        store = self.store()
        await store.open()
        return store

    async def advance_s(self, store: Store, seconds: float) -> None:
        """Make the store believe that `seconds` have passed: move its clock on, or move back every time that is
        compared with it: `lease_until`, `ready_at` (not `NEVER_US`), `deadline_at`, a wait's or a delivery's `due_at`,
        an interrupt's `expires_at`, and when a received message is forgotten."""
        raise NotImplementedError

    async def crash(self, store: Store) -> None:
        """End an open store as the death of its process would: nothing is retired."""
        await store.close()

    @contextlib.contextmanager
    def thread_queue_max(self, depth: int) -> Iterator[None]:
        """Lower `THREAD_QUEUE_MAX`. Enough for stores that read `limits.THREAD_QUEUE_MAX` when they need it."""
        with mock.patch.object(limits, "THREAD_QUEUE_MAX", depth):
            yield

    @contextlib.contextmanager
    def mailbox_max(self, count: int) -> Iterator[None]:
        """Lower `MAILBOX_MAX`. Enough for stores that read `limits.MAILBOX_MAX` when they need it."""
        with mock.patch.object(limits, "MAILBOX_MAX", count):
            yield

    @contextlib.contextmanager
    def lane_max(self, count: int) -> Iterator[None]:
        """Lower `LANE_MAX`. Enough for stores that read `limits.LANE_MAX` when they need it."""
        with mock.patch.object(limits, "LANE_MAX", count):
            yield


class Bench:
    """A fresh open store and short words for what scenarios do with one."""

    def __init__(self, harness: Harness, store: Store) -> None:
        self.harness = harness
        self.store = store
        self._opened = [store]
        self._ids = iter(range(0))

    # -- stores ----------------------------------------------------------------------------------------------

    async def clone(self) -> Store:
        """Another open store on the same data; closed with the bench."""
        store = self.store.clone()
        self._opened.append(store)
        await store.open()
        return store

    async def clones(self, count: int) -> list[Store]:
        return [await self.clone() for _ in range(count)]

    async def crash(self, store: Store) -> None:
        await self.harness.crash(store)

    async def advance_s(self, seconds: float) -> None:
        await self.harness.advance_s(self.store, seconds)

    async def close(self) -> None:
        for store in reversed(self._opened):
            await store.close()

    # -- starting --------------------------------------------------------------------------------------------

    async def new_id(self) -> int:
        """A fresh id, from a block, as workers take them."""
        for fresh in self._ids:
            return fresh
        first = await self.store.reserve_ids(ID_BLOCK)
        self._ids = iter(range(first + 1, first + ID_BLOCK))
        return first

    async def ask(self, thread_id: str = "thread", **fields: Any) -> StartRun:
        """A `StartRun` with fresh ids; every field may be given. The digest follows agent and payload."""
        agent, payload = fields.get("agent", "agent"), fields.get("payload", b"arguments")
        default: dict[str, Any] = {
            "id": await self.new_id(),
            "thread": await self.new_id(),
            "agent": agent,
            "queue": "default",
            "priority": 0,
            "delay_us": 0,
            "key": None,
            "digest": hashlib.blake2b(agent.encode() + b"\0" + payload, digest_size=16).digest(),
            "payload": payload,
            "if_busy": IfBusy.ENQUEUE,
        }
        return StartRun(thread_id=thread_id, **(default | fields))

    async def try_start(self, thread_id: str = "thread", **fields: Any) -> StartOutcome:
        (outcome,) = await self.store.start([await self.ask(thread_id, **fields)])
        return outcome

    async def start(self, thread_id: str = "thread", **fields: Any) -> int:
        """Start a run that must be new; its id."""
        outcome = await self.try_start(thread_id, **fields)
        assert isinstance(outcome, Started) and outcome.created, outcome
        return outcome.run

    async def start_many(self, count: int, **fields: Any) -> list[int]:
        """Start `count` runs, each on a thread of its own; their ids."""
        asked = [await self.ask(f"thread-{n}", **fields) for n in range(count)]
        outcomes = await self.store.start(asked)
        assert outcomes == [Started(ask.id, ask.thread_id, True) for ask in asked]
        return [ask.id for ask in asked]

    # -- working ---------------------------------------------------------------------------------------------

    async def worker(self, store: Store | None = None, *, deployment: str = "v1") -> int:
        """Register a worker; its id."""
        worker = await self.new_id()
        lease_us = int(LEASE_S * 1_000_000)
        await (store or self.store).register(NewWorker(worker, f"worker-{worker}", "host", 4242, deployment, lease_us))
        return worker

    async def claim(self, worker: int, store: Store | None = None, **fields: Any) -> list[Claimed]:
        default: dict[str, Any] = {
            "agents": ("agent",),
            "queues": ("default",),
            "deployment": "v1",
            "limit": 100,
            "suspects": 100,
        }
        return await (store or self.store).claim(ClaimRequest(worker=worker, **(default | fields)))

    async def claim_one(self, worker: int, **fields: Any) -> Claimed:
        """Claim exactly one run."""
        (claimed,) = await self.claim(worker, **fields)
        return claimed

    async def begin(self, thread_id: str = "thread", **fields: Any) -> tuple[int, Claimed]:
        """Start a run and claim it with a new worker; the worker's id and the claim."""
        worker = await self.worker()
        run = await self.start(thread_id, **fields)
        claimed = await self.claim_one(worker, agents=(fields.get("agent", "agent"),))
        assert claimed.run == run
        return worker, claimed

    async def commit(self, worker: int, *changes: Change) -> None:
        """Commit a batch that must be written whole."""
        outcome = await self.store.commit(worker, changes)
        assert outcome == CommitOutcome(), outcome

    async def parked(self, thread_id: str = "thread", *waits: OpenWait, **fields: Any) -> tuple[int, Claimed]:
        """Begin a run and park it until what `waits` say of it (they may leave its numbers at 0)."""
        worker, claimed = await self.begin(thread_id, **fields)
        opened = [msgspec.structs.replace(each, **at(claimed), super_step=claimed.super_step) for each in waits]
        await self.commit(worker, *opened, park(claimed))
        return worker, claimed

    async def question(self, name: str = "approve", **fields: Any) -> NewInterrupt:
        """A question as it is asked, under a fresh number."""
        default: dict[str, Any] = {"payload": b"?", "schema": None, "digest": "", "on_timeout": "raise"}
        return NewInterrupt(await self.new_id(), name, **(default | {"assignee": None} | fields))

    async def ask_in(self, worker: int, claimed: Claimed, key: str = "q", **fields: Any) -> int:
        """Ask a question in this claim's run, which goes on; the interrupt's id."""
        question = await self.question()
        await self.commit(worker, wait(claimed, key, WaitKind.ANSWER, interrupt=question, **fields))
        return question.id

    async def intended(self, worker: int, claimed: Claimed, key: str = "e", **fields: Any) -> int:
        """Intend an effect in this claim's run; the effect's id."""
        effect = await self.new_id()
        await self.commit(worker, intend(claimed, effect, key, **fields))
        return effect

    async def done(self, worker: int, claimed: Claimed, key: str = "e", **fields: Any) -> int:
        """An effect of this claim's run that was done and is on record; its id."""
        effect = await self.intended(worker, claimed, key, **fields)
        await self.commit(worker, settle(claimed, effect, key=key))
        return effect

    async def message(self, thread_id: str = "thread", label: str = "note", **fields: Any) -> NewMessage:
        """A message on its way, under a fresh number, from outside."""
        default: dict[str, Any] = {"sender": "", "payload": b"hello"}
        return NewMessage(await self.new_id(), thread_id, label=label, **(default | fields))

    async def send(self, thread_id: str = "thread", label: str = "note", **fields: Any) -> int:
        """Send a message that must arrive; its `seq`."""
        (outcome,) = await self.store.send([await self.message(thread_id, label, **fields)])
        assert isinstance(outcome, Sent), outcome
        return outcome.seq

    async def cancel(self, run: int, reason: str = "enough", payload: bytes = b"cancelled") -> Run:
        """Request the cancellation of a run that is there; its row."""
        row = await self.store.cancel(run, reason, payload)
        assert row is not None
        return row

    async def die(
        self, worker: int, *, recoveries_max: int = limits.RECOVERIES_MAX
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Take the worker's runs away as those of a dead one; the re-queued and the held."""
        (taken,) = await self.store.take_over([worker], recoveries_max=recoveries_max)
        assert taken.worker == worker
        return tuple(sorted(taken.requeued)), tuple(sorted(taken.held))

    # -- looking ---------------------------------------------------------------------------------------------

    async def run(self, run: int) -> Run:
        (found,) = await self.store.get_runs([run])
        return found

    async def state(self, run: int) -> RunState:
        return (await self.run(run)).state

    async def waits(self, run: int) -> dict[str, Wait]:
        """What the run waits for, by key."""
        return {row.key: row for row in await self.store.waits([run])}

    async def interrupt(self, interrupt: int) -> Interrupt:
        (found,) = await self.store.get_interrupts([interrupt])
        return found

    async def effect(self, effect: int) -> Effect:
        (found,) = await self.store.get_effects([effect])
        return found

    async def events(self, effect: int) -> list[tuple[EffectState, int]]:
        """What was written of an effect, each with the attempt of which it was said."""
        return [(event.state, event.attempt) for event in await self.store.effect_events(effect)]

    async def ledger(self, **fields: Any) -> list[int]:
        """The effects that these filters let through; their ids."""
        return [row.id for row in await self.store.effects(EffectFilter(**fields))]

    async def inbox(self, **fields: Any) -> list[int]:
        """The interrupts that these filters let through, the open ones if nothing else is said; their ids."""
        return [row.id for row in await self.store.interrupts(InterruptFilter(**fields))]

    async def mailbox(self, thread_id: str = "thread") -> list[Message]:
        return await self.store.mailbox((await self.thread(thread_id)).id)

    async def thread(self, thread_id: str = "thread") -> Thread:
        thread = await self.store.get_thread(thread_id)
        assert thread is not None
        return thread

    async def worker_row(self, worker: int) -> Worker:
        (found,) = [row for row in await self.store.workers(alive=False) if row.id == worker]
        return found

    async def log(self, run: int) -> list[Checkpoint]:
        """The run's whole log."""
        return await self.store.checkpoints(run)

    async def steps(self, run: int) -> dict[str, bytes]:
        """What the run's steps recorded, by key."""
        return {row.key: row.payload for row in await self.log(run) if row.key}


# -- running -------------------------------------------------------------------------------------------------

Self = TypeVar("Self", bound=Harness)


def scenario(body: Callable[[Self, Bench], Awaitable[None]]) -> Callable[[Self], None]:
    """A test method that runs the body on a fresh store and a fresh event loop."""

    def test(self: Self) -> None:
        async def main() -> None:
            bench = Bench(self, await self.open_store())
            try:
                await body(self, bench)
            finally:
                await bench.close()

        asyncio.run(main())

    # Not functools.wraps: a runner that follows `__wrapped__` would look for a fixture named `bench`.
    test.__name__, test.__qualname__ = body.__name__, body.__qualname__
    test.__module__, test.__doc__ = body.__module__, body.__doc__
    return test


@contextlib.asynccontextmanager
async def hints(store: Store) -> AsyncIterator[Callable[[Hint], Awaitable[None]]]:
    """Listen; the value is a function that waits until the given hint has come."""
    came = {hint: asyncio.Event() for hint in Hint}
    stop = store.listen(lambda hint: came[hint].set())

    async def wait_for(hint: Hint) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await came[hint].wait()
        came[hint].clear()

    try:
        yield wait_for
    finally:
        stop()


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """Look again until it is so: for what another process's end brings about, which sends no event."""
    async with asyncio.timeout(PATIENCE_S):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def in_threads(count: int, bench: Bench, body: Callable[[Bench, int], Awaitable[None]]) -> None:
    """Run the body `count` times at once, each in a thread with an event loop and an open clone of its own."""

    def main(number: int) -> None:
        async def inner() -> None:
            own = Bench(bench.harness, bench.store.clone())
            await own.store.open()
            try:
                await body(own, number)
            finally:
                await own.close()

        asyncio.run(inner())

    await asyncio.gather(*(asyncio.to_thread(main, number) for number in range(count)))
