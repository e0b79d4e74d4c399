"""A thread that owns one connection, and a queue of operations for it.

An operation is a plain function from a reader, or a transaction, to a result. Everything that waits is taken at once;
the answers of one round go back to the event loop in one call. The writer's rounds are transactions: all that came
while the last one was on its way to the disk shares the next one's sync.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.protocol import Hint
from perdure.store.sqlite.connection import CACHE_KIB, READ_CACHE_KIB, Database
from perdure.store.sqlite.errors import breaks_connection, translate
from perdure.store.sqlite.transaction import Reader, Transaction

_log = logging.getLogger(__name__)

T = TypeVar("T")

OPERATIONS_A_ROUND_MAX: Final = 500
"""Operations in one transaction: a flood of small ones must not make one that never ends."""


CLOSE_S: Final = 30.0
"""How long closing waits for what is queued; only a store whose lock a stopped process holds takes that long."""

ABANDON_S: Final = 1.0
"""The same for a store whose loop has closed: nobody waits for what it still does."""


class Failed:
    """The answer of an operation that raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


Operation = Callable[[Any], Any]


class Rounds(Protocol):
    """What a line does with everything that waits; one answer for each operation, in order."""

    def __call__(self, operations: list[Operation]) -> list[Any]: ...


class Line:
    """The thread and its queue."""

    def __init__(
        self,
        name: str,
        work: Rounds,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[], None],
        *,
        patience_s: Callable[[], float | None] = lambda: None,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        """Where nothing comes for as long as `patience_s` says each time, the thread does `on_silence`."""
        self._work = work
        self._loop = loop
        self._on_end = on_end
        self._patience_s = patience_s
        self._on_silence = on_silence
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[Operation, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation; the future of its result."""
        if self._pid != os.getpid():
            raise StoreError("this store was opened before a fork; open a clone() in the child")
        if self._closing:
            raise StoreUnavailable("this store is closed; open() it again")
        future = self._loop.create_future()
        self._jobs.put((operation, future))
        return future

    async def close(self) -> None:
        """Do what is queued, then end the thread."""
        if not self._closing:
            self._closing = True
            self._jobs.put(None)
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._ended)
        except TimeoutError:
            _log.warning("%s is stuck; it is left to end by itself", self._thread.name)
            return
        self._thread.join()

    def abandon(self) -> bool:
        """End the thread without the loop, which has closed; whether it has ended."""
        self._closing = True
        self._jobs.put(None)
        self._thread.join(ABANDON_S)
        return not self._thread.is_alive()

    def _main(self) -> None:
        going = True
        try:
            while going:
                jobs, going = self._next()
                if jobs:
                    self._settle(jobs, self._answers([operation for operation, _ in jobs]))
        finally:
            self._closing = True
            self._abandon()
            self._on_end()
            self._call(self._end)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _next(self) -> tuple[list[tuple[Operation, asyncio.Future[Any]]], bool]:
        """Everything that waits, and whether more may come."""
        jobs = []
        job = self._first()
        while job is not None:
            jobs.append(job)
            if len(jobs) == OPERATIONS_A_ROUND_MAX or self._jobs.empty():
                return jobs, True
            job = self._jobs.get()
        return jobs, False

    def _first(self) -> tuple[Operation, asyncio.Future[Any]] | None:
        """What comes next, however long that takes."""
        while True:
            try:
                return self._jobs.get(timeout=self._patience_s())
            except queue.Empty:
                self._on_silence()

    def _abandon(self) -> None:
        """Tell whoever still waits that nobody will come; only where the thread broke."""
        while not self._jobs.empty():
            if job := self._jobs.get():
                self._settle([job], [Failed(StoreUnavailable("the store's thread has ended; open the store again"))])

    def _answers(self, operations: list[Operation]) -> list[Any]:
        answers = attempt(lambda: self._work(operations))
        return [answers] * len(operations) if isinstance(answers, Failed) else answers

    def _settle(self, jobs: list[tuple[Operation, asyncio.Future[Any]]], answers: list[Any]) -> None:
        self._call(lambda: settle(jobs, answers))

    def _call(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            _log.debug("the loop of a store has closed before the store")


class InlineLine:
    """The same without a thread, for a simulator: a round takes what was submitted in one turn of the loop."""

    def __init__(self, name: str, work: Rounds, loop: asyncio.AbstractEventLoop, on_end: Callable[[], None]) -> None:
        self._work = work
        self._loop = loop
        self._on_end = on_end
        self._jobs: list[tuple[Operation, asyncio.Future[Any]]] = []

    def submit(self, operation: Operation) -> asyncio.Future[Any]:
        """Queue an operation for the next turn; the future of its result."""
        future = self._loop.create_future()
        if not self._jobs:
            self._loop.call_soon(self._round)
        self._jobs.append((operation, future))
        return future

    async def close(self) -> None:
        """Do what is queued, then let go."""
        self._round()
        self._on_end()

    def abandon(self) -> bool:
        """The same without the loop."""
        self._jobs.clear()
        self._on_end()
        return True

    def _round(self) -> None:
        jobs, self._jobs = self._jobs, []
        if not jobs:
            return
        answers = attempt(lambda: self._work([operation for operation, _ in jobs]))
        settle(jobs, [answers] * len(jobs) if isinstance(answers, Failed) else answers)


def settle(jobs: list[tuple[Operation, asyncio.Future[Any]]], answers: list[Any]) -> None:
    """Give each answer to whoever waits for it; on the loop."""
    for (_, future), answer in zip(jobs, answers, strict=True):
        if future.done():
            continue
        if isinstance(answer, Failed):
            future.set_exception(answer.error)
        else:
            future.set_result(answer)


def attempt(act: Callable[[], T]) -> T | Failed:
    """The result, or the failure for whoever waits for it: the loop's edge, where nothing may end the thread."""
    try:
        return act()
    except Exception as error:
        return Failed(error)


class ConnectionRounds:
    """A connection that is opened when it is first needed, and again after it broke.

    It is used only while its file lies where it lay. SQLite would go on writing to one that was deleted, and nobody
    would ever read that; and of one that was put in its place this store knows neither the ids nor the workers."""

    def __init__(self, database: Database, cache_kib: int) -> None:
        self.database = database
        self._cache_kib = cache_kib
        self._opened: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        file = self.database.file
        if self._file is None:
            self._file = file
        if file != self._file:
            path = self.database.path
            raise StoreUnavailable(
                f"{path} was moved, removed or replaced while it was in use; put it back, or start this process again",
                path=str(path),
            )
        if self._opened is None:
            self._opened = self.database.connect(cache_kib=self._cache_kib)
        return self._opened

    def end(self) -> None:
        """Close the connection, on the line's thread."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _told(self, answer: Any) -> Any:
        """The answer, with an error as the store's callers know it."""
        return Failed(translate(answer.error, self.database.path)) if isinstance(answer, Failed) else answer


class ReadRounds(ConnectionRounds):
    """Each operation reads by itself."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, READ_CACHE_KIB)

    def __call__(self, operations: list[Operation]) -> list[Any]:
        return [self._one(operation) for operation in operations]

    def _one(self, operation: Operation) -> Any:
        answer = attempt(lambda: operation(Reader(self.connection)))
        if isinstance(answer, Failed) and breaks_connection(answer.error):
            self.end()
        return self._told(answer)


class WriteRounds(ConnectionRounds):
    """All operations share a transaction; each has a savepoint, so that one that fails is undone alone."""

    def __init__(
        self,
        database: Database,
        lock: Callable[[], AbstractContextManager[None]],
        ring: Callable[[set[Hint]], None],
    ) -> None:
        super().__init__(database, CACHE_KIB)
        self._lock = lock
        self._ring = ring

    def __call__(self, operations: list[Operation]) -> list[Any]:
        done = attempt(lambda: self._transact(operations))
        if isinstance(done, Failed):  # nothing was committed, or nobody knows: every waiter is told
            if breaks_connection(done.error):
                self.end()
            return [self._told(done) for _ in operations]
        answers, hints = done
        if hints:
            self._ring(hints)
        return [self._told(answer) for answer in answers]

    def _transact(self, operations: list[Operation]) -> tuple[list[Any], set[Hint]]:
        with self._lock():
            connection = self.connection
            connection.execute("begin immediate")
            try:
                tx = Transaction(connection, self.database.clock)
                answers = [self._one(tx, operation) for operation in operations]
                if Hint.WORK in tx.hints and not tx.value("anybody_idle"):
                    tx.hints.remove(Hint.WORK)
                tx.end()
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        return answers, tx.hints

    def _one(self, tx: Transaction, operation: Operation) -> Any:
        answer = attempt(lambda: self._in_savepoint(tx, operation))
        if isinstance(answer, Failed) and (breaks_connection(answer.error) or not tx.connection.in_transaction):
            raise answer.error  # the failure took the transaction, and with it what the others had written
        return answer

    def _in_savepoint(self, tx: Transaction, operation: Operation) -> Any:
        with tx.savepoint("operation"):
            return operation(tx)
