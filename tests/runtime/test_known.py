"""What a look at a run's tasks must not take for known: what somebody else may end, by ways that are easy to miss."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime.shapes import ask
from tests.runtime.world import asked, fresh_app, idle, working

gates: list[threading.Event] = []
kept: list[Any] = []


def opened() -> str:
    """On another thread: what ends when the test says so."""
    gates[0].wait(30)
    return "answer"


async def completes_by_a_thread() -> Any:
    loop = asyncio.get_running_loop()
    own = asyncio.ensure_future(ask("a"))
    first = await next(iter(asyncio.as_completed([own, loop.run_in_executor(None, opened)])))
    own.cancel()
    return first


async def completes_by_a_gathering_with_a_thread() -> Any:
    loop = asyncio.get_running_loop()
    own = asyncio.ensure_future(ask("a"))
    both = asyncio.gather(loop.run_in_executor(None, opened))
    (first,) = await next(iter(asyncio.as_completed([own, both])))
    own.cancel()
    return first


async def a_shield_around_a_gathering_with_a_thread() -> Any:
    loop = asyncio.get_running_loop()
    return (await asyncio.shield(asyncio.gather(ask("a"), loop.run_in_executor(None, opened))))[1]


async def a_wait_for_such_a_shield() -> Any:
    loop = asyncio.get_running_loop()
    shielded = asyncio.shield(asyncio.gather(ask("a"), loop.run_in_executor(None, opened)))
    done, _ = await asyncio.wait([shielded])
    return done.pop().result()[1]


async def a_gathering_with_such_a_shield() -> Any:
    loop = asyncio.get_running_loop()
    shielded = asyncio.shield(asyncio.gather(ask("a"), loop.run_in_executor(None, opened)))
    return (await asyncio.gather(asyncio.shield(shielded)))[0][1]


class Limit:
    """A limit such as a library may have: its timer is its own affair."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.handle = asyncio.get_running_loop().call_later(3600, task.cancel)


class SlottedLimit:
    """The same, with slots."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle = asyncio.get_running_loop().call_later(3600, print)


async def a_timer_of_an_object() -> Any:
    limit = Limit()
    try:
        return await ask("a")
    finally:
        limit.handle.cancel()


async def a_timer_of_an_object_with_slots() -> Any:
    limit = SlottedLimit()
    try:
        return await ask("a")
    finally:
        limit.handle.cancel()


async def a_timer_of_its_own_object() -> Any:
    class Agent(Limit):
        async def work(self) -> Any:
            return await ask("a")

    agent = Agent()
    try:
        return await agent.work()
    finally:
        agent.handle.cancel()


async def an_event_that_somebody_knows_weakly() -> Any:
    event = asyncio.Event()
    kept[:] = [weakref.ref(event)]
    asking = asyncio.ensure_future(ask("a"))
    await event.wait()
    asking.cancel()
    return "answer"


def answer_by_thread() -> None:
    gates[0].set()


def answer_by_event() -> None:
    kept[0]().set()


Unseen = Callable[[], Awaitable[Any]]

RAW: list[tuple[Unseen, Callable[[], None] | None]] = [
    (completes_by_a_thread, answer_by_thread),
    (completes_by_a_gathering_with_a_thread, answer_by_thread),
    (an_event_that_somebody_knows_weakly, answer_by_event),
    (a_shield_around_a_gathering_with_a_thread, answer_by_thread),
    (a_wait_for_such_a_shield, answer_by_thread),
    (a_gathering_with_such_a_shield, answer_by_thread),
    (a_timer_of_an_object, None),
    (a_timer_of_an_object_with_slots, None),
    (a_timer_of_its_own_object, None),
]


@pytest.mark.parametrize(("code", "end"), RAW, ids=[code.__name__ for code, _ in RAW])
def test_a_run_stays_in_memory_that_somebody_else_may_send_on(code: Unseen, end: Callable[[], None] | None) -> None:
    gates[:] = [threading.Event()]
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        return await code()

    async def main() -> Any:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            question = (await asked(app, handle))["a"]
            await idle()
            assert ((await handle.status()).state, worker.running) == ("running", 1)
            if end is not None:
                end()
            if end is None or "shield" in code.__name__:  # which need both
                await app.resume(question, "answer")
            result = await handle.result(timeout=20)
            assert (await handle.status()).attempt == 1
            return result

    try:
        assert asyncio.run(main()) == "answer"
    finally:
        gates[0].set()
