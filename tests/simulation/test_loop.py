"""The virtual loop: order, timers, other loops, generators, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.world import World
from tests.simulation.virtual import pause


def lived(act: Coroutine[Any, Any, Any], *, deadline_s: float = 100.0) -> tuple[Any, World, VirtualLoop]:
    """What a coroutine returns in a world of its own."""
    world = World(1)
    loop = world.loop("here")
    task = loop.create_task(act)
    assert world.run(task.done, deadline_s=deadline_s)
    return task.result(), world, loop


def test_callbacks_run_in_the_order_they_were_asked_for() -> None:
    async def act() -> list[int]:
        seen: list[int] = []
        for n in range(5):
            asyncio.get_running_loop().call_soon(seen.append, n)
        await asyncio.sleep(0)
        return seen

    assert lived(act())[0] == [0, 1, 2, 3, 4]


def test_timers_run_when_they_are_due_and_those_of_one_moment_as_they_were_made() -> None:
    async def act() -> list[str]:
        seen: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, seen.append, "late")
        loop.call_later(1.0, seen.append, "first")
        loop.call_later(1.0, seen.append, "second")
        loop.call_later(0.5, seen.append, "cancelled").cancel()
        await pause(3)
        return seen

    assert lived(act())[0] == ["first", "second", "late"]


def test_a_year_of_sleep_takes_no_time() -> None:
    _, world, _ = lived(pause(365 * 86_400), deadline_s=1e9)
    assert world.now == 365 * 86_400


def test_a_deadline_comes_in_virtual_time() -> None:
    async def act() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await pause(3600)
        return asyncio.get_running_loop().time()

    assert lived(act())[0] == 60


def test_nothing_runs_after_the_time_that_was_given() -> None:
    world = World(1)
    seen: list[str] = []
    world.loop("here").call_later(10.0, seen.append, "too late")
    assert not world.run(lambda: bool(seen), deadline_s=9.0)
    assert (seen, world.now) == ([], 9.0)


def test_loops_of_one_world_wake_each_other() -> None:
    world = World(1)
    here, there = world.loop("here"), world.loop("there")
    answered: asyncio.Future[str] = here.create_future()
    there.call_later(1.0, here.call_soon_threadsafe, answered.set_result, "well")
    assert world.run(answered.done, deadline_s=2.0)
    assert answered.result() == "well"


def test_the_order_of_turns_is_the_seeds() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), []
        for n in range(6):
            world.loop(str(n)).call_soon(seen.append, n)
        world.run(lambda: len(seen) == 6, deadline_s=1.0)
        return seen

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(10)}) > 1


def test_a_generator_that_was_left_open_is_closed_on_its_loop() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            await pause(1.0)
            closed.append("closed")

    async def act() -> None:
        async for _ in numbers():
            break
        await pause(2.0)

    lived(act())
    assert closed == ["closed"]


def test_a_function_for_an_executor_is_called_at_once() -> None:
    async def act() -> tuple[int, type]:
        failing = asyncio.get_running_loop().run_in_executor(None, int, "seven")
        return await asyncio.to_thread(lambda: 7), type(failing.exception())

    assert lived(act())[0] == (7, ValueError)


def test_unwinding_ends_tasks_that_wait_and_those_that_clean_up() -> None:
    ended: list[str] = []

    async def cleans_up() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await pause(5.0)
            ended.append("cleaned up")

    async def refuses_once() -> None:
        try:
            await pause(1e6)
        except asyncio.CancelledError:
            ended.append("refused")
        await pause(1e6)

    world = World(1)
    loop = world.loop("here")
    for each in (cleans_up(), refuses_once()):
        loop.create_task(each)
    world.run(lambda: False, deadline_s=0.1)
    assert loop.unwind()
    assert (sorted(ended), world.now, loop.tasks) == (["cleaned up", "refused"], 0.1, {})


def test_unwinding_gives_up_on_a_task_that_never_ends() -> None:
    async def never_ends() -> None:
        while True:
            try:
                await pause(1.0)
            except asyncio.CancelledError:
                continue

    world = World(1)
    loop = world.loop("here")
    task = loop.create_task(never_ends())
    world.run(lambda: False, deadline_s=0.1)
    assert not loop.unwind()
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()


def test_what_nobody_caught_is_kept() -> None:
    async def act() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "here"})

    assert lived(act())[2].failures == [{"message": "here"}]


def test_what_only_the_operating_system_has_is_refused_as_asyncio_refuses_it() -> None:
    loop = World(1).loop("here")
    for error in (UsageError, NotImplementedError):
        with pytest.raises(error, match="add_reader: there are no sockets"):
            loop.add_reader(0, print)
