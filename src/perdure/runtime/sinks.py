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
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from perdure.core.limits import DELIVERIES_AT_ONCE, DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.errors import UsageError
from perdure.runtime.callables import exited, is_async, name_of
from perdure.telemetry import logger

CLOSE_S: Final = 5.0
"""How long a sink or a source may take to let go of its connections."""

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
    task = asyncio.ensure_future(_called(close))
    try:
        done, _ = await asyncio.wait([task], timeout=CLOSE_S)
    finally:
        task.cancel()
    if not done:
        logger.error("%s did not close within %g s", name, CLOSE_S)
    elif not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s did not close", name, exc_info=error)


async def _called(close: Callable[[], Awaitable[None]]) -> None:
    try:
        await close()
    except SystemExit as error:
        raise exited(error) from error


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

    @abstractmethod
    def receive(self) -> AsyncIterator[Incoming]:
        """What comes, without end. A lost connection raises; then it is called again."""

    async def close(self) -> None:  # noqa: B027  # many have none
        """Let go of connections. It may be used again."""
