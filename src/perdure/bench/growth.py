"""Growth: what a state that grows by a message at every super-step costs on disk, and how fast it loads."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field
from typing import Final

from perdure.app import App
from perdure.bench.goals import Reading
from perdure.bench.ground import Ground
from perdure.bench.laps import Laps
from perdure.core.endings import Again

SUPER_STEPS: Final = 1_000
MESSAGE_BYTES: Final = 1_024
LOADS: Final = 5
THREAD: Final = "growing"


@dataclass
class Conversation:
    """The state: a list that is never cut."""

    messages: list[str] = field(default_factory=list)


def message(number: int) -> str:
    """A text of 1 KB that no compression makes smaller than about three quarters."""
    return base64.b64encode(random.Random(number).randbytes(MESSAGE_BYTES * 3 // 4)).decode()


async def bytes_and_load(ground: Ground, *, super_steps: int = SUPER_STEPS) -> list[Reading]:
    """P9: the whole database after super-steps that append 1 KB each, and the time to load the last state."""
    app = App("bench", store=ground.url)

    @app.agent
    async def grow(left: int, *, state: Conversation) -> int | Again:
        state.messages.append(message(left))
        return Again(left - 1) if left > 1 else len(state.messages)

    async with app:
        async with app.worker():
            with Laps() as growing:
                length = await (await app.start(grow, super_steps, thread_id=THREAD)).result()
        assert length == super_steps
        laps = Laps()
        for _ in range(LOADS):
            with laps:
                state = await app.thread(THREAD).state()
        assert len(state.messages) == super_steps
    size = await ground.bytes()
    read_ms = await ground.read_ms(super_steps * MESSAGE_BYTES // 200)
    return [
        Reading("P9 bytes", size, super_steps * MESSAGE_BYTES, f"{size / super_steps:,.0f} a super-step"),
        Reading("P9 load", laps.median, read_ms, f"{super_steps / growing.total_s:,.0f} super-steps/s"),
    ]
