"""Durable time: sleeping, and limits on a block.

A time is fixed when it is first waited for, and stands on the store's clock: a replay does not begin it anew, nothing
comes early, and what came due while nobody worked is done when somebody does.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from perdure.core.codec import codec_for
from perdure.core.durations import microseconds, seconds
from perdure.core.records import Wait, WaitKind
from perdure.core.times import due_us
from perdure.errors import TimedOut, UsageError
from perdure.runtime.recording import NOTHING, Call

_FIRED: Final = codec_for(bool)


async def sleep(duration: float | str | timedelta) -> None:
    """Wait so long: seconds, text such as "2h" or "3d", or a timedelta. The run is parked meanwhile."""
    await _wait("sleep", delay_us=microseconds(duration))


async def sleep_until(when: datetime | str, *, tz: str | None = None) -> None:
    """Wait until this time: an aware datetime, ISO text with an offset, or a local time and its zone, such as
    `sleep_until("2026-12-24T18:00", tz="Europe/Berlin")`. A time that has passed does not wait."""
    await _wait("sleep_until", due_at=due_us(when, tz=tz))


async def _wait(verb: str, *, delay_us: int | None = None, due_at: int | None = None) -> None:
    call = await Call.of(verb, verb)
    if call.record is None:
        at = call.at
        with call.waiting():
            await at.waiting.until(call.key, WaitKind.TIMER, delay_us=delay_us, due_at=due_at)
        at.submit(at.waiting.close(call.key, call.result(NOTHING), expired=True))


class timeout:  # noqa: N801 - a verb, as asyncio.timeout is
    """`async with perdure.timeout("2d"):` a durable limit on the steps and waits inside. When it comes, what the block
    waits for is cancelled, and the block raises `TimedOut` (a `TimeoutError`)."""

    def __init__(self, duration: float | str | timedelta) -> None:
        self._limit_s = seconds(duration)
        if self._limit_s == 0:
            raise UsageError("perdure.timeout(0) would end its block at once; give it some time")
        self._call: Call | None = None
        self._fired = self._delivered = self._left = False

    async def __aenter__(self) -> Self:
        if self._call is not None:
            raise UsageError("one perdure.timeout(...) is for one block; make another for the next")
        task = asyncio.current_task()
        assert task is not None, "agent code runs in a task"
        self._task: asyncio.Task[Any] = task
        self._cancelling = task.cancelling()
        self._call = call = await Call.of("timeout", "timeout", enters=True)
        at = call.at
        if call.record is None:
            at.waiting.watch(call.key, self._due, delay_us=int(self._limit_s * 1_000_000))
        elif not await at.replay(call.record, _FIRED.decode):
            at.turns.passed(call.record.seq)
        else:
            self._fired = True
            at.turns.deliver(self._cancel, seq=call.record.seq)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call
        assert call is not None
        self._left = True
        if not self._fired:
            if call.record is None and call.at.ending is None:
                call.at.submit(call.at.waiting.close(call.key, call.result(_FIRED.encode(False))))
            return
        if self._delivered and self._task.uncancel() <= self._cancelling and kind is not None:
            if issubclass(kind, asyncio.CancelledError):
                raise TimedOut(f"the limit of {self._limit_s:g} s ran out (perdure.timeout, {call})") from error

    def _due(self, wait: Wait) -> None:
        """Its time has come; the code may have to be replayed up to where it stood."""
        call = self._call
        assert call is not None
        at = call.at
        if at.ending is not None:
            return
        self._fired = True
        at.submit(at.waiting.close(call.key, call.result(_FIRED.encode(True)), expired=True))
        at.turns.deliver(self._cancel)

    def _cancel(self) -> None:
        if not self._left:
            self._delivered = True
            self._task.cancel(f"perdure.timeout of {self._limit_s:g} s")
