"""Starting children: each once, whatever crashes between, and on a busy thread as the parent says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import App, RunFailed, StartMismatch, ThreadBusy
from perdure.core.requests import StartRun
from tests.runtime.acting import begun, mark
from tests.runtime.world import crash, fresh_app, idle, keys_of, parked, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def _waiting(app: App, count: int) -> bool:
    return len(await app.runs(state="waiting")) == count


async def _asks(app: App, handle: Any, name: str) -> bool:
    return [each.name for each in await app.interrupts(run_id=handle.run_id)] == [name]


def test_a_crash_between_the_start_and_its_record_starts_no_second_child() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        return await mark("child")

    @app.agent
    async def agent() -> list[str]:
        return list(await asyncio.gather(perdure.call(child), perdure.call(child)))

    async def main() -> list[str]:
        async with working(app) as worker:
            company = worker._tenure.starts
            write = company._write
            reached = asyncio.Event()

            async def and_die(starts: list[StartRun]) -> Any:
                await write(starts)
                reached.set()
                await asyncio.Event().wait()

            company._write = and_die
            handle = await app.start(agent, thread_id="top")
            await reached.wait()
            await crash(app, worker)
            result: list[str] = await handle.result(timeout=20)
            assert len(await app.runs(agent="child")) == 2
            assert await keys_of(handle) == [
                "1/start:child", "2/start:child", "1/result:child", "2/result:child",
            ]  # fmt: skip
            return result

    assert asyncio.run(main()) == ["child", "child"]
    assert begun == ["child", "child"]


def test_a_worker_that_has_lost_the_run_starts_nothing() -> None:
    app = fresh_app()
    begin: list[asyncio.Event] = []
    begun_again: list[asyncio.Event] = []

    @app.agent
    async def child() -> None: ...

    @app.agent
    async def agent() -> str:
        begun.append("agent")
        if len(begun) == 1:
            await begin[0].wait()
        else:
            begun_again[0].set()
            await asyncio.Event().wait()
        await perdure.start(child)
        return "not reached"

    async def main() -> None:
        begin.append(asyncio.Event())
        begun_again.append(asyncio.Event())
        async with working(app, grace_s=0.05, lease_s=0.6) as worker:
            handle = await app.start(agent)
            await until(lambda: _begun(1), "it runs")
            store = (await app._client()).store
            await store.take_over([worker.id], recoveries_max=5)  # which the worker does not know yet
            begin[0].set()
            await begun_again[0].wait()
            assert await app.runs(agent="child") == []
            assert (await handle.status()).recoveries == 1

    asyncio.run(main())


def test_a_worker_that_drains_starts_nothing() -> None:
    app = fresh_app()
    go, tried, last = (list[asyncio.Event]() for _ in range(3))

    @app.agent(queue="elsewhere")
    async def child() -> None: ...

    @perdure.step
    async def body() -> None:
        await last[0].wait()

    async def starts() -> None:
        await go[0].wait()
        tried[0].set()
        await perdure.start(child)

    @app.agent
    async def agent() -> None:
        await asyncio.gather(body(), starts())

    async def main() -> None:
        for each in (go, tried, last):
            each.append(asyncio.Event())
        async with working(app) as worker:
            handle = await app.start(agent)
            await until(lambda: _in_flight(worker), "its step is in flight")
            worker.stop()
            go[0].set()
            await tried[0].wait()
            await idle()
            last[0].set()
            await worker.stopped()
            assert await app.runs(agent="child") == []
            assert (await handle.status()).state == "queued"

    asyncio.run(main())


async def _in_flight(worker: Any) -> bool:
    steps = [execution.current for execution in worker._tenure.executions.values()]
    return any(step is not None and step.in_flight for step in steps)


async def _begun(count: int) -> bool:
    return len(begun) == count


def test_a_key_names_one_child_for_all_its_parents() -> None:
    app = fresh_app()

    @app.agent
    async def child(what: str) -> str:
        return await mark(what)

    @app.agent
    async def agent(what: str) -> str:
        return str(await perdure.call(child, what, key="the one"))

    async def main() -> list[str]:
        async with working(app):
            first = await (await app.start(agent, "x")).result(timeout=20)
            second = await (await app.start(agent, "x")).result(timeout=20)
            other = await app.start(agent, "y")
            with pytest.raises(RunFailed) as failed:
                await other.result(timeout=20)
            assert failed.value.error.type.endswith(StartMismatch.__name__)
            return [first, second]

    assert asyncio.run(main()) == ["x", "x"]
    assert begun == ["x"]


def test_a_busy_thread_is_treated_as_the_parent_says() -> None:
    app = fresh_app()

    @app.agent
    async def child(what: str) -> str:
        return f"{what} {await perdure.interrupt(what, name='q')}"

    async def tried(what: str, **options: Any) -> Any:
        try:
            return await perdure.start(child, what, thread_id="t", **options)
        except ThreadBusy as error:
            return ["busy", bool(error.run_id)]

    @app.agent
    async def agent() -> list[Any]:
        first = await perdure.start(child, "first", thread_id="t")
        await perdure.interrupt(name="go on")
        rejected = await tried("x", if_busy="reject")
        unsaid = await tried("x")
        joined = await tried("first", if_busy="join")
        behind = await tried("behind", if_busy="enqueue")
        return [rejected, unsaid, joined.run_id == first.run_id, await first, await behind]

    async def main() -> list[Any]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="top")
            await until(lambda: _waiting(app, 2), "both wait")
            await app.resume("top", 1)
            await until(lambda: _waiting(app, 2), "the parent waits for its child")
            await parked(handle, worker)
            for answer in ("a", "b"):
                await until(lambda: _one_asks(app), "it asks")
                await app.resume("t", answer)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == [["busy", True], ["busy", True], True, "first a", "behind b"]


async def _one_asks(app: App) -> bool:
    return len(await app.interrupts(thread_id="t")) == 1


def test_a_failed_start_is_on_record_and_fails_the_same_on_replay() -> None:
    app = fresh_app()

    @app.agent
    async def child(what: str) -> None:
        await perdure.interrupt(what, name="never")

    @app.agent
    async def agent() -> list[str]:
        said: list[str] = []
        await perdure.start(child, "a", thread_id="t")
        try:
            await perdure.start(child, "b", thread_id="t", if_busy="reject")
        except ThreadBusy as error:
            said.append(str(error).split("'")[3])
        await perdure.interrupt(name="q")
        return said

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="top")
            await parked(handle, worker)
            (child_run,) = await app.runs(agent="child")
            await app.cancel(child_run.run_id)
            await app.resume("top", 1)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["t"]
