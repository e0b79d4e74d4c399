"""Scenarios: the life of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import RunState, WorkerState
from perdure.core.requests import RunFilter
from perdure.store.protocol import Hint, Store
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    blob,
    end,
    eventually,
    hints,
    scenario,
    step,
)


class Living(Harness):
    """What opening, closing, cloning and migrating promise."""

    @scenario
    async def test_a_store_keeps_to_the_protocol(self, bench: Bench) -> None:
        assert isinstance(bench.store, Store)
        assert "://" in bench.store.url
        assert bench.store.clone().url == bench.store.url

    @scenario
    async def test_clones_share_one_clock(self, bench: Bench) -> None:
        other = await bench.clone()

        first, second, third = await bench.store.now_us(), await other.now_us(), await bench.store.now_us()

        assert first <= second <= third

    @scenario
    async def test_migrating_again_changes_nothing(self, bench: Bench) -> None:
        run = await bench.start()

        _, version = await bench.store.migrate()

        assert await bench.store.migrate() == (version, version)
        assert await bench.store.clone().migrate() == (version, version)
        assert (await bench.run(run)).state is RunState.QUEUED

    @scenario
    async def test_a_closed_store_may_be_closed_again_and_opened_again(self, bench: Bench) -> None:
        own = await bench.clone()
        await own.close()
        await own.close()

        await own.open()

        run = await bench.start()
        assert [found.id for found in await own.get_runs([run])] == [run]

    @scenario
    async def test_a_store_whose_loop_has_closed_is_let_go_of(self, bench: Bench) -> None:
        own = bench.store.clone()

        async def live() -> int:
            await own.open()
            own.listen(lambda hint: None)
            worker, claimed = await Bench(self, own).begin()
            assert await own.attend(worker)
            await own.watch([claimed.run])
            await own.commit(worker, [step(claimed, "a")])
            return worker

        worker = await live_and_close(live)
        own.abandon()
        own.abandon()

        async def shown() -> bool:
            return worker in await bench.store.silent_workers()

        await eventually(shown)
        assert (await bench.worker_row(worker)).state is WorkerState.ALIVE
        ((run,), ()) = await bench.die(worker)
        assert await bench.steps(run) == {"a": b"result"}

    @scenario
    async def test_an_abandoned_store_may_be_opened_again_on_another_loop(self, bench: Bench) -> None:
        own = bench.store.clone()

        async def live() -> int:
            await own.open()
            own.listen(lambda hint: None)
            worker = await Bench(self, own).worker()
            await own.attend(worker)
            return worker

        first = await live_and_close(live)
        own.abandon()
        await own.open()
        second = await bench.worker(own)

        assert await own.attend(second)
        assert [row.id for row in await own.workers()] == [first, second]
        async with hints(own) as hinted:
            await own.set_idle(second, True)
            await bench.start()
            await hinted(Hint.WORK)
        await own.close()

    @scenario
    async def test_a_store_that_is_not_open_may_be_abandoned(self, bench: Bench) -> None:
        own = bench.store.clone()
        own.abandon()
        await own.open()
        await own.close()
        own.abandon()

        await own.open()
        assert await own.reserve_ids(1) > 0
        await own.close()

    @scenario
    async def test_a_store_that_was_never_opened_may_be_closed(self, bench: Bench) -> None:
        await bench.store.clone().close()

    @scenario
    async def test_a_clone_outlives_the_store_it_came_from(self, bench: Bench) -> None:
        own = await bench.clone()
        other = own.clone()
        await own.close()

        await other.open()
        assert await other.reserve_ids(1) > 0
        await other.close()

    @scenario
    async def test_data_outlive_the_last_open_store(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.start("t")
        data = blob(b"large" * 10_000)
        await bench.commit(
            worker,
            step(claimed, "a", blobs=(data,)),
            attempt(claimed, "b"),
            again(claimed, 2, state=b"state"),
        )
        before = await self._everything(bench, claimed.run)
        await bench.store.close()

        await bench.store.open()

        if self.durable:
            assert await self._everything(bench, claimed.run) == before
            assert await bench.store.blobs(claimed.thread, [data.digest]) == {data.digest: data.data}
            await bench.commit(worker, end(claimed, super_step=3))

    async def _everything(self, bench: Bench, run: int) -> object:
        return (
            await bench.store.list_runs(RunFilter()),
            await bench.store.list_threads(),
            await bench.log(run),
            await bench.store.attempts(run),
            await bench.store.workers(alive=False),
        )

    @scenario
    async def test_the_doctor_finds_a_fresh_store_well(self, bench: Bench) -> None:
        checks = await bench.store.diagnose()

        assert checks
        assert all(well for _, well, _ in checks), checks
        assert all(what and found for what, _, found in checks)

    @scenario
    async def test_a_take_over_of_nobody_is_nothing(self, bench: Bench) -> None:
        await bench.worker()

        assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []


async def live_and_close(body: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run the body on an event loop of its own, in a thread of its own, and close the loop."""
    return await asyncio.to_thread(lambda: asyncio.run(body()))
