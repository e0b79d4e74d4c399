"""Time in tests of virtual time."""

from __future__ import annotations

import asyncio


async def pause(seconds: float) -> None:
    """Sleep in virtual time, which takes none."""
    await asyncio.sleep(seconds)
