"""What the waker asks the store: about what may have come, and about nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import perdure
from perdure.core.changes import OpenWait, ParkRun
from perdure.core.records import Wait
from perdure.runtime.waiting import Waiting
from tests.runtime.world import asked, fresh_app, passes, until, working


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
            hurried = await app.start(agent, 0.5)
            await asked(app, hurried, 2)
            await passes(0.1)  # what its beginning had to be looked at for is over
            heard = Listener(worker)
            await until(lambda: _all_are(any(wait.due for wait in heard.found)), "its time comes")
            assert {run for runs in heard.asked for run in runs} == {hurried._id}
            for handle in (*patient, hurried):
                await handle.cancel()

    asyncio.run(main())


async def _all_are(value: bool) -> bool:
    return value


@pytest.mark.parametrize("late", [OpenWait, ParkRun])
def test_a_time_that_comes_while_a_write_is_under_way_is_not_looked_at_again_and_again(late: type) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        if late is OpenWait:
            return str((await beside_work(_slept()))[0])
        return await _slept()

    async def _slept() -> str:
        await perdure.sleep(0.001 if late is OpenWait else 0.1)
        return "slept"

    async def main() -> int:
        async with working(app, poll_s=30.0) as worker:
            heard, store = Listener(worker), worker._tenure.store
            original = store.commit

            async def commit(number: int, changes: Any) -> Any:
                if any(isinstance(change, late) for change in changes):
                    worker._tenure.waker.look()  # for any other reason
                    await passes(0.4)
                return await original(number, changes)

            store.commit = commit
            handle = await app.start(agent)
            if late is OpenWait:
                for question in (await asked(app, handle, 2)).values():
                    await app.resume(question, "yes")
            assert (await handle.result(timeout=20))[0] == "s"
            return len(heard.asked)

    assert asyncio.run(main()) < 10


def test_only_a_look_that_began_later_ends_a_refused_parking() -> None:
    waker = SimpleNamespace(looks=3, look=lambda: None)
    at: Any = SimpleNamespace(host=SimpleNamespace(waker=waker), rest=SimpleNamespace(look_soon=lambda: None))
    waiting = Waiting(at, ())
    waiting.stay_awake()
    waiting.looked(3)
    assert waiting.awake
    waiting.looked(4)
    assert not waiting.awake


def test_a_wait_that_was_ready_and_is_not_keeps_its_time() -> None:
    app = fresh_app()

    @app.agent(queue="elsewhere")
    async def child() -> None: ...

    @app.agent
    async def agent() -> None:
        made = await perdure.start(child)
        await asyncio.gather(made.result(timeout="1h"), asyncio.get_running_loop().create_future())

    async def main() -> None:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            await until(lambda: _all_are(bool(_pending_of(worker))), "it waits")
            (first,) = _pending_of(worker)
            await worker._tenure.committer.flushed()
            await passes(0.1)
            (wait,) = await worker._tenure.store.waits([handle._id])
            waiting = worker._tenure.executions[handle._id].current.waiting
            waiting.feed(msgspec.structs.replace(wait, ready=True))  # and the child, looked at, goes on
            await until(lambda: _all_are(_pending_of(worker) not in ([], [first])), "it waits again")
            (again,) = _pending_of(worker)
            assert again.due_s == first.due_s
            await handle.cancel()

    asyncio.run(main())


def _pending_of(worker: Any) -> list[Any]:
    steps = [execution.current for execution in worker._tenure.executions.values()]
    return [each for step in steps if step is not None for each in step.waiting.pending.values()]
