"""The store on one SQLite file.

Each open store has two threads. The writer owns the one connection that writes: all verbs that wait share a
transaction, and its sync. The reader owns a second connection; in WAL mode it never waits for the writer. Both take
plain functions (`commit.py`, `start.py`, `claim.py`, …); this file only sends them there. (Where users write in a
transaction of their own, a third thread comes to them: `transact.py`.) Processes on the same machine share the file
through the side directory (`files.py`, `wake.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome, Place
from perdure.core.effects import Effect, EffectEvent, EffectFilter, Resolution
from perdure.core.records import (
    Attempt,
    Blob,
    Checkpoint,
    Claimed,
    Interrupt,
    Message,
    Outcome,
    Run,
    TakenOver,
    Thread,
    Wait,
    Worker,
)
from perdure.core.requests import (
    AnswerOutcome,
    ClaimRequest,
    ForkRun,
    InterruptFilter,
    NewAnswer,
    NewMessage,
    NewWorker,
    RunFilter,
    SendOutcome,
    StartOutcome,
    StartRun,
)
from perdure.errors import StoreError, StoreUnavailable
from perdure.store import protocol
from perdure.store.protocol import Hint
from perdure.store.sqlite import (
    cancel,
    claim,
    commit,
    filesystem,
    forks,
    ledger,
    mail,
    operate,
    questions,
    read,
    schema,
    start,
    waits,
    wake,
    workers,
)
from perdure.store.sqlite.clock import MachineClock, look, machine_clock
from perdure.store.sqlite.connection import READ_CACHE_KIB, Database
from perdure.store.sqlite.doctor import diagnose
from perdure.store.sqlite.errors import translate
from perdure.store.sqlite.files import Attendance, WriterLock, side_directory
from perdure.store.sqlite.handing import HandingVerbs
from perdure.store.sqlite.line import InlineLine, Line, ReadRounds, WriteRounds
from perdure.store.sqlite.transact import Answer, Guests
from perdure.store.sqlite.transaction import Reader, Transaction

T = TypeVar("T")

Synchronous = Literal["off", "normal", "full", "extra"]

ANSWER_S: Final = 60.0
"""How long a verb waits for its answer. Commits take milliseconds; only a process that was stopped while it held the
writer lock makes the others wait this long."""


class SQLiteStore(HandingVerbs):
    """A store in the file at `path`, and in `<path>-workers/` beside it.

    A test may give the clocks: `now_us` is the machine's wall clock, which may step, and `ticks_us`, if it is there,
    one that never goes back and that all processes on the file share.
    """

    def __init__(
        self, path: str | Path, *, synchronous: Synchronous = "full", now_us: Callable[[], int] | None = None,
        ticks_us: Callable[[], int] | None = None, line: type[Line] | type[InlineLine] = Line,
    ) -> None:  # fmt: skip
        if synchronous not in ("off", "normal", "full", "extra"):
            raise StoreError(f"synchronous={synchronous!r} is unknown; use full, normal, extra or off")
        if str(path) in ("", ":memory:"):
            raise StoreError("a SQLite store needs a file; for one in memory use memory://")
        given = None if now_us is None else MachineClock(now_us, ticks_us, "given" if ticks_us else "")
        self._database = Database(Path(path).resolve(), synchronous, given or machine_clock())
        self._directory = side_directory(self._database.path)
        self._line = line
        self._open: _Open | None = None

    @property
    def url(self) -> str:
        """`sqlite:///` and the path."""
        return f"sqlite:///{self._database.path}"

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Prepare the file, and start the threads."""
        if self._open is not None:
            return
        await asyncio.to_thread(self._prepare)
        self._open = _Open(self._database, self._directory, self._line, self._answer)
        await self._sweep()

    async def close(self) -> None:
        """Do what is queued, and let go of everything."""
        if self._open is not None:
            opened, self._open = self._open, None
            await opened.close()

    def abandon(self) -> None:
        """The same without the loop, which has closed."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.abandon()

    def clone(self) -> SQLiteStore:
        """An unopened store on the same file."""
        clone = SQLiteStore(self._database.path, line=self._line)
        clone._database = self._database
        return clone

    async def migrate(self) -> tuple[int, int]:
        """Bring the file's schema up to date; the versions before and after."""
        return await asyncio.to_thread(self._with_file, schema.migrate)

    async def now_us(self) -> int:
        """The file's clock; see `clock.py`."""
        return await self._read(lambda reader: look(reader, self._database.clock).now)

    async def reserve_ids(self, count: int) -> int:
        return await self._write(partial(workers.reserve_ids, count=count))

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        return self._opened.ear.listen(on_hint)

    async def _sweep(self) -> None:
        """Remove what dead processes left. Files are listed before rows, as a worker has its row before its file: the
        other way round, the file of one that has just registered would go."""
        filed = self._opened.attendance.workers()
        living = await self._read(lambda reader: reader.array("living"))
        for worker in set(filed) - set(living):
            self._forget(worker)
        wake.sweep(self._directory)

    def _prepare(self) -> None:
        """Make a new file, or refuse one that this code cannot use."""
        before, _ = self._with_file(_version_or_new)
        schema.check_version(before, self._database.path)

    def _with_file(self, act: Callable[[Any, Path], tuple[int, int]]) -> tuple[int, int]:
        """Act on a connection of its own, under the writer lock: several processes may open a new file at once."""
        path = self._database.path
        schema.check_library()
        filesystem.check_place(path)
        try:
            self._check_file()
            self._directory.mkdir(exist_ok=True)
            lock = WriterLock(self._directory)
            try:
                with lock.held():
                    connection = self._database.connect(create=True, cache_kib=READ_CACHE_KIB)
                    try:
                        return act(connection, path)
                    finally:
                        connection.close()
            finally:
                lock.close()
        except Exception as error:
            raise translate(error, path) from error.__cause__

    def _check_file(self) -> None:
        """Refuse a file that is no database before anything is made beside it. SQLite itself looks: whoever opens the
        file otherwise and closes it drops all locks on it that SQLite has in this process."""
        if self._directory.exists() or not self._database.path.exists():
            return
        connection = self._database.connect(cache_kib=READ_CACHE_KIB)
        try:
            connection.execute("pragma schema_version")
        finally:
            connection.close()

    # -- workers ---------------------------------------------------------------------------------------------

    async def register(self, worker: NewWorker) -> None:
        await self._write(partial(workers.register, worker=worker))

    async def renew(self, worker: int, lease_us: int) -> bool:
        return await self._write(partial(workers.renew, worker=worker, lease_us=lease_us))

    async def attend(self, worker: int) -> bool:
        if not self._opened.attendance.attend(worker):
            return False
        marked = await self._write(partial(workers.set_session, worker=worker))
        if not marked:
            self._forget(worker)
        return marked

    async def silent_workers(self) -> list[int]:
        silent = self._opened.attendance.is_silent
        return await self._read(lambda reader: [each for each in reader.array("attended") if silent(each)])

    async def set_idle(self, worker: int, idle: bool) -> None:
        await self._write(partial(workers.set_idle, worker=worker, idle=idle))

    async def take_over(self, suspects: Iterable[int], *, recoveries_max: int) -> list[TakenOver]:
        given = list(suspects)
        taken = await self._write(partial(workers.take_over, suspects=given, recoveries_max=recoveries_max))
        for each in taken:
            self._forget(each.worker)
        return taken

    async def retire(self, worker: int) -> int:
        returned = await self._write(partial(workers.retire, worker=worker))
        self._forget(worker)
        return returned

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        return await self._write(partial(workers.give_back, worker=worker, keep=keep, ticket=ticket))

    def _forget(self, worker: int) -> None:
        if self._open is not None:
            self._open.attendance.forget(worker)

    async def workers(self, *, alive: bool = True) -> list[Worker]:
        return await self._read(partial(read.workers, alive=alive))

    # -- starting and executing ------------------------------------------------------------------------------

    async def start(self, starts: Sequence[StartRun]) -> list[StartOutcome]:
        return await self._write(partial(start.start, starts=starts)) if starts else []

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self._write(partial(claim.claim, request=request))

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        return await self._write(partial(commit.commit, worker=worker, changes=changes))

    async def waits(self, runs: Sequence[int], *, only_ready: bool = False) -> list[Wait]:
        return await self._read(partial(waits.waits, runs=runs, clock=self._database.clock, only_ready=only_ready))

    async def cancellations(self, worker: int) -> dict[int, str]:
        return await self._read(partial(cancel.cancellations, worker=worker))

    async def next_due(self) -> int | None:
        return await self._read(partial(waits.next_due, clock=self._database.clock))

    # -- between runs ----------------------------------------------------------------------------------------

    async def cancel(self, run: int, reason: str, payload: bytes) -> Run | None:
        return await self._write(partial(cancel.cancel, run=run, reason=reason, payload=payload))

    async def answer(self, answer: NewAnswer) -> AnswerOutcome | None:
        return await self._write(partial(questions.answer, given=answer))

    async def interrupts(self, where: InterruptFilter) -> list[Interrupt]:
        return await self._read(partial(questions.interrupts, where=where, clock=self._database.clock))

    async def get_interrupts(self, interrupts: Sequence[int]) -> list[Interrupt]:
        return await self._read(partial(questions.get_interrupts, ids=interrupts, clock=self._database.clock))

    async def send(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        return await self._write(partial(mail.send, messages=messages)) if messages else []

    async def mailbox(self, thread: int, *, limit: int = 100, after: int = 0) -> list[Message]:
        return await self._read(partial(mail.mailbox, thread=thread, limit=limit, after=after))

    async def dead_letters(self, thread: int | None = None, *, limit: int = 100, after: int = 0) -> list[Message]:
        return await self._read(partial(mail.dead_letters, thread=thread, limit=limit, after=after))

    async def revive(self, message: int) -> Message | None:
        return await self._write(partial(mail.revive, message=message))

    async def fork(self, fork: ForkRun) -> StartOutcome:
        return await self._write(partial(forks.fork, asked=fork))

    # -- effects ---------------------------------------------------------------------------------------------

    async def effects(self, where: EffectFilter) -> list[Effect]:
        return await self._read(partial(ledger.effects, where=where))

    async def get_effects(self, effects: Sequence[int]) -> list[Effect]:
        return await self._read(partial(ledger.get_effects, effects=effects))

    async def effect_events(self, effect: int) -> list[EffectEvent]:
        return await self._read(partial(ledger.effect_events, effect=effect))

    async def resolve(self, resolution: Resolution, blobs: Sequence[Blob] = ()) -> Effect | None:
        return await self._write(partial(ledger.resolve, found=resolution, blobs=blobs))

    # -- transactions ----------------------------------------------------------------------------------------

    async def transact(
        self, worker: int, place: Place, work: Callable[[protocol.Transaction], Awaitable[AppendCheckpoint]]
    ) -> CommitOutcome:  # fmt: skip
        return await self._opened.guests.transact(worker, place, work)

    # -- operators -------------------------------------------------------------------------------------------

    async def retry(self, run: int, drop_keys: Sequence[str], *, undo: bool = False) -> Run | None:
        return await self._write(partial(operate.retry, run=run, drop_keys=drop_keys, undo=undo))

    async def release(self, run: int) -> Run | None:
        return await self._write(partial(operate.release, run=run))

    # -- reading ---------------------------------------------------------------------------------------------

    async def get_runs(self, runs: Sequence[int]) -> list[Run]:
        return await self._read(partial(read.get_runs, runs=runs))

    async def list_runs(self, where: RunFilter) -> list[Run]:
        return await self._read(partial(read.list_runs, where=where))

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        return await self._read(partial(read.outcomes, runs=runs))

    async def watch(self, runs: Sequence[int]) -> None:
        if runs:
            await self._write(partial(operate.watch, runs=runs))

    async def get_thread(self, thread_id: str) -> Thread | None:
        return await self._read(partial(read.get_thread, thread_id=thread_id))

    async def list_threads(
        self, *, agent: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[Thread]:
        return await self._read(partial(read.list_threads, agent=agent, limit=limit, after=after))

    async def checkpoints(
        self,
        run: int,
        *,
        super_step: int | None = None,
        boundaries: bool = False,
        limit: int = 1000,
        after: tuple[int, int] | None = None,
    ) -> list[Checkpoint]:
        page = partial(read.checkpoints, run=run, super_step=super_step, boundaries=boundaries)
        return await self._read(partial(page, limit=limit, after=after))

    async def thread_checkpoints(
        self, thread: int, *, limit: int = 100, after: tuple[int, int] | None = None
    ) -> list[Checkpoint]:
        return await self._read(partial(read.thread_checkpoints, thread=thread, limit=limit, after=after))

    async def attempts(self, run: int) -> list[Attempt]:
        return await self._read(partial(read.attempts, run=run))

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return await self._read(partial(read.blobs, thread=thread, digests=digests))

    async def diagnose(self) -> list[tuple[str, bool, str]]:
        return await self._read(partial(diagnose, database=self._database))

    # -- threads ---------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> _Open:
        if self._open is None:
            raise StoreUnavailable(f"{self.url} is not open; await open() first", path=str(self._database.path))
        return self._open

    async def _write(self, operation: Callable[[Transaction], T]) -> T:
        return await self._answer(self._opened.writer, operation)

    async def _read(self, operation: Callable[[Reader], T]) -> T:
        return await self._answer(self._opened.reader, operation)

    async def _answer(self, line: Line | InlineLine, operation: Callable[[Any], T]) -> T:
        future: asyncio.Future[T] = line.submit(operation)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._database.path}: no answer in {ANSWER_S:.0f} s; look for a stopped process that holds "
                f"{self._directory / 'writer.lock'} (`fuser` names it)",
                path=str(self._database.path),
            ) from error


class _Open:
    """What an open store holds: its threads, the locks, an ear."""

    def __init__(
        self, database: Database, directory: Path, line: type[Line] | type[InlineLine], answer: Answer
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        self.attendance = Attendance(directory)
        self.ear = wake.Ear(directory, loop)
        self._lock = WriterLock(directory)
        writing = WriteRounds(database, self._lock.held, wake.Bell(directory).ring)
        self.guests = Guests(database, directory, answer)
        reading = ReadRounds(database)
        name = database.path.name
        self.writer = line(f"perdure writer {name}", writing, loop, writing.end)
        self.reader = line(f"perdure reader {name}", reading, loop, reading.end)

    async def close(self) -> None:
        self.ear.close()
        await self.guests.close()
        await self.writer.close()
        await self.reader.close()
        self._lock.close()
        self.attendance.close()

    def abandon(self) -> None:
        self.ear.close()
        self.guests.abandon()
        if self.writer.abandon() and self.reader.abandon():
            self._lock.close()
        self.attendance.close()


def _version_or_new(connection: Any, path: Path) -> tuple[int, int]:
    """The file's version; a new, empty file is migrated at once."""
    version = schema.version_of(connection, path)
    if version == 0:
        _, version = schema.migrate(connection, path)
    return version, version
