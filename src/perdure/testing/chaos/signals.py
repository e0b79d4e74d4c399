"""Signals of the director: Ctrl-C, and SIGTERM, which is how a supervisor or a cancelled CI job says the same.

The first one leaves out what has not been done yet, but not the judging; the next one ends at once, as does the first
one where nothing can be left out any more. Once there is a verdict, none of them keeps it from being told.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Each of them raises `KeyboardInterrupt`, wherever the main thread is."""
    with _handled_by(_end_at_once):
        yield


@contextmanager
def unheard() -> Iterator[None]:
    """None of them does anything."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextmanager
def leading_to(interrupted: asyncio.Event) -> Iterator[None]:
    """The first of them sets the event, on the running loop; the next one ends at once."""
    loop = asyncio.get_running_loop()

    def release() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, _end_at_once)

    def interrupt() -> None:
        release()
        interrupted.set()

    with _handled_by(_end_at_once):
        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            release()


@contextmanager
def _handled_by(handler: Any) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def _end_at_once(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
