"""Consuming: what comes from a source starts runs, or goes into mailboxes, once.

The id by which a broker knows what it sends is the key of the start (or of the message), so what comes again finds
what it has started. It is acknowledged when that is on disk, and not before: a process that dies in between gets it
again. What cannot be taken, now or later, is rejected, for its broker to put aside; what cannot be taken now is tried
again for as long as it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.core.digests import digest
from perdure.core.errors import one_line
from perdure.core.limits import ID_CHARS_MAX
from perdure.core.shown import shown
from perdure.core.transience import is_transient
from perdure.errors import MailboxFull, PerdureError, StoreError, StoreUnavailable, ThreadBusy, UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.callables import cancelled_from_within, shielded
from perdure.runtime.service import Backoff, Trouble, serve
from perdure.runtime.settings import check_name
from perdure.runtime.sinks import Incoming, Source, check_source, closed, ended, within
from perdure.telemetry import emit, logger

if TYPE_CHECKING:
    from perdure.app import App

AWAY = (StoreError, ThreadBusy, MailboxFull)
"""What passes: a store that is away, or does not take anything as it is; a thread or a mailbox that is full."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What is done with what a source gives."""

    name: str
    source: Source
    start: Agent[..., Any] | None
    send_to: Callable[[Incoming], str] | None
    args: Callable[[Incoming], tuple[Any, ...]] | None
    thread_id: Callable[[Incoming], str | None] | None
    tenant: Callable[[Incoming], str | None] | None

    def __post_init__(self) -> None:
        if ":" in check_name("a source's name", self.name):
            raise UsageError(f"a source's name has no colon, as {self.name!r} has: one stands between it and an id")
        check_source(self.name, self.source)
        if (self.start is None) == (self.send_to is None):
            raise UsageError(
                f"source {self.name!r} starts runs (start=agent) or sends messages (send_to=...): give one"
            )
        for what in ("send_to", "args", "thread_id", "tenant"):
            given = getattr(self, what)
            if given is not None and not callable(given):
                raise UsageError(f"{what} of source {self.name!r} is {shown(given)}; give a function of what comes")
        if self.send_to is not None and (self.args or self.thread_id or self.tenant):
            raise UsageError(f"source {self.name!r} sends messages: args, thread_id and tenant are for starts")

    async def take(self, app: App, item: Incoming) -> None:
        """Put on disk what it means."""
        putting = self._meant(app, item)
        try:
            await putting
        except asyncio.CancelledError as error:
            if cancelled_from_within(error) is error:
                raise
            raise StoreUnavailable("putting it on disk was cut short; it is tried again") from error

    def _meant(self, app: App, item: Incoming) -> Coroutine[Any, Any, Any]:
        """What puts it on disk, from what the user's functions say of it."""
        key = self._key(item.id)
        if self.send_to is not None:
            return app.send(self.send_to(item), item.data, key=key)
        assert self.start is not None
        args = (item.data,) if self.args is None else self.args(item)
        return app.start(
            self.start, *args, key=key, if_busy="enqueue",
            thread_id=None if self.thread_id is None else self.thread_id(item),
            tenant=None if self.tenant is None else self.tenant(item),
        )  # fmt: skip

    def _key(self, id: object) -> str:
        """What stands for this id in the store; a very long one is known by its digest."""
        if not isinstance(id, str) or not id:
            raise UsageError(f"source {self.name!r} gave something with the id {shown(id)}; an id is text, not empty")
        key = f"{self.name}:{id}"
        return key if len(key) <= ID_CHARS_MAX else f"{self.name}:{digest(id.encode()).hex()}"


class Consumer:
    """Takes what one source gives."""

    def __init__(self, app: App, intake: Intake) -> None:
        self._app = app
        self._intake = intake
        self._tasks: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(intake.source.window)
        name = f"source {intake.name}"
        self._backoff = Backoff(name, Trouble(name, is_ordinary=is_transient, foreign=True))
        self._trouble = Trouble(f"intake of {name}", is_ordinary=lambda error: True)
        self._unheard = Trouble(f"acknowledging to {name}", is_ordinary=lambda error: True)
        self._put_off: set[Backoff] = set()
        """Of what cannot be taken just now."""
        self._leaving = False
        """Nothing more is taken, whatever the source still gives."""

    async def run(self) -> None:
        """Take until cancelled. What is under way then is not acknowledged, and comes again."""
        name = f"source {self._intake.name}"
        receiving = asyncio.create_task(serve(name, self._begin, backoff=self._backoff), name=name)
        try:
            await asyncio.wait([receiving])
        finally:
            self._leaving = True
            try:
                await ended(f"source {self._intake.name!r}", {receiving, *self._tasks})
            finally:
                await closed(f"source {self._intake.name!r}", self._intake.source.close)

    async def _begin(self) -> float:
        """Take until the source ends or breaks; a client that lets go of its connection may cancel who waits on it."""
        if self._leaving:  # it has kept its cancellation to itself
            raise asyncio.CancelledError
        with shielded():
            return await self._receive()

    async def _receive(self) -> float:
        items = self._intake.source.receive()
        try:
            async for item in items:
                given: object = item
                if not isinstance(given, Incoming):
                    gave = f"source {self._intake.name!r} gave {shown(given)}"
                    raise UsageError(f"{gave}; a source gives perdure.Incoming(id, data, ...)")
                self._backoff.succeeded()
                await self._places.acquire()
                if self._leaving:
                    break
                task = asyncio.create_task(self._take(item), name=f"source {self._intake.name}")
                self._tasks.add(task)
                task.add_done_callback(self._done)
        finally:
            if isinstance(items, AsyncGenerator):  # it has a connection, which is not the collector's to close
                await items.aclose()
        return 0 if self._leaving else 0.1

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()

    async def _take(self, item: Incoming) -> None:
        try:
            await self._put_on_disk(item)
        except Exception as error:  # the edge of user code: what it cannot take it never can
            await self._reject(item, error)
        else:
            await self._answer(item.ack, item)

    async def _put_on_disk(self, item: Incoming) -> None:
        """Take it, however long that cannot be done."""
        if item.unfit is not None:
            raise item.unfit
        backoff = Backoff(f"intake of source {self._intake.name}", self._trouble)
        while True:
            try:
                with shielded():
                    await self._intake.take(self._app, item)
            except AWAY as error:
                self._put_off.add(backoff)
                await asyncio.sleep(backoff.failed(error))
            except Exception:
                self._is_through(backoff)
                raise
            else:
                return self._is_through(backoff)

    def _is_through(self, backoff: Backoff) -> None:
        """One is taken, or never will be; all is well when it was the last that was put off."""
        self._put_off.discard(backoff)
        if not self._put_off:
            self._trouble.ended()

    async def _reject(self, item: Incoming, error: BaseException) -> None:
        emit("source.rejected", source=self._intake.name, id=item.id, error=one_line(error))
        if not isinstance(error, PerdureError):
            logger.error("source %s: the code for %s broke", self._intake.name, item.id, exc_info=error)
        await self._answer(item.reject, item)

    async def _answer(self, answer: Callable[[], Any], item: Incoming) -> None:
        """Tell the broker. Where it does not hear, it sends the same again, and that is known by its id."""
        try:
            with shielded():
                await within(self._intake.source.timeout_s, answer, "its broker did not hear of it")
        except Exception as error:  # the edge of somebody else's client
            emit("source.unheard", source=self._intake.name, id=item.id, error=one_line(error))
            self._unheard.began(error)
        else:
            self._unheard.ended()


@asynccontextmanager
async def consuming(app: App) -> AsyncIterator[None]:
    """Take what the app's sources give, inside the block."""
    consumers = [
        asyncio.create_task(Consumer(app, intake).run(), name=f"perdure-source-{intake.name}")
        for intake in app.sources.values()
    ]
    try:
        yield
    finally:
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
