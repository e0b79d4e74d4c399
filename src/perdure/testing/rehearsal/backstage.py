"""What stands behind a stage: where its processes get their connections, and who keeps their leases."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.errors import UsageError
from perdure.store.protocol import Store
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.world import Process


class Crossroads:
    """The app's store while it is on stage: each process that opens it gets its own connection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = "memory://rehearsal"

    def clone(self) -> Store:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualLoop) or not isinstance(loop.owner, Process):
            raise UsageError(
                "this app is on stage in a rehearsal; use it in the stage's own `run` or `play`, not outside of them"
            )
        return self._database.connect(loop.owner)


class Nobody:
    """Nobody renews a lease on stage: it lasts, and deaths are told."""

    def __init__(self, name: str, main: Any) -> None:
        pass

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass
