"""Runs, threads, super-steps and workers, seen through the public API."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from dataclasses import dataclass, field
from typing import Any, TypedDict

import pytest

import perdure
from perdure import Again, App, LeaseLost, RunFailed, RunHeld, StartMismatch, ThreadBusy, step
from tests.runtime.world import fresh_app, result_of, until, working


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)
    total: int = 0


class Count(TypedDict, total=False):
    n: int


@dataclass
class Other:
    lines: list[str]


def test_again_calls_the_agent_with_new_arguments_and_the_recorded_state() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int, *, state: Notes) -> list[str] | Again:
        assert isinstance(state, Notes)
        state.lines.append(f"{perdure.current().super_step}:{n}")
        return Again(n - 1) if n else state.lines

    assert result_of(app, agent, 2) == ["1:2", "2:1", "3:0"]


def test_large_state_and_arguments_pass_from_super_step_to_super_step() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int, text: str, *, state: Notes) -> int | Again:
        state.lines.append(f"{n}" * 2000)
        return Again(n - 1, text + "x" * 40_000) if n else sum(map(len, state.lines)) + len(text)

    assert result_of(app, agent, 5, "") == 6 * 2000 + 5 * 40_000


def test_state_belongs_to_the_thread_and_outlives_its_runs() -> None:
    app = fresh_app()

    @app.agent
    async def agent(*, state: Count) -> int:
        state["n"] = state.get("n", 0) + 1
        return state["n"]

    @app.agent
    async def failing(*, state: Notes) -> None:
        state.lines.append("lost")
        raise ValueError

    async def main() -> None:
        async with working(app):
            for expected in (1, 2, 3):
                assert await (await app.start(agent, thread_id="a")).result(timeout=20) == expected
            assert await app.thread("a").state() == {"n": 3}
            entries = await app.thread("a").checkpoints()
            assert [await app.thread("a").state(at=entry) for entry in entries if entry.has_state] == [
                {"n": 3}, {"n": 2}, {"n": 1},
            ]  # fmt: skip
            with pytest.raises(RunFailed):
                await (await app.start(failing, thread_id="b")).result(timeout=20)
            assert await app.thread("b").state() is None

    asyncio.run(main())


def test_who_waits_for_a_run_sees_where_it_failed() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        raise ValueError("no such page")

    async def main() -> None:
        async with working(app):
            with pytest.raises(RunFailed, match="no such page") as caught:
                await (await app.start(agent)).result(timeout=20)
            assert 'raise ValueError("no such page")' in caught.value.__notes__[0]

    asyncio.run(main())


def test_who_waits_in_vain_is_told_where_to_look() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            handle = await app.start(agent)
            with pytest.raises(TimeoutError, match=r"within 0\.01 s.* goes on where a worker is alive.*runs show r1"):
                await handle.result(timeout=0.01)

    asyncio.run(main())


def test_a_run_is_not_retried_from_a_state_that_later_runs_have_built_upon() -> None:
    app = fresh_app()
    broken = [True]

    @app.agent
    async def agent(again: bool, *, state: Count) -> int | Again:
        state["n"] = state.get("n", 0) + 1
        if again:
            return Again(False)
        if broken.pop() if broken else False:
            raise ValueError("once")
        return state["n"]

    async def main() -> None:
        async with working(app):
            failed = await app.start(agent, True, thread_id="t")
            with pytest.raises(RunFailed):
                await failed.result(timeout=20)
            assert await (await app.start(agent, False, thread_id="t")).result(timeout=20) == 2
            with pytest.raises(perdure.Conflict, match="has gone on since"):
                await app.retry(failed.run_id)

    asyncio.run(main())


def test_a_run_with_a_state_of_its_own_is_not_retried_while_a_later_one_is_under_way() -> None:
    app = fresh_app()

    @app.agent
    async def agent(round: int, *, state: Count) -> int | Again:
        state["n"] = round
        if round == 1:
            return Again(2)
        if round == 2:
            raise ValueError("always")
        return await asyncio.get_running_loop().create_future()

    async def main() -> None:
        async with working(app):
            failed = await app.start(agent, 1, thread_id="t")
            with pytest.raises(RunFailed):
                await failed.result(timeout=20)
            later = await app.start(agent, 3, thread_id="t")

            async def begun() -> bool:
                return (await later.status()).state == "running"

            await until(begun, "the later run is under way")
            with pytest.raises(perdure.Conflict, match=f"{later.run_id} has begun .* wait for its end") as caught:
                await app.retry(failed.run_id)
            assert caught.value.run_id == failed.run_id and (await failed.status()).state == "failed"

    asyncio.run(main())


def test_a_state_that_does_not_load_holds_the_run() -> None:
    app = fresh_app()

    @app.agent(name="agent")
    async def before(*, state: Count) -> None:
        state["n"] = 1

    changed = App("changed", store=app.store_url)

    @changed.agent(name="agent")
    async def after(*, state: Other) -> None: ...

    async def main() -> str | None:
        async with working(app):
            await (await app.start(before, thread_id="a")).result(timeout=20)
        async with working(changed):
            handle = await changed.start(after, thread_id="a")
            with pytest.raises(RunHeld, match="does not load"):
                await handle.result(timeout=20)
            return (await handle.status()).held_reason

    assert asyncio.run(main()) == "schema"


def test_a_thread_runs_one_run_at_a_time_in_order() -> None:
    app = fresh_app()
    running: list[int] = []
    order: list[int] = []

    @app.agent
    async def agent(n: int) -> None:
        running.append(n)
        assert len(running) == 1
        await asyncio.sleep(0)
        running.remove(n)
        order.append(n)

    async def main() -> None:
        async with working(app):
            handles = [await app.start(agent, n, thread_id="t") for n in range(20)]
            await asyncio.gather(*(handle.result(timeout=20) for handle in handles))

    asyncio.run(main())
    assert order == list(range(20))


def test_if_busy_enqueues_rejects_or_joins() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int) -> int:
        return n

    async def main() -> None:
        async with app:
            first = await app.start(agent, 1, thread_id="t")
            queued = await app.start(agent, 2, thread_id="t")
            joined = await app.start(agent, 3, thread_id="t", if_busy="join")
            with pytest.raises(ThreadBusy) as caught:
                await app.start(agent, 4, thread_id="t", if_busy="reject")
            assert joined.run_id == first.run_id == caught.value.run_id
            assert (await queued.status()).waiting_for == f"run {first.run_id} of its thread"
            async with app.worker():
                assert await queued.result(timeout=20) == 2

    asyncio.run(main())


def test_the_same_key_is_the_same_run_and_other_input_a_conflict() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int) -> int:
        return n

    async def main() -> None:
        async with working(app):
            handles = await asyncio.gather(*(app.start(agent, 1, key="k") for _ in range(10)))
            assert len({handle.run_id for handle in handles}) == 1
            with pytest.raises(StartMismatch, match="other arguments") as caught:
                await app.start(agent, 2, key="k")
            assert caught.value.run_id == handles[0].run_id
            assert await handles[3].result(timeout=20) == 1
            assert (await app.start(agent, 1, key="k")).run_id == handles[0].run_id

    asyncio.run(main())


def test_c14_the_engine_holds_what_it_runs() -> None:
    app = fresh_app()

    @step
    async def wait() -> int:
        for _ in range(5):
            await asyncio.sleep(0)
            gc.collect(0)
        return 1

    @app.agent
    async def agent() -> int:
        task = asyncio.create_task(wait())
        return await task

    async def main() -> int:
        async with working(app):
            ids = [(await app.start(agent)).run_id for _ in range(50)]
            gc.collect()
            return sum(await asyncio.gather(*(app.handle(run_id).result(timeout=20) for run_id in ids)))

    assert asyncio.run(main()) == 50


def test_app_run_goes_on_with_the_threads_unfinished_run() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int) -> int:
        return n

    async def leave_one() -> None:
        async with app:
            await app.start(agent, 1, thread_id="t")

    asyncio.run(leave_one())

    assert app.run(agent, 2, thread_id="t") == 1
    assert app.run(agent, 2, thread_id="t") == 2


def test_a_worker_that_lost_its_lease_tells_user_code_and_goes_on_as_another() -> None:
    app = fresh_app()
    told: list[str] = []
    started = asyncio.Event()
    first: list[int] = []

    @step
    async def slow() -> str:
        started.set()
        if len(first) == 1 and not told:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError as error:
                told.append(str(error))
                raise
        return "done"

    @app.agent
    async def agent() -> str:
        try:
            return await slow()
        finally:
            if told and len(told) == 1:
                try:
                    await slow()
                except LeaseLost as error:
                    told.append(str(error))

    async def main() -> Any:
        async with working(app, lease_s=0.5) as worker:
            first.append(worker.id)
            handle = await app.start(agent)
            await started.wait()
            client = await app._client()
            await client.store.take_over([worker.id], recoveries_max=5)
            result = await handle.result(timeout=20)
            info = await handle.status()
            return result, info.recoveries, worker.id

    result, recoveries, second = asyncio.run(main())
    assert result == "done"
    assert recoveries == 1
    assert second != first[0]
    assert len(told) == 2
    assert all("lease lost" in line for line in told)


def test_c06_a_blocked_loop_keeps_its_lease_and_the_log_names_the_line(caplog: pytest.LogCaptureFixture) -> None:
    app = fresh_app()
    bodies: list[int] = []

    @step
    async def block() -> None:
        bodies.append(1)
        time.sleep(2.0)  # house: the blocked loop is the subject

    @app.agent
    async def agent() -> str:
        await block()
        return "done"

    async def main() -> Any:
        async with working(app, lease_s=0.6):
            handle = await app.start(agent)
            await handle.result(timeout=20)
            return await handle.status()

    with caplog.at_level(logging.WARNING, logger="perdure"):
        info = asyncio.run(main())
    assert info.recoveries == 0
    assert bodies == [1]
    line = next(record.getMessage() for record in caplog.records if "loop.blocked" in record.getMessage())
    assert "test_runs.py" in line
    assert "time.sleep(2.0)" in line


def test_a_draining_worker_hands_back_at_the_next_checkpoint_and_counts_nothing() -> None:
    app = fresh_app()
    begun = asyncio.Event()
    go_on = asyncio.Event()

    @step
    async def first() -> str:
        begun.set()
        await go_on.wait()
        return "first"

    @step
    async def second() -> str:
        return "second"

    @app.agent
    async def agent() -> str:
        return await first() + await second()

    async def main() -> Any:
        async with app:
            handle = await app.start(agent)
            async with app.worker() as worker:
                await begun.wait()
                worker.stop()
                go_on.set()
                await worker.stopped()
            middle = await handle.status()
            keys = [entry.key for entry in await handle.history()]
            async with app.worker():
                return middle, keys, await handle.result(timeout=20), await handle.status()

    middle, keys, result, last = asyncio.run(main())
    assert middle.state == "queued"
    assert keys == ["", "first"]
    assert result == "firstsecond"
    assert last.recoveries == 0


def test_c08_runs_that_wait_go_back_at_once_and_bodies_get_the_grace_period() -> None:
    app = fresh_app()
    begun: list[int] = []
    gate = asyncio.Event()

    @step
    async def body() -> int:
        begun.append(1)
        await gate.wait()
        return 1

    @app.agent
    async def busy() -> int:
        return await body()

    @app.agent
    async def waiting() -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    async def main() -> Any:
        async with app:
            for _ in range(4):
                await app.start(busy)
            for _ in range(96):
                await app.start(waiting)
            async with app.worker(grace_s=20) as worker:

                async def all_claimed() -> bool:
                    return worker.running == 100 and len(begun) == 4

                await until(all_claimed, "100 runs claimed, 4 in their bodies")
                worker.stop()

                async def given_back() -> bool:
                    return worker.running == 4 and len(await app.runs(state="queued", limit=1000)) == 96

                await until(given_back, "96 runs given back, the 4 bodies still in hand")
                gate.set()
                await worker.stopped()
            return await app.runs(limit=1000)

    runs = asyncio.run(main())
    assert sorted(run.state for run in runs) == ["completed"] * 4 + ["queued"] * 96
    assert {run.recoveries for run in runs} == {0}


def test_runs_are_listed_by_state_agent_thread_tenant_and_tags() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None: ...

    async def main() -> None:
        async with app:
            one = await app.start(agent, tenant="acme", tags=["b", "a"], thread_id="t")
            two = await app.start(agent, priority=5, delay="1h")
            assert [run.run_id for run in await app.runs()] == [two.run_id, one.run_id]
            assert [run.run_id for run in await app.runs(limit=1, after=two.run_id)] == [one.run_id]
            assert [run.run_id for run in await app.runs(tenant="acme", tags=["a"])] == [one.run_id]
            assert await app.runs(state="completed") == []
            assert (await one.status()).tags == ("a", "b")
            assert "its time" in ((await two.status()).waiting_for or "")

    asyncio.run(main())


def test_a_start_key_knows_the_same_input_whatever_the_order_of_a_set_or_a_dict() -> None:
    app = fresh_app()

    @app.agent
    async def agent(words: set[str], options: dict[str, int]) -> int:
        return len(words)

    async def main() -> None:
        async with app:
            one = await app.start(agent, {"b", "a", "c"}, {"x": 1, "y": 2}, key="k")
            two = await app.start(agent, {"c", "a", "b"}, options={"y": 2, "x": 1}, key="k")
            assert one.run_id == two.run_id

    asyncio.run(main())
