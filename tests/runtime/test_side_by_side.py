"""Branches that receive side by side: each message is looked up for all of them at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure.store.memory import MemoryStore
from tests.runtime.world import fresh_app, parked, working


def test_branches_that_receive_side_by_side_look_into_the_mailbox_together(monkeypatch: pytest.MonkeyPatch) -> None:
    app, looks = fresh_app(), 0

    @app.agent
    async def receive(count: int) -> int:
        return sum(await asyncio.gather(*(perdure.receive(int) for _ in range(count))))

    async def main() -> None:
        nonlocal looks
        async with app, working(app):
            handle = await app.start(receive, 50, thread_id="box")
            await parked(handle)
            mailbox = MemoryStore.mailbox

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal looks
                looks += 1
                return await mailbox(*args, **options)

            monkeypatch.setattr(MemoryStore, "mailbox", counted)
            for number in range(50):
                await app.send("box", number)
            assert await handle.result() == sum(range(50))

    asyncio.run(main())
    assert 0 < looks < 50 * 6
