"""Any shape of waiting: trees of asyncio's ways of waiting, with steps in them, answered in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import perdure
from tests.runtime.world import crash, fresh_app, until, working

Tree = Any
"""A leaf's kind, or the name of a way of waiting with the trees below it."""

begun: list[str] = []


@perdure.step
async def work(name: str) -> str:
    begun.append(name)
    await asyncio.sleep(0)
    return name


@perdure.step
async def quick(name: str) -> str:
    begun.append(name)
    return name


@perdure.step
async def slow(name: str) -> str:
    begun.append(name)
    return str(await asyncio.get_running_loop().run_in_executor(None, lambda: name))


async def _group(below: list[Tree]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(each)) for each in below]
    return [task.result() for task in tasks]


async def _wait(below: list[Tree]) -> list[Any]:
    tasks = [asyncio.ensure_future(run(each)) for each in below]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def _first_of(below: list[Tree]) -> list[Any]:
    """Wait for one after the other to be the first; all of them in the end."""
    tasks = [asyncio.ensure_future(run(each)) for each in below]
    left = set(tasks)
    while left:
        _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    return [task.result() for task in tasks]


async def _completed(below: list[Tree]) -> list[Any]:
    tasks = [asyncio.ensure_future(run(each)) for each in below]
    for each in asyncio.as_completed(tasks):
        await each
    return [task.result() for task in tasks]


async def _stream(below: list[Tree]) -> list[Any]:
    async def stream() -> AsyncIterator[Any]:
        for each in below:
            yield await run(each)

    return [each async for each in stream()]


async def _shields(below: list[Tree]) -> list[Any]:
    return [await asyncio.shield(task) for task in [asyncio.ensure_future(run(each)) for each in below]]


async def _gather(below: list[Tree]) -> list[Any]:
    return list(await asyncio.gather(*map(run, below)))


async def _later(below: list[Tree]) -> list[Any]:
    gathering = asyncio.gather(*map(run, below))
    await asyncio.gather(asyncio.create_task(asyncio.sleep(0)))
    return list(await gathering)


async def _few(below: list[Tree]) -> list[Any]:
    slots = asyncio.Semaphore(1)

    async def one(each: Tree) -> Any:
        async with slots:
            return await run(each)

    return list(await asyncio.gather(*map(one, below)))


async def _queued(below: list[Tree]) -> list[Any]:
    queue: asyncio.Queue[Any] = asyncio.Queue(1)

    async def put() -> None:
        for each in below:
            await queue.put(await run(each))

    task = asyncio.create_task(put())
    found = [await queue.get() for _ in below]
    await task
    return found


async def _in_turn(below: list[Tree]) -> list[Any]:
    return [await run(each) for each in below]


WAYS: dict[str, Callable[[list[Tree]], Awaitable[list[Any]]]] = {
    "group": _group,
    "wait": _wait,
    "first": _first_of,
    "completed": _completed,
    "stream": _stream,
    "shields": _shields,
    "gather": _gather,
    "later": _later,
    "few": _few,
    "queued": _queued,
    "in turn": _in_turn,
}

LEAVES = ["ask", "ask", "work", "quick", "slow"]

trees: st.SearchStrategy[Tree] = st.recursive(
    st.sampled_from(LEAVES),
    lambda below: st.tuples(st.sampled_from(sorted(WAYS)), st.lists(below, min_size=1, max_size=3)),
    max_leaves=10,
)


def named(tree: Tree, path: str = "x") -> Tree:
    """The tree with names at its leaves."""
    if isinstance(tree, str):
        return tree, path
    way, below = tree
    return way, [named(each, f"{path}{number}") for number, each in enumerate(below)]


def result_of(tree: Tree) -> Any:
    """What the agent returns for it."""
    _, below = tree
    return below if isinstance(below, str) else [result_of(each) for each in below]


def questions_of(tree: Tree) -> list[str]:
    way, below = tree
    if isinstance(below, str):
        return [below] if way == "ask" else []
    return [name for each in below for name in questions_of(each)]


async def run(tree: Tree) -> Any:
    """Wait in the tree's way."""
    way, below = tree
    match way:
        case "ask":
            before = await quick(f"{below} before")
            answer = await perdure.interrupt(name=below)
            await work(f"{below} after")
            return answer if before else None
        case "work":
            return await work(below)
        case "quick":
            return await quick(below)
        case "slow":
            return await slow(below)
        case _:
            return await WAYS[way](below)


async def answered(app: Any, handle: Any, worker: Any, chance: random.Random, *, crashes: bool) -> Any:
    """The run's result. Each time that it is parked one of its questions is answered; sometimes its worker dies."""
    open_ones: list[Any] = []

    async def waits_or_has_ended() -> bool:
        state = (await handle.status()).state
        open_ones[:] = await app.interrupts(run_id=handle.run_id)
        return state == "completed" or (state == "waiting" and worker.running == 0)

    while True:
        await until(waits_or_has_ended, "it waits")
        if not open_ones:
            return await handle.result(timeout=20)
        question = chance.choice(open_ones)
        await app.resume(question.id, question.name)
        if crashes and chance.random() < 0.5:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            if worker.id is not None:
                await crash(app, worker)


@given(tree=trees, seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_run_of_any_shape_parks_wakes_and_does_every_step_once(tree: Tree, seed: int) -> None:
    shape = named(tree)
    app = fresh_app()
    begun.clear()

    @app.agent
    async def agent() -> Any:
        return await run(shape)

    async def main() -> Any:
        async with working(app, poll_s=30.0) as worker:
            handle = await app.start(agent)
            result = await answered(app, handle, worker, random.Random(seed), crashes=False)
            assert (await handle.status()).attempt == 1 + len(questions_of(shape))
            return result

    assert asyncio.run(main()) == result_of(shape)
    assert sorted(set(begun)) == sorted(begun)


@given(tree=trees, seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_a_run_of_any_shape_survives_crashes_between_its_answers(tree: Tree, seed: int) -> None:
    shape = named(tree)
    app = fresh_app()

    @app.agent
    async def agent() -> Any:
        return await run(shape)

    async def main() -> Any:
        async with working(app) as worker:
            handle = await app.start(agent)
            return await answered(app, handle, worker, random.Random(seed), crashes=True)

    assert asyncio.run(main()) == result_of(shape)
