"""What stands behind a stage: where its processes get their connections, who keeps their leases, and what `def` steps
run in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from concurrent.futures import Executor, Future
from typing import Any, TypeVar, cast

from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.errors import StoreUnavailable, UsageError
from perdure.runtime.body_threads import BodyThreads, Job
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store, Transaction
from perdure.testing.rehearsal.books import Books, Entry
from perdure.testing.simulation.inline import InlineExecutor, InlinePools, InlineThreads
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.wire import Database, RemoteStore, Request
from perdure.testing.simulation.world import Process

T = TypeVar("T")


class Crossroads:
    """An app's store while it is on stage: each process that opens it gets its own connection."""

    def __init__(
        self, app: str, database: Database, books: Books, leaving: Container[Process], dies: Callable[[Request], bool]
    ) -> None:
        self._app = app
        self._database = database
        self._books = books
        self._leaving = leaving
        self._dies = dies
        self.url = "memory://rehearsal"

    def clone(self) -> Store:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, VirtualLoop) or not isinstance(loop.owner, Process):
            raise UsageError(
                f"app {self._app} is on stage in a rehearsal; use it in the stage's own `run` or `play`, not outside "
                "of them"
            )
        if loop.owner.world is not self._database.world:
            raise UsageError(
                f"app {self._app} is on another stage than the one that it was used on; put both apps on one: "
                "rehearse(..., apps=[that_app])"
            )
        return cast(Store, Connection(self._database, loop.owner, self._books, self._leaving, self._dies))


class Connection(RemoteStore):
    """A process's connection. A worker that has been replaced gets no more runs and deliveries through it, and what a
    process was to die before is not done."""

    def __init__(
        self, database: Database, process: Process, books: Books, leaving: Container[Process],
        dies: Callable[[Request], bool],
    ) -> None:  # fmt: skip
        super().__init__(database, process)
        self._books = books
        self._leaving = leaving
        self._dies = dies

    def clone(self) -> Connection:
        return Connection(self.database, self.process, self._books, self._leaving, self._dies)

    async def transact(
        self, worker: int, place: Place, work: Callable[[Transaction], Awaitable[AppendCheckpoint]]
    ) -> CommitOutcome:  # fmt: skip
        """The store in memory keeps no SQL: the stage's books do, and take what the work has done to them in the moment
        in which the store takes its record."""
        async with self._books.entry(self.process) as entry:
            record = await work(entry)
            assert (record.run, record.super_step, record.key) == place, "the record is another step's"
            outcome: CommitOutcome = await self._call("commit", worker, [record], entry=entry)
            return outcome

    async def do(self, request: Request) -> Any:
        if request.verb in ("claim", "claim_deliveries") and self.process in self._leaving:
            return []
        if self._dies(request):
            raise StoreUnavailable("this process is gone")
        if (entry := request.kwargs.pop("entry", None)) is not None:
            return await self._filed(entry, request)
        return await super().do(request)

    async def _filed(self, entry: Entry, request: Request) -> CommitOutcome:
        """Write the record that a transaction has come to, and with it what that has done; neither, if one of them was
        written before or is not to be."""
        if entry.is_over:
            raise StoreUnavailable("this process is gone")
        (record,) = request.args[1]
        entry.is_filed, written = True, False
        try:
            log = cast(MemoryStore, self.database.root)._data.checkpoints[record.run]
            known = (record.super_step, record.key) in log
            outcome: CommitOutcome = await super().do(request)
            written = outcome.alive and not known and record.run not in outcome.lost | outcome.refused.keys()
            return outcome
        finally:
            entry.end(written=written)


class Nobody:
    """Nobody renews a lease on stage: it lasts, and deaths are told."""

    def __init__(self, name: str, main: Any) -> None:
        pass

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class StagePools(InlinePools):
    """What `def` steps run in: at once and to their end, on a thread that is, to them, without an event loop. So they
    may have one of their own, as `asyncio.run` makes it."""

    def threads(self) -> BodyThreads:
        return _Threads()

    def processes(self) -> Executor:
        return _Processes()


class _Threads(InlineThreads):
    def submit(self, call: Callable[[], Any]) -> Job:
        return super().submit(lambda: _off_loop(call))


class _Processes(InlineExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(lambda: _off_loop(lambda: fn(*args, **kwargs)))


def _off_loop(call: Callable[[], T]) -> T:
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return call()
    finally:
        asyncio._set_running_loop(loop)
