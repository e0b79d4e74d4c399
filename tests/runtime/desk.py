"""A client's desk: an app on a memory store of its own, and a bench on it to bring runs about without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure import App
from perdure.core.answers import payload_digest, schema_bytes
from perdure.core.codec import encode
from perdure.core.records import Claimed, WaitKind
from perdure.core.snapshot import spill
from perdure.testing.conformance.harness import Bench, Harness, park, wait
from tests.runtime.world import fresh_app


@dataclass
class Cart:
    """A state."""

    items: list[str] = field(default_factory=list)


class Desk:
    """The app, whose agent is called `agent`, and the bench."""

    def __init__(self, app: App, bench: Bench) -> None:
        self.app = app
        self.bench = bench

    async def asked(self, thread_id: str = "thread", payload: Any = "buy?", **fields: Any) -> tuple[str, Claimed]:
        """A parked run with an open question; the question's id and the claim. `agent` and `tenant` are the run's, all
        else the question's."""
        of_run = {name: fields.pop(name) for name in ("agent", "tenant") if name in fields}
        worker, claimed = await self.bench.begin(thread_id, payload=encode([[], {}]), **of_run)
        number = await self.ask(worker, claimed, payload=payload, **fields)
        await self.bench.commit(worker, park(claimed))
        return number, claimed

    async def ask(
        self, worker: int, claimed: Claimed, key: str = "q", *, payload: Any = "buy?", schema: Any = None,
        delay_s: float | None = None, **fields: Any,
    ) -> str:  # fmt: skip
        """Ask a question in a run that goes on; its id."""
        data = encode(payload)
        kept, blobs = spill(data)
        question = await self.bench.question(
            payload=kept, schema=schema_bytes(schema), digest=payload_digest(data), **fields
        )
        times = {} if delay_s is None else {"delay_s": delay_s}
        await self.bench.commit(worker, wait(claimed, key, WaitKind.ANSWER, interrupt=question, blobs=blobs, **times))
        return f"i{question.id}"


def at_a_desk(body: Callable[[Desk], Awaitable[None]]) -> Callable[[], None]:
    """A test on a desk of its own."""

    def test() -> None:
        async def main() -> None:
            async with desk() as here:
                await body(here)

        asyncio.run(main())

    test.__name__, test.__doc__ = body.__name__, body.__doc__
    return test


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    """An open desk."""
    app = fresh_app()

    @app.agent
    async def agent(*words: str, state: Cart) -> list[str]:
        return [*state.items, *words]

    @app.agent
    async def stateless(word: str = "") -> str:
        return word

    async with app:
        yield Desk(app, Bench(Harness(), (await app._client()).store))
