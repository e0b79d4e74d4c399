"""Two transactions at a time on Postgres: one is held open just before its commit, and the other must wait for it and
then see it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from perdure.store.protocol import Store
from perdure.testing.conformance.harness import Bench, Harness
from perdure.testing.conformance.wakers import MAILBOX_MAX
from tests.support import postgres
from tests.support.waiting import becomes

T = TypeVar("T")


class Fresh(Harness):
    """Stores on an empty schema."""

    def __init__(self) -> None:
        self.url = postgres.common_url()

    def store(self) -> PostgresStore:
        return PostgresStore(self.url)

    async def open_store(self) -> Store:
        store = await super().open_store()
        await postgres.empty(self.url)
        return store


class Held:
    """A verb of an open store, done but for the commit of its first write, until `commit`."""

    def __init__(self, store: Store, verb: Callable[[Store], Awaitable[Any]]) -> None:
        assert isinstance(store, PostgresStore)
        self._done, self._go = asyncio.Event(), asyncio.Event()
        lines = [store._claims, store._commits, *store._clients._lines]
        uses = [line.use for line in lines]
        for line, use in zip(lines, uses, strict=True):
            line.use = self._holding(use)  # type: ignore[method-assign, assignment]
        self._verb = asyncio.create_task(self._play(store, verb))

    def _holding(self, use: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def work_and_wait(connection: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
            async with connection.transaction():
                result = await work(connection)
                if await connection.fetchval("select pg_current_xact_id_if_assigned() is not null"):
                    self._done.set()
                    await self._go.wait()
            return result

        return lambda work: use(lambda connection: work_and_wait(connection, work))

    async def _play(self, store: Store, verb: Callable[[Store], Awaitable[Any]]) -> Any:
        return await verb(store)

    async def written(self) -> None:
        done = asyncio.create_task(self._done.wait())
        await asyncio.wait([done, self._verb], return_when=asyncio.FIRST_COMPLETED)
        assert self._done.is_set(), await self._verb

    async def commit(self) -> Any:
        self._go.set()
        return await self._verb


class Stage:
    """A bench, a store whose next verb is held, and an eye on who waits for a lock."""

    def __init__(self, bench: Bench, other: Store, harness: Fresh) -> None:
        self.bench = bench
        self.other = other
        self._schema = parse(harness.url).schema

    def hold(self, verb: Callable[[Store], Awaitable[Any]]) -> Held:
        """The verb, begun on the other store."""
        return Held(self.other, verb)

    async def held_against(self, held: Callable[[Store], Awaitable[Any]], free: Awaitable[T]) -> tuple[Any, T]:
        """What both say: `free` begins while `held` has written and not committed, and must wait for it."""
        holding = self.hold(held)
        await holding.written()
        task = asyncio.ensure_future(free)
        await asyncio.wait(
            [task, asyncio.create_task(self._somebody_waits())], return_when=asyncio.FIRST_COMPLETED, timeout=20
        )
        assert not task.done(), f"did not wait: {task}"
        first = await holding.commit()
        return first, await task

    async def _somebody_waits(self) -> None:
        server = postgres.shared()
        watch = await asyncpg.connect(
            host=str(server.directory), port=server.port, user="postgres", database="postgres"
        )
        question = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0"

        async def look() -> bool:
            found: int = await watch.fetchval(question, self._schema)
            return found > 0

        try:
            await becomes(look, "somebody waits for a lock")
        finally:
            await watch.close()


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    harness = Fresh()
    bench = Bench(harness, await harness.open_store())
    try:
        with harness.mailbox_max(MAILBOX_MAX):
            yield Stage(bench, await bench.clone(), harness)
    finally:
        await bench.close()


def played(body: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with stage() as on:
            await body(on)

    asyncio.run(main())
