"""What is recorded, what comes back, and what is refused."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

import perdure
from perdure import (
    Again,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    RunFailed,
    RunHeld,
    UsageError,
    step,
)
from tests.runtime.world import fresh_app, result_after_retries, result_of, working


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


@pytest.mark.parametrize(
    "value",
    [10**400, "\ud800", {"a": ["\udfff"]}, object(), {1, 2}],
    ids=["huge", "surrogate", "nested", "object", "set"],
)
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

    assert result_after_retries(app, agent) == 0
    assert seen == [0, 0]


def test_now_random_and_uuid_are_recorded() -> None:
    app = fresh_app()
    seen: list[tuple[Any, ...]] = []

    @app.agent
    async def agent() -> bool:
        seen.append((perdure.now(), perdure.random(), perdure.uuid4()))
        if len(seen) == 1:
            raise ValueError("once")
        return seen[0] == seen[1]

    assert result_after_retries(app, agent) is True


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
