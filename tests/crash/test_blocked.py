"""User code that blocks the event loop: a synchronous client in an `async def`, a long computation."""

from __future__ import annotations

import asyncio

from tests.support.agents import app_on
from tests.support.processes import Fleet

LEASE_S = 0.6
BLOCKED_S = 3.2 * LEASE_S


def test_c06_c31_a_step_that_blocks_the_loop_for_three_leases_keeps_its_run_and_the_log_names_the_line(
    fleet: Fleet,
) -> None:
    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            for worker in [fleet.hire(lease_s=LEASE_S) for _ in range(2)]:
                worker.started()
            handle = await app.start("blocking", BLOCKED_S)
            assert await handle.result(timeout=15) == "blocked AFTER"
            info = await handle.status()
            assert (info.recoveries, info.attempt) == (0, 1)

    asyncio.run(main())

    (begin,) = fleet.log.lines("begin", key="hog")
    assert all(len(worker.identities) == 1 for worker in fleet.workers)
    (blocked,) = fleet.log.events("loop.blocked")
    assert blocked["pid"] == begin["pid"]
    assert "agents.py" in blocked["fields"]["line"] and "THE BLOCKING LINE" in blocked["fields"]["line"]
    assert "in hog" in blocked["fields"]["stack"]
    assert fleet.log.events("loop.unblocked", pid=begin["pid"])
