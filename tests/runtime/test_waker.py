"""What the waker asks the store: about what may have come, and about nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
from perdure.core.records import Wait
from tests.runtime.world import asked, fresh_app, until, working


class Listener:
    """What a tenure's store is asked about waits, and what it answers."""

    def __init__(self, worker: Any) -> None:
        self.asked: list[list[int]] = []
        self.found: list[Wait] = []
        store = worker._tenure.store
        original = store.waits

        async def waits(runs: Any, **options: Any) -> list[Wait]:
            found: list[Wait] = await original(runs, **options)
            self.asked.append(sorted(runs))
            self.found += found
            return found

        store.waits = waits


async def beside_work(first: Any) -> Any:
    """Wait for this and for two answers, in memory: there is other work too."""
    raw = asyncio.get_running_loop().create_future()

    async def one() -> Any:
        found = await first
        raw.set_result(None)
        return found

    found, *_ = await asyncio.gather(one(), perdure.interrupt(name="b"), perdure.interrupt(name="c"), raw)
    return found


def test_a_hint_reads_only_what_is_ready() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        return await beside_work(perdure.interrupt(name="a"))

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            handles = [await app.start(agent) for _ in range(5)]
            questions = [await asked(app, handle, 3) for handle in handles]
            heard = Listener(worker)
            await app.resume(questions[2]["a"], "yes")
            await until(lambda: _all_are(bool(heard.found)), "the answer comes")
            await app.resume(questions[2]["b"], "yes")
            await app.resume(questions[2]["c"], "yes")
            assert await handles[2].result(timeout=20) == "yes"
            assert {wait.run for wait in heard.found} == {handles[2]._id}
            assert all(wait.ready for wait in heard.found)
            for handle in handles:
                await handle.cancel()

    asyncio.run(main())


def test_a_time_that_comes_is_asked_of_its_own_run_only() -> None:
    app = fresh_app()

    @app.agent
    async def agent(for_s: float) -> Any:
        return await beside_work(perdure.sleep(for_s))

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            patient = [await app.start(agent, 3600.0) for _ in range(3)]
            for handle in patient:
                await asked(app, handle, 2)
            hurried = await app.start(agent, 0.3)
            await asked(app, hurried, 2)
            heard = Listener(worker)
            await until(lambda: _all_are(any(wait.due for wait in heard.found)), "its time comes")
            assert [runs for runs in heard.asked if hurried._id in runs][-1] == [hurried._id]
            for handle in (*patient, hurried):
                await handle.cancel()

    asyncio.run(main())


async def _all_are(value: bool) -> bool:
    return value
