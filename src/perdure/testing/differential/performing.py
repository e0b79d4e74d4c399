"""Telling a program to one store: every operation in its turn, every answer kept.

A store that raises has answered, too: the error is what the others must raise as well, and the program goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, assert_never
from unittest import mock

import msgspec

from perdure.core import limits
from perdure.core.budgets import BudgetFilter
from perdure.core.changes import Change, CommitOutcome, EndRun, IntendEffect, ParkRun, SettleEffect
from perdure.core.deliveries import Delivery, DeliveryFilter
from perdure.core.effects import EffectFilter
from perdure.core.meters import UsageBy, UsageFilter
from perdure.core.records import Blob, Checkpoint
from perdure.core.requests import InterruptFilter, NewWorker, RunFilter
from perdure.store.protocol import Store
from perdure.testing.differential.answers import shown
from perdure.testing.differential.operations import (
    MAIN,
    UNIT_S,
    Advance,
    Call,
    Crash,
    Look,
    Operation,
    Reserve,
    Silent,
    Vanish,
)

THREAD_QUEUE_MAX: Final = 4
"""A thread is full after so many unfinished runs: a program must get there."""

MAILBOX_MAX: Final = 4
"""And a mailbox after so many messages."""

LANE_MAX: Final = 4
"""And a lane of the outbox after so many deliveries."""

LOG_PAGE: Final = 3
"""Rows of a log read at a time, where it is read in pages."""

PATIENCE_S: Final = 10.0
"""How long a death may take to show. (A Postgres server that has just started believes in none for some seconds.)"""


class Ground(Protocol):
    """One kind of store, and what its author knows about it."""

    def fresh(self) -> AbstractAsyncContextManager[Store]:
        """A store, open and empty, for one program."""

    async def advance_s(self, store: Store, seconds: float) -> None:
        """Make the store believe that time has passed."""

    async def crash(self, store: Store) -> None:
        """End an open store as the death of its process would."""


async def perform(program: Sequence[Operation], ground: Ground, *, universe: Sequence[Blob] = ()) -> list[Any]:
    """Tell the program to a fresh store; the answers, as they are compared."""
    async with ground.fresh() as store:
        performance = Performance(ground, store, universe)
        try:
            return [await performance.tell(operation) for operation in program]
        finally:
            await performance.close()


_shortened: Final = mock.patch.multiple(
    limits, THREAD_QUEUE_MAX=THREAD_QUEUE_MAX, MAILBOX_MAX=MAILBOX_MAX, LANE_MAX=LANE_MAX
)
_tellers: Final[list[object]] = []


@contextlib.contextmanager
def short_queues() -> Iterator[None]:
    """Threads and mailboxes that fill up soon, for as long as programs are told. Several are told at once, and the last
    one to end is not the first one that began."""
    teller = object()
    if not _tellers:
        _shortened.start()
    _tellers.append(teller)
    try:
        yield
    finally:
        _tellers.remove(teller)
        if not _tellers:
            _shortened.stop()


class Performance:
    """One store while a program is told to it, and its open clones by name."""

    def __init__(self, ground: Ground, store: Store, universe: Sequence[Blob] = ()) -> None:
        self._ground = ground
        self._opened = {MAIN: store}
        self._reserved = 1
        self._attending: dict[str, set[int]] = defaultdict(set)
        self._dead: set[int] = set()
        """Workers whose death must show."""
        self._digests = [blob.digest for blob in universe]

    @property
    def store(self) -> Store:
        return self._opened[MAIN]

    async def close(self) -> None:
        """Close the clones; the store that was given is its giver's."""
        for name in [name for name in self._opened if name != MAIN]:
            await self._opened.pop(name).close()

    async def tell(self, operation: Operation) -> Any:
        """Do one thing; the answer as it is compared."""
        answer = await self.answer(operation)
        if isinstance(answer, CommitOutcome) and isinstance(operation, Call):
            answer = comparable(answer, operation.args[1])
        if isinstance(operation, Call) and operation.verb == "next_delivery" and answer:
            answer = round(answer / (UNIT_S * 1_000_000))
        if isinstance(operation, Call) and operation.verb == "claim_deliveries" and isinstance(answer, list):
            answer = sorted(answer, key=lambda row: row.id)
        if isinstance(operation, Call) and operation.verb == "overdue_deliveries" and isinstance(answer, list):
            answer = by_place(answer)
        return shown(answer, await self.store.now_us())

    async def answer(self, operation: Operation) -> Any:
        """Do one thing; the answer, or the error that was raised, as it is."""
        try:
            return await self._do(operation)
        except Exception as error:  # an answer like any other: the stores must raise alike
            return error

    async def _do(self, operation: Operation) -> Any:
        match operation:
            case Call():
                store = await self._by(operation.by)
                if operation.verb == "attend":
                    self._attending[operation.by] |= set(operation.args)
                return await getattr(store, operation.verb)(*operation.args, **operation.named)
            case Advance():
                return await self._ground.advance_s(self.store, operation.units * UNIT_S)
            case Reserve():
                return await self._reserve(operation.count)
            case Crash():
                return await self._crash(operation.by)
            case Vanish():
                return await self._vanish(operation.worker)
            case Silent():
                return await self._silent()
            case Look():
                return await everything(self.store, self._digests)
            case _:
                assert_never(operation)

    async def _by(self, name: str) -> Store:
        if name not in self._opened:
            clone = self._opened[name] = self.store.clone()
            await clone.open()
        return self._opened[name]

    async def _reserve(self, count: int) -> bool:
        """Whether the ids are beyond all that were reserved before."""
        first, before = await self.store.reserve_ids(count), self._reserved
        self._reserved = first + count
        return first >= before

    async def _vanish(self, worker: NewWorker) -> None:
        """Let a worker's loop end under its open store; return when its death shows."""
        own = self.store.clone()

        async def live() -> None:
            await own.open()
            await own.register(worker)
            await own.attend(worker.id)

        await asyncio.to_thread(lambda: asyncio.run(live()))
        own.abandon()
        self._dead.add(worker.id)
        await self._silent()

    async def _crash(self, name: str) -> None:
        if clone := self._opened.pop(name, None):
            await self._ground.crash(clone)
            self._dead |= self._attending.pop(name, set())

    async def _silent(self) -> list[int]:
        """Who is silent, when all the dead are, or when patience ends."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + PATIENCE_S
        attended = {row.id for row in await self.store.workers() if row.session}
        while (attended & self._dead) - set(found := await self.store.silent_workers()):
            if loop.time() > give_up_at:
                break
            await asyncio.sleep(0.01)
        return found


def comparable(outcome: CommitOutcome, changes: Sequence[Change]) -> CommitOutcome:
    """A batch's outcome without what a store need not say: that a change bounced where none of its run's changes were
    written, that a cancellation was requested which forbids nothing that is asked for here, and in which words a change
    of an effect was refused."""
    unwritten = outcome.lost | outcome.refused.keys()
    ends = {change.run for change in changes if isinstance(change, EndRun | ParkRun | IntendEffect)}
    acted = {change.run for change in changes if isinstance(change, IntendEffect | SettleEffect)}
    return msgspec.structs.replace(
        outcome,
        refused={run: "" if run in acted else why for run, why in outcome.refused.items()},
        bounced={place: why for place, why in outcome.bounced.items() if place[0] not in unwritten},
        cancelled=outcome.cancelled & ends,
    )


async def everything(store: Store, digests: Sequence[bytes]) -> dict[str, Any]:
    """All that can be read, as one value."""
    runs = await store.list_runs(RunFilter(limit=limits.LIST_ROWS_MAX))
    threads = await store.list_threads(limit=limits.LIST_ROWS_MAX)
    ids = [run.id for run in runs]
    effects = await store.effects(EffectFilter(limit=limits.LIST_ROWS_MAX))
    return {
        "runs": runs,
        "by id": await store.get_runs(ids),
        "outcomes": await store.outcomes(ids),
        "workers": await store.workers(alive=False),
        "logs": {run: await store.checkpoints(run) for run in ids},
        "tries": {run: await store.attempts(run) for run in ids},
        "threads": threads,
        "by name": [await store.get_thread(thread.thread_id) for thread in threads],
        "in pages": [await in_pages(store, run) for run in ids[-1:]],
        "histories": {thread.id: await store.thread_checkpoints(thread.id) for thread in threads},
        "waits": await store.waits(ids),
        "questions": await store.interrupts(InterruptFilter(state=None, limit=limits.LIST_ROWS_MAX)),
        "mail": {thread.id: await store.mailbox(thread.id) for thread in threads},
        "dead letters": await store.dead_letters(),
        "effects": effects,
        "what was written of them": [await store.effect_events(row.id) for row in effects],
        "handed over": await store.deliveries(DeliveryFilter(bill=False, limit=limits.LIST_ROWS_MAX)),
        "bills": await bills(store),
        "meters": {run: await store.meters(run) for run in ids},
        "used": [await store.usage(UsageFilter(by)) for by in (UsageBy.TENANT, UsageBy.AGENT, UsageBy.RUN)],
        "budgets": await store.budgets(BudgetFilter(limit=limits.LIST_ROWS_MAX)),
        "blobs": {thread.id: await store.blobs(thread.id, digests) for thread in threads},
    }


async def bills(store: Store) -> list[Delivery]:
    """Every bill, by its place; which numbers they have is the store's affair."""
    return by_place(await store.deliveries(DeliveryFilter(bill=True, limit=limits.LIST_ROWS_MAX)))


def by_place(rows: list[Delivery]) -> list[Delivery]:
    """Deliveries by lane and turn, bills without their numbers."""
    unnumbered = (msgspec.structs.replace(row, id=0) if row.bill else row for row in rows)
    return sorted(unnumbered, key=lambda row: (row.sink, row.partition, row.seq))


async def in_pages(store: Store, run: int) -> list[Checkpoint]:
    """A run's log, a little at a time."""
    rows: list[Checkpoint] = []
    after: tuple[int, int] | None = None
    while page := await store.checkpoints(run, limit=LOG_PAGE, after=after):
        rows += page
        assert len(rows) <= limits.LIST_ROWS_MAX, "the pages of a log do not end"
        after = (page[-1].super_step, page[-1].seq)
    return rows
