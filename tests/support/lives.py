"""One life of a process of the crash-point tests: start the scripted run or find it, work, and perhaps die in between.

Apart from the tests, so that a forked child needs nothing else.
"""

from __future__ import annotations

import asyncio
import os

from tests.support.agents import app_on
from tests.support.faults import Fault, FaultyStore
from tests.support.sidelog import VARIABLE


async def live(store_url: str, name: str, fault: Fault | None = None) -> int:
    """Start the run of that thread and queue (or find it), and work until it has ended; how many writes that took."""
    app = app_on(store_url)
    store = FaultyStore(app._store, fault)
    app._store = store
    # A lease that nobody outlives here: whoever is dead is declared dead.
    async with app, app.worker(queues=[name], lease_s=30, poll_s=0.05):
        handle = await app.start("scripted", "word", key=name, thread_id=name, queue=name)
        await handle.result(timeout=20)
    return store.calls


def live_in_a_child(log: str, store_url: str, name: str, fault: Fault) -> None:
    """The same, as the main function of a process."""
    os.environ[VARIABLE] = log
    asyncio.run(live(store_url, name, fault))
