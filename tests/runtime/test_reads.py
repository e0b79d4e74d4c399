"""Reads that branches share: whose they are, and how many."""

from __future__ import annotations

import asyncio

import perdure
from perdure import step
from tests.runtime.world import fresh_app, working


def test_what_a_wait_reads_takes_no_part_in_the_keys_of_branches() -> None:
    """Live it reads how a child ended, on replay it does not: the branches after it have the same keys both times."""
    app = fresh_app()

    @step
    async def work(number: int) -> int:
        return number

    @app.agent
    async def child() -> None:
        return None

    @app.agent
    async def parent() -> None:
        await perdure.call(child)
        await asyncio.gather(work(1), work(2))
        await perdure.sleep(0.01)
        await asyncio.gather(work(3), work(4))

    async def main() -> None:
        async with working(app):
            handle = await app.start(parent)
            await handle.result(timeout=20)
            keys = [row.key for row in await handle.history() if row.key.endswith("work")]
            assert keys == ["1/work", "2/work", "3/work", "4/work"]

    asyncio.run(main())
