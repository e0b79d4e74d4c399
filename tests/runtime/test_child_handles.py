"""What `perdure.start` returns keeps the contract of every handle, and says on replay what it said before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import Handle, RunCancelled, TimedOut
from perdure.core.changes import AppendCheckpoint
from tests.runtime.acting import mark
from tests.runtime.world import asked, crash, fresh_app, keys_of, parked, passes, result_of, until, working

VERBS = ("result", "status", "cancel", "history")


def test_a_child_is_a_handle_as_a_clients_is_and_either_can_be_awaited() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> int:
        return 7

    @app.agent
    async def agent() -> tuple[bool, int, int]:
        made = await perdure.start(child)
        return isinstance(made, Handle), await made, await made.result(timeout="1h")

    async def main() -> Any:
        async with working(app):
            handle = await app.start(agent)
            assert isinstance(handle, Handle)
            assert handle.__class__.result.__doc__ is None, "said once, by the contract"
            return await handle

    assert asyncio.run(main()) == (True, 7, 7)


def test_a_worker_that_has_lost_the_run_does_not_cancel_its_child() -> None:
    app = fresh_app()
    there, go, tried = (list[asyncio.Event]() for _ in range(3))

    @app.agent
    async def child() -> None:
        await perdure.interrupt()

    @app.agent
    async def agent() -> None:
        made = await perdure.start(child)
        there[0].set()
        await go[0].wait()
        try:
            await made.cancel("out of date")
        finally:
            tried[0].set()

    async def main() -> None:
        for each in (there, go, tried):
            each.append(asyncio.Event())
        async with app, app.worker(lease_s=60.0, poll_s=30.0, concurrency=1) as worker:
            await app.start(agent)
            await there[0].wait()
            await worker._tenure.committer.flushed()
            await (await app._client()).store.take_over([worker.id], recoveries_max=5)  # which it does not know yet
            go[0].set()
            await tried[0].wait()
            assert [run.state for run in await app.runs(agent="child")] == ["queued"]

    asyncio.run(main())


def test_a_child_is_cancelled_once_what_led_to_it_is_on_disk() -> None:
    app = fresh_app()
    on_disk: list[str] = []

    @app.agent
    async def child() -> None:
        await perdure.interrupt()

    @app.agent
    async def agent() -> None:
        made = await perdure.start(child)
        await mark("decided")
        await made.cancel()

    async def main() -> None:
        async with working(app) as worker:
            store = worker._tenure.store
            commit, cancel = store.commit, store.cancel

            async def slow_commit(number: int, changes: Any) -> Any:
                if any(isinstance(change, AppendCheckpoint) for change in changes):
                    await passes(0.05)
                return await commit(number, changes)

            async def seen_cancel(run: int, *args: Any) -> Any:
                on_disk[:] = await keys_of(handle)
                return await cancel(run, *args)

            store.commit, store.cancel = slow_commit, seen_cancel
            handle = await app.start(agent)
            await handle.result(timeout=20)

    asyncio.run(main())
    assert any("mark" in key for key in on_disk)


def test_a_child_that_takes_longer_is_waited_for_as_long_as_was_said_and_goes_on() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        return str(await perdure.interrupt("which?"))

    @app.agent
    async def agent() -> list[str]:
        made = await perdure.start(child, thread_id="child")
        try:
            await made.result(timeout=0.02)
        except TimedOut as late:
            told = str(late)
        await perdure.interrupt(name="go on")
        return [told, await made.result(timeout="1h")]

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await asked(app, handle)
            await parked(handle, worker)
            await app.resume("child", "this")
            await app.resume(handle.thread_id, None)
            result: list[str] = await handle.result(timeout=20)
            return result

    told, answer = asyncio.run(main())
    assert "did not end in time" in told
    assert answer == "this"


def test_a_timeout_of_a_childs_result_parks_its_parent() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None:
        await perdure.interrupt()

    @app.agent
    async def agent() -> None:
        await (await perdure.start(child)).result(timeout="1h")

    async def main() -> str | None:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            waiting_for = (await handle.status()).waiting_for
            await handle.cancel()
            with pytest.raises(RunCancelled):
                await handle.result(timeout=20)
            return waiting_for

    assert str(asyncio.run(main())).startswith("run r")


def test_looks_at_a_child_are_recorded_and_a_replay_sees_the_same() -> None:
    app = fresh_app()
    seen: list[Any] = []

    @perdure.step
    async def work() -> int:
        return 1

    @app.agent
    async def child() -> tuple[int, bytes]:
        await work()
        answer = await perdure.interrupt("which?")
        return answer, b"bytes"

    @app.agent
    async def agent() -> str:
        made = await perdure.start(child, thread_id="child")
        await perdure.receive()
        before = [await made.status(), await made.history()]
        await perdure.receive()
        after = [await made.status(), await made.history()]
        seen.append((before, after))
        await perdure.interrupt("again?")
        return str((await made.status()).result)

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="parent")
            await until(lambda: _asks(app, "child"), "the child asks")
            await app.send("parent", 1)
            await until(lambda: _has_key(handle, "history:child"), "the parent has looked")
            await app.resume("child", 5)
            await until(lambda: _is_over(app, "child"), "the child ends")
            await app.send("parent", 2)
            await asked(app, handle)
            await parked(handle, worker)
            await crash(app, worker)
            await app.resume("parent", True)
            result: str = await handle.result(timeout=20)
            return result

    assert asyncio.run(main()) == "(5, b'bytes')"
    (first, *others) = seen
    assert others and all(other == first for other in others)
    (before, log), (after, longer) = first
    assert before.state in ("waiting", "running")
    assert (after.state, after.result, after.result_note) == ("completed", (5, b"bytes"), None)
    assert [row.key for row in log if row.key] == ["work"]
    assert len(longer) > len(log)


def test_a_child_is_cancelled_with_a_reason_and_the_truth_is_told() -> None:
    app = fresh_app()

    @app.agent
    async def waits() -> None:
        await perdure.interrupt()

    @app.agent
    async def ends() -> int:
        return 1

    @app.agent
    async def agent() -> list[Any]:
        first, second = await perdure.start(waits), await perdure.start(ends)
        await second
        told: list[Any] = [await first.cancel(reason="not needed"), await second.cancel()]
        try:
            await first
        except RunCancelled as error:
            told.append(error.reason)
        return [str(each) for each in told]

    assert result_of(app, agent) == ["cancelled", "completed", "not needed"]


def test_a_handle_outside_says_when_it_has_waited_long_enough() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            handle = await app.start(agent)
            with pytest.raises(TimeoutError, match="did not end within"):
                await handle.result(timeout=0.01)

    asyncio.run(main())


def test_what_is_no_agent_is_told_apart() -> None:
    app = fresh_app()

    @perdure.step
    async def a_step() -> None: ...

    @app.agent
    async def agent() -> list[str]:
        told = []
        for verb in (perdure.call, perdure.start):
            try:
                await verb(a_step)  # type: ignore[arg-type]
            except perdure.UnknownAgent as error:
                told.append(str(error))
        return told

    for told in result_of(app, agent):
        assert "a_step is a step, not an agent: call it directly" in told
    with pytest.raises(perdure.UnknownAgent, match="call it directly"):
        asyncio.run(app.start(a_step))  # type: ignore[arg-type]
    with pytest.raises(perdure.NotInRun, match=r"perdure\.call was called outside"):
        asyncio.run(perdure.call(agent))


async def _asks(app: Any, thread_id: str) -> bool:
    return bool(await app.interrupts(thread_id=thread_id))


async def _is_over(app: Any, thread_id: str) -> bool:
    return (await app.runs(thread_id=thread_id))[0].state == "completed"


async def _has_key(handle: Any, name: str) -> bool:
    return any(name in key for key in await keys_of(handle))
