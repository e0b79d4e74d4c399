"""The world that agents and their bodies can ask: for fresh tokens, and for what works by now."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.provider import Provider
from perdure.testing.simulation.recipients import Recipients
from perdure.testing.simulation.world import Process, World


class PlayedWorld(World):
    """A world with what the playbook needs."""

    witness: Any
    """The one who is told what agents see."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.provider = Provider(self, seed)
        self.recipients = Recipients(self, seed)
        self.hands_over = False
        """Whether its runs are billed, and its workers have sinks."""
        self._tokens = 0
        self._asked: Counter[str] = Counter()
        self._mended: set[str] = set()

    def next_token(self) -> int:
        """A number that no other execution has."""
        self._tokens += 1
        return self._tokens

    def times(self, what: str) -> int:
        """How often this has been asked, this time included."""
        self._asked[what] += 1
        return self._asked[what]

    def mend(self, run: str) -> None:
        self._mended.add(run)

    def mended(self, run: str) -> bool:
        """Whether what is broken works for this run."""
        return run in self._mended


def world_here() -> PlayedWorld:
    """The world that this code runs in."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop) and isinstance(loop.owner, Process)
    world = loop.owner.world
    assert isinstance(world, PlayedWorld)
    return world
