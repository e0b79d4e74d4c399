"""A history: everything that is recorded of a run, in one value and in one file.

The file is JSON, with payloads as base64. It is data only, and whole: what the run's records hold, its history holds,
so it belongs where the store's backups belong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from perdure.client.requests import no_run, run_number
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Attempt, Blob, Checkpoint, Interrupt, Kind, Run, run_id
from perdure.core.requests import InterruptFilter
from perdure.core.snapshot import missing, spilled
from perdure.core.states import TERMINAL
from perdure.errors import StoreError, UsageError
from perdure.store.pages import whole_log
from perdure.store.protocol import Store

if TYPE_CHECKING:
    from perdure.app import App

FORMAT: Final = "perdure.history"
VERSION: Final = 1

LACKING_MAX: Final = 3
"""What is named of all that an incomplete history lacks."""

EXPORT: Final = "write it again with `perdure runs export RUN --to FILE`"


class IncompleteHistory(UsageError):
    """A history lacks records that its run must have had, so nothing can be said of it: it was edited or cut, and is to
    be exported again."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One super-step of a history."""

    number: int
    boundary: Checkpoint
    state: bytes | None
    """The root of the thread's state at its beginning."""
    records: tuple[Checkpoint, ...]
    end: Checkpoint | None
    """The next boundary or the run's end; None while there is none."""


class History(msgspec.Struct, frozen=True):
    """A recorded run."""

    run: Run
    before: bytes | None
    """The root of the thread's state before the run."""
    log: tuple[Checkpoint, ...]
    attempts: tuple[Attempt, ...]
    blobs: tuple[Blob, ...]
    """What spilled payloads and states refer to."""
    format: str = FORMAT
    version: int = VERSION
    questions: tuple[Interrupt, ...] = ()
    """Those that it has asked and whose answers are not on record."""

    @property
    def run_id(self) -> str:
        """The run's name."""
        return run_id(self.run.id)

    @property
    def super_steps(self) -> tuple[Recorded, ...]:
        """The super-steps, in order."""
        begun = {row.super_step: row for row in self.log if row.kind is Kind.BOUNDARY}
        ended = {row.super_step: row for row in self.log if row.kind is not Kind.STEP}
        steps: dict[int, list[Checkpoint]] = {number: [] for number in begun}
        for row in self.log:
            if row.kind is Kind.STEP and row.super_step in steps:
                steps[row.super_step].append(row)
        return tuple(
            Recorded(number, begun[number], self._state_at(begun[number]), tuple(steps[number]), ended.get(number + 1))
            for number in sorted(begun)
        )

    def _state_at(self, boundary: Checkpoint) -> bytes | None:
        """The root of the state there: the boundary's own, but the thread's at the beginning of a run on it. (A fork
        begins with a state of its own.)"""
        if boundary.super_step > 1 or boundary.state is not None:
            return boundary.state
        return self.before

    def check(self) -> None:
        """Raise `IncompleteHistory` unless every super-step, and the end of a run that has ended, is there."""
        begun = [row.super_step for row in self.log if row.kind is Kind.BOUNDARY]
        last = max((row.super_step for row in self.log), default=0)
        ends = self.run.state in TERMINAL
        first = min((row.super_step for row in self.log if row.kind is Kind.BOUNDARY and row.worker == 0), default=1)
        wanted = range(first, max(last + (0 if self._ended else 1), first + 1))  # a fork does not begin at 1
        lacking = [f"the beginning of super-step {number}" for number in wanted if number not in begun]
        if ends and not self._ended:
            lacking.append("its end")
        if lacking:
            what = ", ".join(lacking[:LACKING_MAX]) + (", …" if len(lacking) > LACKING_MAX else "")
            raise IncompleteHistory(
                f"the history of {self.run_id}, a {self.run.state} run, is incomplete: it lacks {what}; {EXPORT}",
                run_id=self.run_id,
            )

    @property
    def _ended(self) -> bool:
        return any(row.kind is Kind.ENDED for row in self.log)

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_bytes(self.encode())

    def encode(self) -> bytes:
        """What is in its file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read a file that `save` has written. Raises `UsageError` if it is none, or damaged."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
        try:
            head = msgspec.json.decode(data, type=_Head)
        except msgspec.DecodeError as error:
            cut = data.lstrip().startswith(b"{") and "truncated" in str(error)
            what = "is cut off" if cut else f"is not a run's history ({error})"
            raise UsageError(f"{path} {what}; {EXPORT}", path=str(path)) from error
        if head.format != FORMAT:
            raise UsageError(f"{path} is {head.format!r}, and not {FORMAT!r}; {EXPORT}", path=str(path))
        if head.version > VERSION:
            raise UsageError(
                f"{path} is {FORMAT!r}, version {head.version}, and this perdure reads {FORMAT!r} up to version "
                f"{VERSION}: update perdure here, or export the run again with this one",
                path=str(path),
            )
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, ValueError) as error:
            raise UsageError(f"{path} is a damaged history: {error}; {EXPORT}", path=str(path)) from error


class _Head(msgspec.Struct):
    format: str
    version: int


async def record_history(app: App, run_id: str) -> History:
    """The history of a run in the app's store, whatever state it is in."""
    store = (await app._client()).store
    found = await store.get_runs([run_number(run_id)])
    if not found:
        raise no_run(run_id, store.url)
    return await read_history(store, found[0])


async def read_history(store: Store, run: Run) -> History:
    """The history of a run in an open store."""
    log = tuple([row async for row in whole_log(store, run.id)])
    attempts = tuple(await store.attempts(run.id))
    before = await _state_before(store, run)
    questions = await _questions(store, run, log)
    payloads = [row.payload for row in log] + [row.payload for row in questions]
    payloads += [row.error for row in attempts if row.error]
    roots = [root for root in (before, *(row.state for row in log)) if root is not None]
    return History(run, before, log, attempts, await _blobs(store, run.thread, payloads, roots), questions=questions)


async def _questions(store: Store, run: Run, log: Iterable[Checkpoint]) -> tuple[Interrupt, ...]:
    """The questions of the run that are not on record as answered."""
    known = {(row.super_step, row.key) for row in log}
    found: list[Interrupt] = []
    after: int | None = None
    while page := await store.interrupts(InterruptFilter(state=None, run=run.id, limit=LIST_ROWS_MAX, after=after)):
        found += [each for each in page if (each.super_step, each.key) not in known]
        after = page[-1].id
    return tuple(found)


async def _state_before(store: Store, run: Run) -> bytes | None:
    """The state that the thread had when the run began: the newest one of the runs before it."""
    after = (run.id, 1)
    while page := await store.thread_checkpoints(run.thread, limit=LIST_ROWS_MAX, after=after):
        for row in page:
            if row.state is not None:
                return row.state
        after = (page[-1].run, page[-1].super_step)
    return None


async def _blobs(store: Store, thread: int, payloads: Iterable[bytes], roots: Iterable[bytes]) -> tuple[Blob, ...]:
    """Every blob that these need, each once."""
    have: dict[bytes, bytes] = {}
    roots = tuple(roots)
    wanted = {digest for payload in payloads if (digest := spilled(payload)) is not None}
    while True:
        found = await store.blobs(thread, sorted(wanted)) if wanted else {}
        if absent := wanted - found.keys():
            raise StoreError(f"{len(absent)} blobs of thread {thread} are missing from {store.url}")
        have |= found
        wanted = {digest for root in roots for digest in missing(root, have)}
        if not wanted:
            return tuple(Blob(digest, data) for digest, data in sorted(have.items()))
