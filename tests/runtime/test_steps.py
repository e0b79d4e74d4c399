"""What a step promises inside an agent."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import perdure
from perdure import (
    Again,
    NotInRun,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    RunFailed,
    RunHeld,
    StepFailed,
    UsageError,
    step,
)
from perdure.store.memory import MemoryStore
from tests.runtime.world import fresh_app, result_of, working

FAST = Retry(attempts=3, delay_s=0.001, jitter=0)


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    when: datetime
    colour: Colour
    seen: set[str]


def test_the_live_value_of_a_step_is_its_decoded_record() -> None:
    app = fresh_app()
    made: list[Any] = []

    @step
    async def locate() -> Point:
        made.append(Point(1, datetime(2026, 1, 2, tzinfo=UTC), Colour.RED, {"a"}))
        return made[-1]

    @app.agent
    async def agent() -> bool:
        point = await locate()
        return point == made[0] and point is not made[0] and isinstance(point.colour, Colour)

    assert result_of(app, agent) is True


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


@pytest.mark.parametrize("value", [10**400, "\ud800", {"a": ["\udfff"]}, object(), {1, 2}], ids=repr)
def test_c16_a_value_that_cannot_be_recorded_is_refused_at_the_step(value: Any) -> None:
    app = fresh_app()

    @step
    async def make():  # type: ignore[no-untyped-def]
        return value

    @app.agent
    async def agent() -> str:
        try:
            await make()
        except NotSerializable as error:
            return str(error)
        return "recorded"

    assert "cannot be recorded at" in result_of(app, agent)


def test_c16_odd_values_round_trip() -> None:
    app = fresh_app()
    odd = {"nul\0key": "a\0b", "inf": [float("inf"), -0.0], "empty": [{}, [], "", b""], "big": 2**64 - 1}

    @step
    async def make() -> Any:
        return odd

    @step
    async def nan() -> float:
        return float("nan")

    @app.agent
    async def agent() -> tuple[bool, bool]:
        got = await nan()
        return await make() == odd, got != got

    assert result_of(app, agent) == (True, True)


def test_a_value_over_the_limit_is_refused_and_a_large_one_is_kept() -> None:
    app = fresh_app()

    @step
    async def make(size: int) -> bytes:
        return b"x" * size

    @app.agent
    async def agent() -> tuple[int, str]:
        large = await make(1_000_000)
        try:
            await make(65 * 1024 * 1024)
        except PayloadTooLarge as error:
            return len(large), str(error)
        return 0, ""

    size, message = result_of(app, agent)
    assert size == 1_000_000
    assert "the limit is" in message


def test_c15_an_exception_with_a_keyword_only_constructor_is_recorded_as_text() -> None:
    app = fresh_app()

    class Odd(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")

    @app.agent
    async def agent() -> None:
        raise Odd(code=7)

    with pytest.raises(RunFailed, match="code 7") as caught:
        result_of(app, agent)
    assert "Odd" in caught.value.error.type
    assert "raise Odd(code=7)" in caught.value.error.traceback


def test_other_arguments_under_the_same_key_hold_the_run_as_diverged() -> None:
    app = fresh_app()
    version = ["one"]

    @step
    async def look(word: str) -> str:
        return word

    @step
    async def crash() -> str:
        if version[0] == "one":
            version[0] = "two"
            raise ValueError("deploy")
        return "on"

    @app.agent
    async def agent() -> str:
        word = await look(version[0])
        return word + await crash()

    async def main() -> Any:
        async with working(app):
            handle = await app.start(agent)
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            await app.retry(handle.run_id)
            with pytest.raises(RunHeld, match="recorded") as caught:
                await handle.result(timeout=20)
            held = await handle.status()
            version[0] = "one"
            await app.release(handle.run_id)
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            return caught.value.reason, held.held_reason, held.waiting_for

    reason, held_reason, waiting_for = asyncio.run(main())
    assert reason == held_reason == "diverged"
    assert "'two'" in waiting_for


def test_ignore_args_makes_any_arguments_the_same_call() -> None:
    app = fresh_app()
    seen: list[int] = []

    @step(ignore_args=True)
    async def look(x: int) -> int:
        seen.append(x)
        return x

    @step
    async def fail_once() -> int:
        if len(seen) == 1:
            seen.append(0)
            raise ValueError("once")
        return 0

    @app.agent
    async def agent() -> int:
        return await look(len(seen)) + await fail_once()

    async def main() -> int:
        async with working(app):
            handle = await app.start(agent)
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            await app.retry(handle.run_id)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == 0
    assert seen == [0, 0]


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

    async def main() -> str:
        async with working(app):
            handle = await app.start(agent)
            for _ in range(2):
                with pytest.raises(RunFailed):
                    await handle.result(timeout=20)
                await app.retry(handle.run_id)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) == "receiptdone"
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


def test_now_random_and_uuid_are_recorded() -> None:
    app = fresh_app()
    seen: list[tuple[Any, ...]] = []

    @app.agent
    async def agent() -> bool:
        seen.append((perdure.now(), perdure.random(), perdure.uuid4()))
        if len(seen) == 1:
            raise ValueError("once")
        return seen[0] == seen[1]

    async def main() -> bool:
        async with working(app):
            handle = await app.start(agent)
            with pytest.raises(RunFailed):
                await handle.result(timeout=20)
            await app.retry(handle.run_id)
            return await handle.result(timeout=20)

    assert asyncio.run(main()) is True


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
def test_durability_sync_goes_on_only_when_the_record_is_on_disk(durability: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda: step(timeout=-1), "-1 is not a duration"),
        (lambda: step(timeout="soon"), "soon"),
        (lambda: step(retry=0), "attempts"),
        (lambda: step(retry="twice"), "perdure.Retry"),
        (lambda: step(durability="maybe"), "sync"),
        (lambda: step(7), "callable"),
        (lambda: step(cpu="gpu")(len), "thread"),
        (lambda: step(name="x" * 500)(len), "at most"),
        (lambda: step(name="a\0b")(len), "NUL"),
        (lambda: Retry(delay_s=-1), "delay"),
    ],
)
def test_nonsense_in_a_declaration_is_refused_with_the_remedy(make: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy):
        made = make()
        made(lambda: None) if callable(made) else None


def test_again_of_a_wrong_type_fails_the_run_with_the_signature() -> None:
    app = fresh_app()

    @app.agent
    async def agent(n: int) -> Again:
        return Again("not a number", extra=1)

    with pytest.raises(RunFailed, match="agent"):
        result_of(app, agent, 1)
