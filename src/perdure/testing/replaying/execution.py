"""Where a recorded super-step is played again: the runtime's own code, on a worker that has no store and no lease.

A step on record takes the runtime's way: key, digest, journal, decoded record. A step that is not on record gets the
answer a test has for it, else its task waits; when nothing else moves, the super-step is closed there. A divergence
is noted and the record returned all the same, so one replay finds all of them.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import random
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.clock import SYSTEM_CLOCK, Clock
from perdure.core.changes import BeginSuperStep, Change, CommitOutcome, EndRun, bytes_of
from perdure.core.digests import digest64
from perdure.core.endings import Again, Ending, HandedBack
from perdure.core.journal import Journal
from perdure.core.keys import Scope, meant
from perdure.core.limits import SUPER_STEPS_AHEAD_MAX
from perdure.core.records import Blob, Checkpoint, Claimed
from perdure.core.retry import Retry
from perdure.runtime.agent import Agent
from perdure.runtime.callables import Pools
from perdure.runtime.deadlines import Deadlines
from perdure.runtime.execution import Execution
from perdure.runtime.frames import AgentFrame, StepFrame, frame
from perdure.runtime.group import Batch, GroupCommit
from perdure.runtime.step import Durability, Step
from perdure.runtime.superstep import SuperStep
from perdure.runtime.surroundings import AroundBody
from perdure.runtime.trust import Trust
from perdure.store.protocol import Store
from perdure.testing.answers import answered
from perdure.testing.replaying.report import Finding

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.connection import Client

Answers = Mapping[str, Any]
"""By step key or step name, what a step that is not on record returns: a value, a function of its arguments, or an
exception that it raises."""

QUIET_S: Final = 0.05
"""So long (of virtual time) nothing may move before a super-step that waits for a step is closed. What is on record
takes no time."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


@dataclass(frozen=True, slots=True)
class Diverged:
    """A step on record, called with other arguments."""

    record: Checkpoint
    name: str
    call: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """What is not on record: a step, or something asked of the app."""

    key: str
    call: str
    answered: bool
    outside: Finding | None = None
    """What it is, if it is no step."""
    digest: int = 0
    """Of its arguments; 0 where they do not matter."""


class Shelf:
    """A history's blobs: all of a store that replaying needs."""

    url = "history"

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self._blobs = {blob.digest: blob.data for blob in blobs}

    @property
    def as_store(self) -> Store:
        """For code that asks a store for blobs, and for nothing else."""
        return cast(Store, self)

    def add(self, blobs: Iterable[Blob]) -> None:
        """Have these too."""
        self._blobs |= {blob.digest: blob.data for blob in blobs}

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those of them that there are."""
        return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}


class Unwritten(GroupCommit[Change, CommitOutcome]):
    """A group commit that takes everything and writes nothing."""

    def __init__(self) -> None:
        super().__init__(self._nowhere, size=bytes_of)

    def submit(self, item: Change) -> Batch[Change, CommitOutcome]:
        done: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        done.set_result(CommitOutcome())
        return Batch(done)

    async def _nowhere(self, changes: list[Change]) -> CommitOutcome:
        return CommitOutcome()


class RecordedClock:
    """The time of the record, for whoever asks for it now."""

    def __init__(self, at_us: int) -> None:
        self._at_us = at_us

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        return self._at_us


@dataclass
class ReplayHost:
    """What a worker lends to its runs, here: the `Host` of a super-step that is played again."""

    deployment: str
    clock: Clock
    store: Store
    deadlines: Deadlines
    worker: int = 0
    durability: Durability = "async"
    draining: bool = False
    committer: GroupCommit[Change, CommitOutcome] = field(default_factory=Unwritten)
    trust: Trust = field(default_factory=lambda: Trust(SYSTEM_CLOCK, float("inf")))
    pools: Pools = field(default_factory=Pools)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    around_body: AroundBody | None = None
    ahead_max: int = SUPER_STEPS_AHEAD_MAX


def host_for(deployment: str | None, at_us: int, shelf: Shelf) -> ReplayHost:
    """The host for one super-step that was recorded then; made on the loop that plays it."""
    clock = RecordedClock(at_us)
    return ReplayHost(deployment or "", clock, shelf.as_store, Deadlines(clock))


class WatchedJournal(Journal):
    """A journal that knows what it was asked for."""

    __slots__ = ("asked",)

    def __init__(self, records: Iterable[Checkpoint]) -> None:
        super().__init__(records, ())
        self.asked: set[str] = set()

    def find(self, key: str) -> Checkpoint | None:
        self.asked.add(key)
        return super().find(key)


class ReplaySuperStep(SuperStep):
    """A super-step that is played again."""

    def __init__(self, host: ReplayHost, claimed: Claimed, *, durability: Durability | None, answers: Answers) -> None:
        super().__init__(host, claimed, number=claimed.super_step, durability=durability)
        self.journal = self.watched = WatchedJournal(claimed.records)
        self.diverged: list[Diverged] = []
        self.fresh: dict[str, Fresh] = {}
        self.stopped = False
        """It was closed where it waits for something that is not on record."""
        self.stuck = ""
        """Why it was closed before its end: it did not come to one."""
        self.waits_at: list[str] = []
        """Where it was then."""
        self.names: set[str] = set()
        """What was called."""
        self.moves = 0
        """Grows with every call of a step."""
        self._name = ""
        self._answers = answers
        self._looking: asyncio.TimerHandle | None = None

    async def call(self, step: Step[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.moves += 1
        self.names.add(step.settings.name)
        self._name = step.settings.name  # up to the look at its record, nobody else is called
        return await super().call(self._stand_in(step), scope, args, kwargs)

    def record_value(
        self,
        name: str,
        scope: Scope,
        make: Callable[[], Any],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> Any:
        self.moves += 1
        self.names.add(name)
        made = (lambda: self._answers[name]) if name in self._answers else make
        return super().record_value(name, scope, made, encode, decode)

    def append(
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int
    ) -> Batch[Change, CommitOutcome]:
        self.fresh.setdefault(key, Fresh(key, "made now", answered=True))
        return super().append(key, digest, attempt, payload, failed=failed, started_at=started_at)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        self.moves += 1
        super().adopt(task)

    async def wait_for(self, fresh: Fresh) -> Any:
        """Wait for what never comes: it is not on record, and nobody has an answer."""
        self.fresh[fresh.key] = fresh
        loop = asyncio.get_running_loop()
        if self._looking is None:
            self._looking = loop.call_later(QUIET_S, self._look, self.moves)
        await loop.create_future()

    def give_up(self, why: str, where: Callable[[Iterable[asyncio.Future[Any]]], list[str]]) -> None:
        """Close it: it does not end."""
        if self.ending is None:
            self.stuck = why
            self.waits_at = where(self._unfinished())
            self.close(HandedBack())

    def leave(self) -> None:
        """It has ended: look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def _look(self, moves_before: int) -> None:
        if self.moves != moves_before:
            self._looking = asyncio.get_running_loop().call_later(QUIET_S, self._look, self.moves)
        elif self.ending is None:
            self.stopped = True
            self.close(HandedBack())

    def _diverge(self, record: Checkpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.diverged.append(Diverged(record, self._name, call_text(args, kwargs)))

    def _stand_in(self, step: Step[..., Any]) -> Step[..., Any]:
        """The same step with another body: one that looks for an answer."""

        async def body(*args: Any, **kwargs: Any) -> Any:
            here = frame.get()
            assert isinstance(here, StepFrame), "a body has its frame"
            digest = 0 if step.settings.ignore_args else digest64((args, kwargs))
            fresh = Fresh(here.key, call_text(args, kwargs), answered=False, digest=digest)
            return await self._answer(fresh, step.settings.name, args, kwargs)

        stand_in = copy.copy(step)
        stand_in._codec = step.codec  # by the annotation of the real function
        stand_in.fn = body
        stand_in.place = "loop"
        stand_in.settings = replace(step.settings, retry=Retry(attempts=1), timeout_s=None, durability="async")
        return stand_in

    async def _answer(self, fresh: Fresh, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = meant(self._answers, key=fresh.key, name=name)
        if known is None:
            return await self.wait_for(fresh)
        self.fresh[fresh.key] = replace(fresh, answered=True)
        return await answered(self._answers[known], args, kwargs)


class ReplayExecution(Execution):
    """One super-step of a recorded run, executed by today's agent."""

    def __init__(self, host: ReplayHost, claimed: Claimed, agent: Agent[..., Any], *, answers: Answers) -> None:
        super().__init__(host, claimed, agent)
        self.loading = "beginning"
        """What it loads at the moment: `arguments`, `state`."""
        self.step = ReplaySuperStep(host, claimed, durability=agent.settings.durability, answers=answers)

    async def play(self) -> Ending:
        """Play it; returns how it ended."""
        try:
            return await self._super_step()
        finally:
            self.step.leave()
            self.host.deadlines.sweep()

    async def _load(self) -> tuple[functools.partial[Any], Any]:
        self.loading = "beginning"
        self.boundary = await self._read_boundary()
        self.loading = "arguments"
        self.agent.signature.decode(self.boundary.arguments)
        self.loading = "state"
        return await super()._load()

    def written(self, value: Any) -> BeginSuperStep | EndRun:
        """The change that a returned value would be."""
        return self._again(value) if isinstance(value, Again) else self._complete(value)

    def _new_super_step(self) -> SuperStep:
        return self.step


def call_text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Arguments, for people."""
    given = [_short.repr(value) for value in args]
    return f"({', '.join(given + [f'{name}={_short.repr(value)}' for name, value in kwargs.items()])})"


def keep_inside(app: App) -> None:
    """From now on, agents that are played again get nothing out of this app: no run may be started by a replay."""
    if "_client" in vars(app):
        return
    open_client = app._client

    async def client() -> Client:
        here = frame.get()
        if isinstance(here, AgentFrame) and isinstance(here.super_step, ReplaySuperStep):
            await here.super_step.wait_for(Fresh(f"app {app.name}", "starts or awaits a run", False, Finding.OUTSIDE))
        return await open_client()

    app._client = client  # type: ignore[method-assign]  # for everybody else it is what it was
