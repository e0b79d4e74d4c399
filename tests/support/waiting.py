"""Waiting for what another process brings about: rows, lines of a log, the end of a process. Never for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 25.0
"""How long a test waits for what must happen soon; only a failing one waits that long."""

LOOK_S = 0.01


def until(look: Callable[[], T], what: str, *, within_s: float = PATIENCE_S) -> T:
    """Look again and again; returns the first answer that is true."""
    give_up_at = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {within_s:g} s in vain until {what}")
        time.sleep(LOOK_S)
    return found


async def becomes(look: Callable[[], Awaitable[T]], what: str, *, within_s: float = PATIENCE_S) -> T:
    """The same, where looking is a coroutine."""
    give_up_at = time.monotonic() + within_s
    while not (found := await look()):
        if time.monotonic() > give_up_at:
            raise AssertionError(f"waited {within_s:g} s in vain until {what}")
        await asyncio.sleep(LOOK_S)
    return found
