"""A worker that claims a run again which it had lost: what the first claim still wanted to write harms nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
from perdure.core.changes import AppendCheckpoint
from perdure.core.records import Kind
from perdure.core.requests import ClaimRequest
from tests.runtime.world import fresh_app, working

app = fresh_app()


@perdure.step
async def note(text: str) -> str:
    return text


@app.agent
async def noting(text: str) -> str:
    return await note(text)


def test_changes_of_an_older_claim_do_not_take_those_of_a_newer_one_along() -> None:
    async def main() -> None:
        async with working(app) as worker:
            tenure: Any = worker._tenure
            handle = await app.start(noting, "hello", queue="elsewhere")  # this worker's claimer does not see it
            request = ClaimRequest(tenure.worker, ("noting",), ("elsewhere",), tenure.deployment, 1)
            (claimed,) = await tenure.store.claim(request)
            old = _step(claimed.run, claimed.fence - 1, claimed.thread, "old")
            new = _step(claimed.run, claimed.fence, claimed.thread, "new")

            outcome = await tenure._commit([old, new])

            assert outcome.lost == frozenset()
            assert [row.key for row in await handle.history() if row.kind is Kind.STEP] == ["new"]

    asyncio.run(main())


def _step(run: int, fence: int, thread: int, key: str) -> AppendCheckpoint:
    return AppendCheckpoint(run, fence, thread, 1, key, 1, 1, 0, False, b"x", 0, 0)
