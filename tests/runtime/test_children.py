"""Children: started once, ended in one of four ways, and every way reaches whoever waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import perdure
from perdure import App, Child, RunCancelled, RunFailed, RunHeld, UnknownAgent
from tests.runtime.acting import begun, mark
from tests.runtime.world import asked, fresh_app, parked, result_of, until, working


@pytest.fixture(autouse=True)
def _nothing_has_begun() -> None:
    begun.clear()


async def _has(handle: Any, state: str) -> bool:
    return str((await handle.status()).state) == state


# -- how they are started and awaited ------------------------------------------------------------------------------


def test_a_child_is_called_or_started_and_awaited() -> None:
    app = fresh_app()

    @app.agent
    async def square(number: int) -> int:
        return number * number

    @app.agent
    async def agent() -> list[Any]:
        called = await perdure.call(square, 2)
        child = await perdure.start(square, 3, tags=["odd"], thread_id="three")
        by_name = await perdure.start("square", 4)
        assert isinstance(child, Child)
        assert (child.thread_id, child.agent) == ("three", "square")
        return [called, await child, await by_name.result(), await child]

    assert result_of(app, agent) == [4, 9, 16, 9]


def test_a_result_is_of_the_type_that_the_child_returns_live_and_replayed() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> tuple[int, bytes]:
        return 1, b"large" * 20_000

    @app.agent
    async def agent() -> bool:
        first = await perdure.call(child)
        await perdure.interrupt(name="q")
        return first == (1, b"large" * 20_000)

    async def main() -> bool:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            await asked(app, handle)
            await app.resume(handle.thread_id, 1)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) is True


def test_a_child_knows_its_parent_and_has_its_tenant_and_priority() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None: ...

    @app.agent
    async def agent() -> None:
        await perdure.call(child, thread_id="child")
        await perdure.call(child, thread_id="other", priority=1)

    async def main() -> None:
        async with working(app):
            handle = await app.start(agent, tenant="acme", priority=7)
            await handle.result(timeout=20)
            found = {run.thread_id: run for run in await app.runs(agent="child")}
            assert {run.parent for run in found.values()} == {handle.run_id}
            assert {run.tenant for run in found.values()} == {"acme"}
            assert (found["child"].priority, found["other"].priority) == (7, 1)

    asyncio.run(main())


def test_an_agent_that_is_not_on_the_app_cannot_be_started() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> str:
        try:
            await perdure.start("nobody")
        except UnknownAgent as error:
            return str(error.agent)
        return "started"

    assert result_of(app, agent) == "nobody"


# -- how they end --------------------------------------------------------------------------------------------------


def test_every_ending_reaches_the_parent_as_what_it_is_live_and_replayed() -> None:
    app = fresh_app()

    @app.agent
    async def completes() -> str:
        return "done"

    @app.agent
    async def fails() -> None:
        raise ValueError("broken")

    @app.agent
    async def waits() -> None:
        await perdure.interrupt(len(begun), name="q")  # another payload after a while: it diverges

    async def end_of(child: Child) -> list[Any]:
        try:
            return ["completed", await child]
        except (RunFailed, RunCancelled, RunHeld) as error:
            assert (error.run_id, error.thread_id) == (child.run_id, child.thread_id)
            return [type(error).__name__, str(error).split(":")[-1].strip()]

    @app.agent
    async def agent() -> list[Any]:
        children = [await perdure.start(each, thread_id=each.name) for each in (completes, fails)]
        children += [await perdure.start(waits, thread_id=name) for name in ("cancelled", "held")]
        ends = await asyncio.gather(*map(end_of, children))
        await perdure.interrupt(name="again")
        return [list(end) for end in ends]

    async def main() -> list[Any]:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent, thread_id="top")
            await until(lambda: _waiting(app, 3), "the parent and two children wait")
            (victim,) = await app.runs(thread_id="cancelled")
            assert await app.cancel(victim.run_id, reason="enough") == "cancelled"
            begun.append("changed")
            await app.resume("held", 1)
            await until(lambda: _asks(app, handle, "again"), "all have ended")
            await parked(handle, worker)
            await app.resume("top", 1)
            return await handle.result(timeout=20)

    ends = asyncio.run(main())
    assert [end[0] for end in ends] == ["completed", "RunFailed", "RunCancelled", "RunHeld"]
    assert [ends[0][1], ends[1][1], ends[2][1]] == ["done", "broken", "enough"]


async def _waiting(app: App, count: int) -> bool:
    return len(await app.runs(state="waiting")) == count


async def _asks(app: App, handle: Any, name: str) -> bool:
    return [each.name for each in await app.interrupts(run_id=handle.run_id)] == [name]


def test_a_held_child_may_be_sent_on_and_awaited_again() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        return f"answered {await perdure.interrupt(len(begun), name='q')}"

    @app.agent
    async def agent() -> list[str]:
        started = await perdure.start(child, thread_id="child")
        try:
            await started
        except RunHeld:
            await perdure.interrupt(name="look at it")
        return [await started]

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="top")
            await until(lambda: _waiting(app, 2), "both wait")
            begun.append("changed")
            await app.resume("child", 1)
            await until(lambda: _asks(app, handle, "look at it"), "the parent knows")
            await parked(handle, worker)
            begun.clear()
            (run,) = await app.runs(thread_id="child")
            await app.release(run.run_id)
            await app.resume("top", "done")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["answered 1"]


@pytest.mark.parametrize("how", ["held", "failed"])
def test_a_child_that_was_sent_on_before_its_parent_looked_is_waited_for_again(how: str) -> None:
    app = fresh_app()

    @app.agent
    async def child() -> str:
        if how == "failed":
            await perdure.interrupt(name="q")
            if not begun:
                raise ValueError("not yet")
            return "after all"
        return f"after {await perdure.interrupt(len(begun), name='q')}"

    @app.agent
    async def agent() -> str:
        return str(await perdure.call(child, thread_id="child"))

    async def main() -> str:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="top")
            await until(lambda: _waiting(app, 2), "both wait")
            (run,) = await app.runs(thread_id="child")
            reads = worker._tenure.reads.runs
            read = reads._read

            async def late(numbers: Any) -> Any:
                """Somebody is quicker than the parent."""
                reads._read = read
                begun[:] = [] if how == "held" else ["changed"]
                await (app.release(run.run_id) if how == "held" else app.retry(run.run_id))
                return await read(numbers)

            reads._read = late
            if how == "held":
                begun.append("changed")
            await app.resume("child", "all")
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "after all"


def test_c40_a_child_that_keeps_killing_its_workers_is_held_and_its_parent_is_told() -> None:
    app = fresh_app()
    entered: list[asyncio.Event] = []

    @app.agent
    async def child() -> None:
        entered[0].set()
        await asyncio.Event().wait()

    @app.agent
    async def agent() -> str:
        try:
            await perdure.call(child, thread_id="child")
        except RunHeld as error:
            return str(error)
        return "completed"

    async def main() -> str:
        entered.append(asyncio.Event())
        async with working(app, recoveries_max=2) as worker:
            handle = await app.start(agent)
            for _ in range(2):
                await entered[0].wait()
                await parked(handle)
                entered[0].clear()
                number = worker.id
                worker._tenure.lose("killed by the test")
                await (await app._client()).store.take_over([number], recoveries_max=2)
            return await handle.result(timeout=20)

    assert "poison" in asyncio.run(main())


def test_a_parent_that_cancels_its_child_sees_it_cancelled() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None:
        await perdure.interrupt(name="never")

    @app.agent
    async def agent() -> str:
        started = await perdure.start(child)
        await started.cancel("changed my mind")
        try:
            await started
        except RunCancelled as error:
            return str(error)
        return "completed"

    assert "changed my mind" in result_of(app, agent)


# -- many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1000, 20])
def test_a_thousand_children_wake_their_parent_a_few_times_only(concurrency: int) -> None:
    app = fresh_app()

    @app.agent
    async def child(number: int) -> int:
        return number

    @app.agent
    async def agent() -> int:
        return sum(await asyncio.gather(*(perdure.call(child, number) for number in range(1000))))

    async def main() -> int:
        async with working(app, poll_s=30.0, concurrency=concurrency):
            handle = await app.start(agent)
            total: int = await handle.result(timeout=30)
            claims.append((await handle.status()).attempt)
            return total

    claims: list[int] = []
    assert asyncio.run(main()) == 499500
    assert claims[0] <= 20


def test_an_answer_moves_no_key_of_the_children_after_it() -> None:
    app = fresh_app()

    @app.agent
    async def child(what: str) -> str:
        return await mark(what)

    @app.agent
    async def agent() -> list[str]:
        said = [str(await perdure.interrupt(name="q"))]
        said += await asyncio.gather(*(perdure.call(child, f"{said[0]} {number}") for number in range(3)))
        said.append(str(await perdure.interrupt(name="q")))
        return said + list(await asyncio.gather(mark("last")))

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent, thread_id="top")
            for answer in ("a", "b"):
                await until(lambda: _asks(app, handle, "q"), "it asks")
                await parked(handle, worker)
                await app.resume("top", answer)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == ["a", "a 0", "a 1", "a 2", "b", "last"]
    assert sorted(begun) == ["a 0", "a 1", "a 2", "last"]
