"""Sinks and sources: what a run's deliveries are handed over to, and where work comes from.

A sink is a small adapter over its field's client (`perdure.integrations` has some). It is at its relay's command: it
hands one delivery over, and returns once the other side has it for good; what it raises means that it may not have. So
the other side may get a delivery more than once, always under the same key.

A source gives what others have sent, each with the id that its broker knows it by. It is acknowledged once what it
starts is on disk; what comes again is known by that id.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from perdure.core.limits import ANSWER_TIMEOUT_S, DELIVERIES_AT_ONCE, DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.errors import UsageError
from perdure.runtime.callables import exited, is_async, name_of, shielded
from perdure.runtime.strays import leave, where
from perdure.telemetry import logger

CLOSE_S: Final = 5.0
"""How long a sink or a source may take to let go of its connections, and a source, before that, to stop receiving."""

LET_GO_S: Final = 1.0
"""How long a sink or a source may take to let go of what it is told to."""

DELIVERY_RETRY: Final = Retry(attempts=40, delay_s=1.0, max_delay_s=900.0)
"""For about eight hours: a sink that is away for a night is not given up."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A delivery as its sink gets it."""

    id: str
    key: str
    """What the other side may know it again by: the same at every try, and no other delivery's to this sink."""
    sink: str
    partition: str
    payload: Any
    """Plain data."""
    run_id: str
    thread_id: str
    agent: str
    tenant: str | None
    attempt: int
    """Which try this is, from 1."""
    created_at: datetime


class Sink(ABC):
    """Where deliveries go. A subclass hands them over."""

    retry: Retry = DELIVERY_RETRY
    """How often a delivery is tried, and how far apart: whatever its tries raise, unless `final` or `retry_on` say for
    which errors it is."""
    timeout_s: float = DELIVERY_TIMEOUT_S
    """How long one try may take."""
    concurrency: int = DELIVERIES_AT_ONCE
    """How many are handed over at once, of different partitions."""

    @abstractmethod
    async def deliver(self, item: Outgoing) -> None:
        """Hand it over, and return once the other side has it for good. Raises `Undeliverable` where no further try can
        change anything, and anything else where one may."""

    async def close(self) -> None:  # noqa: B027  # many have none
        """Let go of connections. It may be used again."""


async def _nothing() -> None:
    """Nobody wants to know."""


async def closed(name: str, close: Callable[[], Awaitable[None]]) -> None:
    """Let a sink or a source let go, for so long as that may take: what it holds after it dies with the process."""
    task = asyncio.ensure_future(_shielded(close))
    try:
        done, _ = await asyncio.wait([task], timeout=CLOSE_S)
    finally:
        leave(task)
    if not done:
        logger.error("%s did not close within %g s", name, CLOSE_S)
    elif not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s did not close", name, exc_info=error)


async def ended(name: str, tasks: Collection[asyncio.Task[None]]) -> None:
    """Have a source's tasks end, for so long as that may take; those that do not are left to themselves."""
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
    finally:
        for task in tasks:
            if not task.done():
                logger.error("%s does not let go, and is left to itself: %s", name, where(task))
            leave(task)


async def within(limit_s: float, call: Callable[[], Awaitable[None]], late: str) -> None:
    """Wait for a call of a sink or a source for so long, and a moment longer for it to let go; then it is `late`, and
    left to itself."""
    task = asyncio.ensure_future(_called(call))
    try:
        done, _ = await asyncio.wait([task], timeout=limit_s)
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=LET_GO_S)
            if not task.done() or task.cancelled() or task.exception() is not None:
                raise TimeoutError(f"{late} within {limit_s:g} s")
        await task
    finally:
        leave(task)


async def _called(call: Callable[[], Awaitable[None]]) -> None:
    """Whatever else it raises is its caller's to judge."""
    try:
        await call()
    except SystemExit as error:
        raise exited(error) from error


async def _shielded(call: Callable[[], Awaitable[None]]) -> None:
    with shielded():
        await call()


def check_sink(name: str, sink: object) -> Sink:
    """The sink, if it can be one."""
    if not isinstance(sink, Sink):
        raise UsageError(f"{shown(sink)} is no perdure.Sink; give one of perdure.integrations, or a subclass")
    for what in (sink.deliver, sink.close):
        if not is_async(what):
            raise UsageError(f"{name_of(what)} of sink {name!r} is a plain def; declare it with async def")
    retry: object = sink.retry
    if not isinstance(retry, Retry):
        raise UsageError(f"retry of sink {name!r} is {shown(retry)}; give a perdure.Retry(attempts=...)")
    if not _is_positive(sink.timeout_s, float | int):
        raise UsageError(f"timeout_s of sink {name!r} is {shown(sink.timeout_s)}; give a number of seconds above 0")
    if not _is_positive(sink.concurrency, int):
        raise UsageError(f"concurrency of sink {name!r} is {shown(sink.concurrency)}; give a whole number from 1 on")
    return sink


def check_source(name: str, source: object) -> Source:
    """The source, if it can be one."""
    if not isinstance(source, Source):
        raise UsageError(f"{shown(source)} is no perdure.Source; give one, or a subclass of your own")
    if not is_async(source.close):
        raise UsageError(f"close of source {name!r} is a plain def; declare it with async def")
    if is_async(source.receive):
        raise UsageError(f"receive of source {name!r} yields nothing; let it yield what comes")
    if not _is_positive(source.window, int):
        raise UsageError(f"window of source {name!r} is {shown(source.window)}; give a whole number from 1 on")
    if not _is_positive(source.timeout_s, float | int):
        raise UsageError(f"timeout_s of source {name!r} is {shown(source.timeout_s)}; give a number of seconds above 0")
    return source


def _is_positive(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < value < float("inf")


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a source gives."""

    id: str
    """What its broker, or who sent it, knows it by: one that comes again has the same."""
    data: Any
    """Its content: decoded if it is JSON, else text, else bytes."""
    headers: dict[str, str] = field(default_factory=dict)
    ack: Callable[[], Awaitable[None]] = _nothing
    """Say that it is taken for good."""
    reject: Callable[[], Awaitable[None]] = _nothing
    """Say that it cannot be taken, now or later: its broker has a place for such (a dead-letter queue)."""
    unfit: Exception | None = None
    """Why nothing can be made of it, where its source knows: then it is rejected."""


class Source(ABC):
    """Where work comes from. A subclass receives it."""

    window: int = 100
    """How many may be under way at once."""
    timeout_s: float = ANSWER_TIMEOUT_S
    """How long `ack` or `reject` of one may take; what its broker has not heard then, it is expected to send again."""

    @abstractmethod
    def receive(self) -> AsyncIterator[Incoming]:
        """What comes, without end. A lost connection raises; then it is called again."""

    async def close(self) -> None:  # noqa: B027  # many have none
        """Let go of connections. It may be used again."""
