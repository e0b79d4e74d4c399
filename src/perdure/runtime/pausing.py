"""Pauses between two tries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from perdure.core.keys import retry_place
from perdure.core.records import WaitKind

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

PARK_S: Final = 5.0
"""A wait between two tries from here on is worth a commit, so that it holds no slot and outlives its worker."""


async def pause(at: SuperStep, key: str, attempt: int, delay_s: float) -> None:
    """Wait between two tries: a moment here, and anything longer as a durable wait, which holds no slot."""
    place = retry_place(key, attempt)
    if delay_s < PARK_S and not at.waiting_for(place):
        await asyncio.sleep(max(0.0, delay_s))
    else:
        await at.waiting.until(place, WaitKind.TIMER, delay_us=max(0, int(delay_s * 1_000_000)))
        at.submit(at.waiting.close(place))
