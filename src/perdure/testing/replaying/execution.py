"""Where a recorded super-step is played again: the runtime's own code, on a worker that has no store and no lease.

A step on record takes the runtime's way: key, digest, journal, decoded record. So does a wait, a message that was sent,
a child that was started. What is not on record gets the answer a test has for it, else its task waits; when nothing
else moves, the super-step is closed there. A divergence is noted and the record returned all the same, so one replay
finds all of them.

A run that was cancelled, or was past its deadline, is interrupted where its recorded steps end, as it would be by a
worker that takes it over in the middle of its cleaning up.
"""

from __future__ import annotations

import asyncio
import functools
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perdure.core.answers import canonical_bytes, payload_digest
from perdure.core.changes import BeginSuperStep, Change, CommitOutcome, EndRun
from perdure.core.codec import codec_for
from perdure.core.digests import digest64
from perdure.core.endings import Again, Ending, HandedBack, Raised, Returned
from perdure.core.failures import cancellation, decode_error, encode_error, error_info
from perdure.core.journal import Journal, matches
from perdure.core.keys import Scope, meant
from perdure.core.labels import label_of, message_bytes
from perdure.core.records import Checkpoint, Claimed, ErrorInfo, Interrupt, Kind
from perdure.core.retry import Retry
from perdure.runtime.agent import Agent
from perdure.runtime.execution import Execution
from perdure.runtime.frames import AgentFrame, StepFrame, frame
from perdure.runtime.group import Batch
from perdure.runtime.interruption import Cancelled, Interruption
from perdure.runtime.metering import NO_USE, Use
from perdure.runtime.step import Durability, Step
from perdure.runtime.superstep import SuperStep
from perdure.testing.answers import answered
from perdure.testing.replaying.hosting import ReplayHost
from perdure.testing.replaying.report import Finding

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.client.connection import Client

Answers = Mapping[str, Any]
"""By the key or name of a step or a verb, what it returns where it is not on record: a value, a function of its
arguments, or an exception that it raises."""

QUIET_S: Final = 0.05
"""So long (of virtual time) nothing may move before a super-step that waits for a step is closed. What is on record
takes no time."""

VERBS: Final = frozenset({"sleep", "sleep_until", "send", "receive", "start", "result", "cancel"})
"""The names of verbs that are no questions."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


@dataclass(frozen=True, slots=True)
class Diverged:
    """A step on record that is called with other arguments, or a verb; or a question that was asked otherwise."""

    key: str
    recorded: str
    call: str
    step: str = ""
    """The step's name, if it is one."""


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

    def __init__(
        self, host: ReplayHost, claimed: Claimed, *, durability: Durability | None, answers: Answers,
        questions: Iterable[Interrupt],
    ) -> None:  # fmt: skip
        super().__init__(
            host, claimed, number=claimed.super_step, durability=durability, claimed_s=host.clock.monotonic()
        )
        self.journal = self.watched = WatchedJournal(claimed.records)
        self.diverged: list[Diverged] = []
        self.unrecorded: dict[str, Fresh] = {}
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
        self._step = ""
        self._asked: Fresh | None = None
        self._answers = answers
        self._questions = {each.key: each for each in questions if each.super_step == claimed.super_step}
        self._looking: asyncio.TimerHandle | None = None

    async def call(self, step: Step[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.moves += 1
        self.names.add(step.settings.name)
        self._step = step.settings.name  # up to the look at its record, nobody else is called
        return await super().call(self._stand_in(step), scope, args, kwargs)

    async def enter(self) -> None:
        self.moves += 1
        self._step = ""  # it is a verb
        await super().enter()

    def recorded(self, key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Checkpoint | None:
        """A record that does not match is noted, and returned. A verb that is not on record may have an answer; else it
        is waited for (`fresh`)."""
        record = self.journal.find(key)
        if record is not None:
            if not matches(record, digest):
                self._diverge(key, recorded_digest(record), args, kwargs)
            return record
        name = verb_name(key)
        if self._step or (name == "timeout" and digest == 0):  # a limit is entered, and comes to nothing in no time
            return None
        self.names.add(name)
        question = self._questions.get(key)
        if question is not None and args and question.digest != payload_digest(codec_for(Any).encode(args[0])):
            self._diverge(key, "another payload, not answered", args, kwargs)
        asked = Fresh(key, call_text(args, kwargs), answered=False, digest=digest)
        payload, failed = _recordable(self._answers, key, name, args, kwargs)
        if payload is None:
            self._asked = asked
            return None
        self.unrecorded[key] = replace(asked, answered=True)
        return self._as_record(key, digest, payload, failed=failed)

    async def fresh(self) -> None:
        asked, self._asked = self._asked, None
        await super().fresh()
        if asked is not None:
            await self.wait_for(asked)

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
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int, use: Use = NO_USE
    ) -> Batch[Change, CommitOutcome]:
        self.unrecorded.setdefault(key, Fresh(key, "made now", answered=True))
        if self._asked is not None and self._asked.key == key:  # it has not waited
            self._asked = None
        return super().append(key, digest, attempt, payload, failed=failed, started_at=started_at, use=use)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        self.moves += 1
        super().adopt(task)

    async def wait_for(self, fresh: Fresh) -> Any:
        """Wait for what never comes: it is not on record, and nobody has an answer."""
        self.unrecorded[fresh.key] = fresh
        loop = asyncio.get_running_loop()
        if self._looking is None:
            self._looking = loop.call_later(QUIET_S, self._look, self.moves)
        await loop.create_future()

    def give_up(self, why: str, where: Callable[[Iterable[asyncio.Future[Any]]], list[str]]) -> None:
        """Close it: it does not end."""
        if self.ending is None:
            self.stuck = why
            self.waits_at = where(self.tasks.unfinished())
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

    def _diverge(self, key: str, recorded: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.diverged.append(Diverged(key, recorded, call_text(args, kwargs), self._step))

    def _as_record(self, key: str, digest: int, payload: bytes, *, failed: bool) -> Checkpoint:
        """The record that an answer stands for."""
        run, at = self.claimed, self.host.clock.wall_us()
        return Checkpoint(
            run.run, self.number, key, Kind.STEP, 0, run.fence, 0, 1, digest, failed, payload, None, at, at
        )

    def _stand_in(self, step: Step[..., Any]) -> Step[..., Any]:
        """The same step with another body: one that looks for an answer."""

        async def body(*args: Any, **kwargs: Any) -> Any:
            here = frame.get()
            assert isinstance(here, StepFrame), "a body has its frame"
            digest = 0 if step.settings.ignore_args else digest64((args, kwargs))
            fresh = Fresh(here.key, call_text(args, kwargs), answered=False, digest=digest)
            return await self._answer(fresh, step.settings.name, args, kwargs)

        settings = replace(step.settings, retry=Retry(attempts=1), timeout_s=None, durability="async")
        stand_in: Step[..., Any] = Step(body, settings, cpu="loop")  # of an effect, too: nothing is dispatched
        stand_in._codec = step.codec  # by the annotation of the real function
        return stand_in

    async def _answer(self, fresh: Fresh, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = meant(self._answers, key=fresh.key, name=name)
        if known is None:
            return await self.wait_for(fresh)
        self.unrecorded[fresh.key] = replace(fresh, answered=True)
        return await answered(self._answers[known], args, kwargs)


class ReplayExecution(Execution):
    """One super-step of a recorded run, executed by today's agent."""

    def __init__(
        self, host: ReplayHost, claimed: Claimed, agent: Agent[..., Any], *, answers: Answers,
        questions: Iterable[Interrupt] = (), interruption: Interruption | None = None,
    ) -> None:  # fmt: skip
        super().__init__(host, claimed, agent)
        self.interruption = interruption
        self.loading = "beginning"
        """What it loads at the moment: `arguments`, `state`."""
        self.step = ReplaySuperStep(
            host, claimed, durability=agent.settings.durability, answers=answers, questions=questions
        )
        host.bell.on_cancelled = self.interrupt

    async def play(self) -> Ending:
        """Play it; returns how it ended."""
        try:
            ending = await self._super_step()
            await self.unwound()
            return ending
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

    def _begun(self, step: SuperStep) -> bool:
        return self.claimed.attempt > 0

    def interrupted(self, ending: Returned | Raised) -> ErrorInfo | None:
        """What a run is recorded to have ended with that was cancelled; None where it was not."""
        if not isinstance(self.interruption, Cancelled):
            return None
        error = ending.error if isinstance(ending, Raised) else None
        after = None if isinstance(error, asyncio.CancelledError) else error
        return decode_error(cancellation(self.interruption.reason, after))

    def written(self, value: Any) -> BeginSuperStep | EndRun:
        """The change that a returned value would be."""
        return self._again(value) if isinstance(value, Again) else self._complete(value)

    def _new_super_step(self) -> SuperStep:
        return self.step


def recorded_digest(record: Checkpoint) -> str:
    """The arguments on record, for people: of them, there is nothing else."""
    return f"arguments of digest {record.digest & (1 << 64) - 1:016x}"


def verb_name(key: str) -> str:
    """The name of a verb's call in its key, such as `sleep`, `approve` or `start:quote`."""
    return key.rpartition("/")[2].partition("#")[0]


def _recordable(
    answers: Answers, key: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bytes | None, bool]:
    """What a test's answer to a verb is as a record: the payload, None if there is no answer, and whether it failed.
    A child whose result has an answer needs none to its start."""
    verb, _, agent = name.partition(":")
    known = meant(answers, key=key, name=name)
    if known is None and verb == "start" and f"result:{agent}" in answers:
        return message_bytes([0, f"a child of agent {agent}"]), False
    if known is None:
        return None, False
    value = answers[known]
    if isinstance(value, type) and issubclass(value, BaseException):
        value = value()
    elif callable(value):
        value = value(*args, **kwargs)
    if isinstance(value, BaseException):
        return encode_error(error_info(value)), True
    if verb == "receive":
        return msgspec.msgpack.encode((label_of(value), msgspec.Raw(message_bytes(value)))), False
    return (message_bytes if verb in VERBS else canonical_bytes)(value), False


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
