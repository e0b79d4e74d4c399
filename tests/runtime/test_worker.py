"""A worker's beginning and end while its store is away."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App
from perdure.core.requests import NewWorker
from perdure.errors import StoreError, StoreUnavailable
from perdure.runtime.settings import worker_settings
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from tests.runtime.world import SETTINGS, until


class Moody(MemoryStore):
    """A store that registers nobody while it has an error."""

    errors: list[Exception]

    async def register(self, worker: NewWorker) -> None:
        if self.errors:
            raise self.errors[-1]
        await super().register(worker)

    def clone(self) -> Moody:
        store = Moody()
        store._data, store.errors = self._data, self.errors
        return store


def moody_app(*errors: Exception) -> tuple[App, list[Exception]]:
    app, store = App("test", store="memory://"), Moody()
    store.errors = list(errors)
    app._store = store

    @app.agent
    async def agent() -> str:
        return "done"

    return app, store.errors


def test_a_worker_that_was_never_entered_executes_nothing() -> None:
    app, errors = moody_app(StoreUnavailable("away"))

    async def main() -> None:
        async with app:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1), app.worker(**SETTINGS):
                    pass
            errors.clear()
            client = await app._client()
            await asyncio.sleep(0.2)  # longer than its back-off
            assert await client.store.workers() == []

    asyncio.run(main())


def worker_on(app: App, store: MemoryStore) -> Worker:
    return Worker(store, app.agents, settings=worker_settings(**SETTINGS))


def test_a_worker_that_waits_for_its_store_can_be_stopped() -> None:
    app, _ = moody_app(StoreUnavailable("away"))

    async def main() -> None:
        async with app, asyncio.timeout(20):
            worker = worker_on(app, (await app._client()).store)
            entering = asyncio.create_task(worker.__aenter__())
            await asyncio.sleep(0.05)  # into its first wait
            worker.stop()
            await entering
            await worker.stopped()
            assert worker.id is None

    asyncio.run(main())


def test_a_worker_that_lost_its_lease_begins_again_whatever_the_store_says_meanwhile() -> None:
    app, errors = moody_app()

    async def main() -> None:
        async with app, asyncio.timeout(20), worker_on(app, (await app._client()).store) as worker:
            first = worker.id
            errors.append(StoreError("no permission to write"))
            assert worker._tenure is not None
            worker._tenure.lose("somebody took over")

            async def between_two() -> bool:
                return worker.id is None

            async def begun() -> bool:
                return worker.id not in (None, first)

            await until(between_two, "the first identity has ended")
            errors.clear()
            await until(begun, "the worker has a new identity")
            assert await (await app.start("agent")).result(timeout=20) == "done"

    asyncio.run(main())
