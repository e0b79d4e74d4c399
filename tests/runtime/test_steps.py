"""What a step promises inside an agent."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from typing import Any

import pytest

import perdure
from perdure import (
    NotInRun,
    Retry,
    RunFailed,
    StepFailed,
    step,
)
from perdure.store.memory import MemoryStore
from tests.runtime.world import fresh_app, result_after_retries, result_of, working

FAST = Retry(attempts=3, delay_s=0.001, jitter=0)


def test_outside_an_agent_a_step_is_a_plain_call() -> None:
    @step
    async def double(x: int) -> int:
        return 2 * x

    @step
    def triple(x: int) -> int:
        return 3 * x

    async def main() -> tuple[int, int]:
        return await double(2), await triple(2)

    assert asyncio.run(main()) == (4, 6)


def test_a_step_called_in_a_step_is_part_of_its_record() -> None:
    app = fresh_app()

    @step
    async def inner() -> int:
        return 1

    @step
    async def outer() -> int:
        return 1 + await inner()

    @app.agent
    async def agent() -> int:
        return await outer()

    async def main() -> tuple[int, list[str]]:
        async with working(app):
            handle = await app.start(agent)
            result = await handle.result(timeout=20)
            return result, [entry.key for entry in await handle.history() if entry.key]

    assert asyncio.run(main()) == (2, ["outer"])


def test_keys_follow_the_structure_and_not_the_order_of_finishing() -> None:
    app = fresh_app()

    @step
    async def pause(s: float) -> float:
        await asyncio.sleep(s)
        return s

    async def branch(s: float) -> None:
        await pause(s)
        await pause(s / 2)

    @app.agent
    async def agent() -> None:
        await pause(0)
        await asyncio.gather(branch(0.03), branch(0.0))
        async with asyncio.TaskGroup() as group:
            group.create_task(branch(0.01))
        await pause(0)

    async def main() -> set[str]:
        async with working(app):
            handle = await app.start(agent)
            await handle.result(timeout=20)
            return {entry.key for entry in await handle.history() if entry.key}

    assert asyncio.run(main()) == {
        "pause", "pause#2", "1/pause", "1/pause#2", "2/pause", "2/pause#2", "3/pause", "3/pause#2",
    }  # fmt: skip


def test_a_key_given_by_hand_holds_in_any_task_and_only_once() -> None:
    app = fresh_app()

    @step
    async def call(x: int) -> int:
        return x

    @app.agent
    async def agent() -> int:
        first = asyncio.create_task(call.options(key="tool-7")(1))
        return await first + await call.options(key="tool-8")(2)

    @app.agent
    async def twice() -> int:
        await call.options(key="same")(1)
        return await call.options(key="same")(2)

    assert result_of(app, agent) == 3
    with pytest.raises(RunFailed, match="already used in this super-step"):
        result_of(app, twice)


def test_a_transient_error_is_tried_again_and_a_final_one_is_not() -> None:
    app = fresh_app()
    tries: list[str] = []

    @step(retry=FAST)
    async def flaky() -> str:
        tries.append("flaky")
        if len(tries) < 3:
            raise ConnectionError("reset by peer")
        return "ok"

    @step(retry=FAST)
    async def broken() -> str:
        tries.append("broken")
        raise ValueError("no such account")

    @app.agent
    async def agent() -> tuple[str, str, str, int]:
        try:
            first = await flaky()
            await broken()
        except StepFailed as error:
            return first, error.type, error.message, error.attempts
        raise AssertionError

    assert result_of(app, agent) == ("ok", "ValueError", "no such account", 1)
    assert tries == ["flaky"] * 3 + ["broken"]


def test_attempts_are_bounded_and_shown() -> None:
    app = fresh_app()
    tries: list[int] = []

    @step(retry=FAST)
    async def never() -> str:
        tries.append(perdure.current().attempt)
        raise TimeoutError

    @app.agent
    async def agent() -> str:
        return await never()

    with pytest.raises(RunFailed, match="tried 3 times") as caught:
        result_of(app, agent)
    assert tries == [1, 2, 3]
    assert caught.value.error.failed_keys == ("never",)


def test_a_timeout_ends_an_attempt_from_start_to_finish() -> None:
    app = fresh_app()

    @step(timeout=0.02, retry=Retry(attempts=1))
    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    @app.agent
    async def agent() -> str:
        try:
            await hang()
        except StepFailed as error:
            return error.type
        return "never"

    assert result_of(app, agent) == "TimeoutError"


def test_a_plain_def_runs_in_a_thread_with_the_context_of_its_caller() -> None:
    app = fresh_app()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")

    @step
    def where() -> tuple[str, bool, str]:
        return tenant.get(), threading.current_thread() is threading.main_thread(), perdure.current().step or ""

    @app.agent
    async def agent() -> tuple[str, bool, str]:
        tenant.set("acme")
        return await where()

    assert result_of(app, agent) == ("acme", False, "where")


@step(cpu="process")
def pid_of_pool(x: int) -> tuple[int, int]:
    return x, os.getpid()


def test_cpu_process_runs_in_another_process() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> tuple[int, int]:
        return await pid_of_pool(7)

    x, pid = result_of(app, agent)
    assert x == 7
    assert pid != os.getpid()


def test_any_callable_can_be_a_step_also_a_method_and_a_decorated_method() -> None:
    app = fresh_app()

    class Client:
        async def create(self, text: str) -> dict[str, str]:
            return {"text": text}

        @step
        async def embed(self, text: str) -> list[int]:
            return [len(text)]

    client = Client()
    ask = step(client.create, name="ask", returns=dict[str, str])

    @app.agent
    async def agent() -> list[Any]:
        return [await ask("hi"), await client.embed("four")]

    assert result_of(app, agent) == [{"text": "hi"}, [4]]


def test_retry_of_a_failed_run_keeps_what_succeeded() -> None:
    app = fresh_app()
    calls: list[str] = []

    @step
    async def charge() -> str:
        calls.append("charge")
        return "receipt"

    @step
    async def model() -> str:
        calls.append("model")
        if calls.count("model") < 3:
            raise ValueError("overloaded")
        return "done"

    @app.agent
    async def agent() -> str:
        receipt = await charge()
        return receipt + await model()

    assert result_after_retries(app, agent, failures=2) == "receiptdone"
    assert calls == ["charge", "model", "model", "model"]


def test_an_agent_with_a_retry_policy_tries_its_run_again_by_itself() -> None:
    app = fresh_app()
    calls: list[str] = []

    @step(retry=Retry(attempts=1))
    async def model() -> str:
        calls.append("model")
        if len(calls) < 3:
            raise ConnectionError("away")
        return "done"

    @app.agent(retry=Retry(attempts=3, delay_s=0.01, retry_on=StepFailed))
    async def agent() -> str:
        return await model()

    @app.agent(retry=Retry(attempts=2, delay_s=0.01, retry_on=KeyError))
    async def hopeless() -> str:
        calls.append("hopeless")
        raise KeyError("x")

    assert result_of(app, agent) == "done"
    with pytest.raises(RunFailed):
        result_of(app, hopeless)
    assert calls == ["model"] * 3 + ["hopeless"] * 2


def test_verbs_outside_an_agent_say_so() -> None:
    with pytest.raises(NotInRun, match="outside of an agent"):
        perdure.now()
    with pytest.raises(NotInRun, match="outside of a run"):
        perdure.current()


def test_what_an_agent_leaves_running_ends_with_it() -> None:
    app = fresh_app()
    ended: list[str] = []

    @step
    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("told")

    tasks: list[Any] = []

    @app.agent
    async def agent() -> str:
        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert result_of(app, agent) == "done"
    assert ended == ["told"]


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_durability_sync_goes_on_only_when_the_record_is_on_disk(
    durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app(durability=durability)
    order: list[str] = []
    agent_went_on = asyncio.Event()
    commit = MemoryStore.commit

    async def slow_commit(self: MemoryStore, worker: int, changes: Any) -> Any:
        if not order and durability == "async":
            await agent_went_on.wait()  # a pipelined agent gets past its step while the commit still hangs
        outcome = await commit(self, worker, changes)
        order.append("committed")
        return outcome

    monkeypatch.setattr(MemoryStore, "commit", slow_commit)

    @step
    async def one() -> int:
        return 1

    @app.agent
    async def agent() -> None:
        await one()
        order.append("agent")
        agent_went_on.set()

    result_of(app, agent)
    first = {"sync": "committed", "async": "agent"}
    assert order[0] == first[durability]
