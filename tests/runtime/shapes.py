"""Shapes of waiting: agents that ask questions in every way that asyncio has of waiting for several things."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

import perdure

Agent = Callable[[], Coroutine[Any, Any, Any]]

begun: list[str] = []
"""The bodies of steps that have begun, since a test cleared it."""


@perdure.step
async def mark(what: str) -> str:
    """A step that can be counted."""
    begun.append(what)
    return what


@perdure.step
async def fail(what: str) -> None:
    """A step that fails."""
    begun.append(what)
    raise ValueError(what)


async def ask(name: str) -> Any:
    """Ask a question with steps around it."""
    await mark(f"before {name}")
    answer = await perdure.interrupt(name=name)
    await mark(f"after {name}")
    return answer


@dataclass(frozen=True)
class Shape:
    """An agent, the questions that are answered, in this order, each with its name, and what it returns then."""

    agent: Agent
    answers: tuple[str, ...]
    result: Any

    @property
    def name(self) -> str:
        return self.agent.__name__


SHAPES: list[Shape] = []


def shape(*answers: str, result: Any) -> Callable[[Agent], Agent]:
    def add(agent: Agent) -> Agent:
        SHAPES.append(Shape(agent, answers, result))
        return agent

    return add


@shape("a", result="a")
async def plain() -> Any:
    return await ask("a")


@shape("a", "b", "c", result=["a", "b", "c"])
async def one_after_the_other() -> Any:
    return [await ask(name) for name in "abc"]


@shape("b", "a", result=["a", "b"])
async def gathered() -> Any:
    return list(await asyncio.gather(ask("a"), ask("b")))


@shape("c", "b", "a", result=[["a", "b"], "c"])
async def gathered_in_gathered() -> Any:
    inner, last = await asyncio.gather(asyncio.gather(ask("a"), ask("b")), ask("c"))
    return [list(inner), last]


@shape("b", "a", result=["a", "b", "StepFailed"])
async def gathered_with_failures() -> Any:
    found = await asyncio.gather(ask("a"), ask("b"), fail("f"), return_exceptions=True)
    return [type(each).__name__ if isinstance(each, Exception) else each for each in found]


@shape("b", "a", result=["a", "b"])
async def in_a_task_group() -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(name)) for name in "ab"]
    return [task.result() for task in tasks]


@shape("b", "c", "a", result=["a", ["b", "c"]])
async def in_nested_task_groups() -> Any:
    async def inner() -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask(name)) for name in "bc"]
        return [task.result() for task in tasks]

    async with asyncio.TaskGroup() as group:
        first = group.create_task(ask("a"))
        second = group.create_task(inner())
    return [first.result(), second.result()]


@shape("b", "a", result=["a", "b"])
async def in_the_body_of_a_task_group() -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ask("a"))
        second = await ask("b")
    return [task.result(), second]


@shape("b", "a", result=["a", "b"])
async def waited_for_all() -> Any:
    tasks = [asyncio.create_task(ask(name)) for name in "ab"]
    done, _ = await asyncio.wait(tasks)
    return sorted(task.result() for task in done)


@shape("b", result=["b", 1])
async def waited_for_the_first() -> Any:
    tasks = [asyncio.create_task(ask(name)) for name in "ab"]
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return [done.pop().result(), len(left)]


@shape("a", result="a")
async def shielded() -> Any:
    return await asyncio.shield(ask("a"))


@shape("b", "a", result=["a", "b"])
async def shielded_tasks() -> Any:
    tasks = [asyncio.create_task(ask(name)) for name in "ab"]
    return list(await asyncio.gather(*map(asyncio.shield, tasks)))


@shape("b", "a", result=["a", "b"])
async def as_they_complete() -> Any:
    tasks = [asyncio.create_task(ask(name)) for name in "ab"]
    return sorted([await each for each in asyncio.as_completed(tasks)])


@shape("a", result="a")
async def waited_for_without_a_limit() -> Any:
    return await asyncio.wait_for(ask("a"), timeout=None)


@shape("b", "a", result=["a", "b"])
async def a_task_awaited_later() -> Any:
    task = asyncio.create_task(ask("a"))
    await mark("between")
    second = await ask("b")
    return [await task, second]


@shape("a", result="a")
async def a_task_that_nobody_awaits() -> Any:
    left = asyncio.create_task(ask("b"))
    try:
        return await ask("a")
    finally:
        assert left is not None


@shape("b", "a", result=["a", "b"])
async def a_gathering_awaited_later() -> Any:
    gathering = asyncio.gather(ask("a"))
    second = await ask("b")
    return [*(await gathering), second]


@shape("a", "b", result=["a", "b"])
async def an_async_generator() -> Any:
    async def stream() -> AsyncIterator[Any]:
        for name in "ab":
            yield await ask(name)

    return [each async for each in stream()]


@shape("a", result=["a", "closed"])
async def an_async_generator_left_open() -> Any:
    async def stream() -> AsyncIterator[Any]:
        try:
            yield await ask("a")
            yield await ask("never")
        finally:
            closed.append("closed")

    closed: list[str] = []
    found = []
    async with contextlib.aclosing(stream()) as answers:
        async for each in answers:
            found.append(each)
            break
    return [*found, *closed]


@shape("a", result=["in", "a", "out"])
async def in_context_managers() -> Any:
    said: list[str] = []

    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[None]:
        said.append("in")
        try:
            yield
        finally:
            said.append("out")

    async with around():
        said.append(await ask("a"))
    return said


@shape("a", result=["a", "out 2", "out 1"])
async def in_an_exit_stack() -> Any:
    said: list[str] = []

    @contextlib.asynccontextmanager
    async def around(what: str) -> AsyncIterator[None]:
        yield
        said.append(what)

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(around("out 1"))
        await stack.enter_async_context(around("out 2"))
        said.append(await ask("a"))
    return said


@shape("a", "b", result=["a", "finally", "b"])
async def tried_and_finally() -> Any:
    said = []
    try:
        said.append(await ask("a"))
    except Exception:
        said.append("no error came")
    finally:
        said.append("finally")
    said.append(await ask("b"))
    return said


@shape("a", result=["a", "StepFailed"])
async def an_error_caught_around_a_wait() -> Any:
    try:
        answer = await ask("a")
        await fail("then")
    except Exception as error:
        return [answer, type(error).__name__]


@shape("a", "b", result=["a", "b"])
async def with_a_lock_of_its_own() -> Any:
    lock = asyncio.Lock()
    async with lock:
        first = await ask("a")
    async with asyncio.Semaphore(1):
        return [first, await ask("b")]


@shape("a", result="a")
async def through_many_coroutines() -> Any:
    async def down(depth: int) -> Any:
        return await (down(depth - 1) if depth else ask("a"))

    return await down(200)


@shape("a", result="a")
async def through_an_awaitable() -> Any:
    class Lazily:
        def __await__(self) -> Generator[Any, None, Any]:
            return ask("a").__await__()

    return await Lazily()


@shape("a", "b", result=["a", "b"])
async def in_tasks_of_tasks() -> Any:
    async def outer() -> Any:
        task = asyncio.create_task(ask("a"))
        await asyncio.wait([task])
        return task.result()

    return [await asyncio.create_task(outer()), await asyncio.ensure_future(ask("b"))]


@shape("a", "b", result=["a", "x", "y", "b", "z"])
async def tasks_after_answers() -> Any:
    first = await ask("a")
    between = await asyncio.gather(mark("x"), mark("y"))
    second = await ask("b")
    return [first, *between, second, *await asyncio.gather(mark("z"))]


@shape("a", "b", "c", result=["a", "b", "c"])
async def a_few_at_a_time() -> Any:
    slots = asyncio.Semaphore(1)

    async def one(name: str) -> Any:
        async with slots:
            return await ask(name)

    return list(await asyncio.gather(*(one(name) for name in "abc")))


@shape("a", "b", result=["a", "b"])
async def one_at_a_time_with_a_lock_given() -> Any:
    async def one(lock: asyncio.Lock, name: str) -> Any:
        await lock.acquire()
        try:
            return await ask(name)
        finally:
            lock.release()

    lock = asyncio.Lock()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(lock, name)) for name in "ab"]
    return [task.result() for task in tasks]


@shape("a", "b", result=["a", "b", "end"])
async def a_producer_and_a_consumer() -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue(1)

    async def produce() -> None:
        for name in "ab":
            await queue.put(await ask(name))
        await queue.put("end")

    producer = asyncio.create_task(produce())
    found = [await queue.get()]
    while found[-1] != "end":
        found.append(await queue.get())
    await producer
    return found


@shape("a", result=["a", "told"])
async def an_event_of_its_own() -> Any:
    event = asyncio.Event()

    async def asks() -> Any:
        answer = await ask("a")
        event.set()
        return answer

    async def waits() -> str:
        await event.wait()
        return "told"

    return list(await asyncio.gather(asks(), waits()))


@shape("a", result=["a", "told"])
async def a_condition_of_its_own() -> Any:
    condition = asyncio.Condition()
    answers: list[Any] = []

    async def asks() -> None:
        answers.append(await ask("a"))
        async with condition:
            condition.notify_all()

    async def waits() -> str:
        async with condition:
            await condition.wait_for(lambda: answers)
        return "told"

    _, told = await asyncio.gather(asks(), waits())
    return [*answers, told]
