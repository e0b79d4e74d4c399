"""Talking from one thread to another thread's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *args: Any) -> None:
    """Have a loop call something soon, from any thread. A loop that has closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
