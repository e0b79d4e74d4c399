"""Runs that are recorded and replayed, in one call each, and the steps they are made of."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import perdure
from perdure import Again, App, Retry, RunFailed, RunHeld, StepFailed
from perdure.testing import History, Replayed, record_history, replay
from tests.runtime.world import fresh_app, working

executed: list[str] = []


@perdure.step
async def search(query: str) -> list[str]:
    executed.append(query)
    return [query, query * 2]


@perdure.step(retry=Retry(attempts=2, delay_s=0))
async def flaky(query: str) -> str:
    if perdure.current().attempt == 1:
        raise ConnectionError("gone")
    return query


@perdure.step
async def refuse(query: str) -> str:
    raise ValueError(f"no {query}")


@perdure.step
def large(size: int) -> str:
    return "x" * size


@dataclass
class Seen:
    items: list[str] = field(default_factory=list)


def shop(app: App) -> Any:
    """An agent that does a bit of everything, in three super-steps."""

    @app.agent
    async def order(item: str, *, more: int = 2, state: Seen) -> str | Again:
        hits = await asyncio.gather(*(search(f"{item}{n}") for n in range(3)))
        state.items += [item, await flaky(item), await large(40_000)]
        try:
            await refuse(item)
        except StepFailed as error:
            state.items.append(error.message)
        state.items.append(f"{perdure.now():%Y} {perdure.random()} {perdure.uuid4()} {perdure.current().run_id}")
        if more:
            return Again(hits[0][1], more=more - 1)
        async with asyncio.TaskGroup() as group:
            last = group.create_task(search.options(key="the last")(item))
        return last.result()[1]

    return order


async def two_searches() -> str:
    first = await search("tea")
    second, third = await asyncio.gather(search("milk"), search("sugar"))
    return f"{first[0]} {second[0]} {third[0]}"


def recorded(app: App, agent: Any, *args: Any, **options: Any) -> History:
    """The history of one run that was executed until it ended or was held."""

    async def main() -> History:
        async with working(app):
            handle = await app.start(agent, *args, **options)
            try:
                await handle.result(timeout=20)
            except (RunFailed, RunHeld):
                pass
            return await record_history(app, handle.run_id)

    return asyncio.run(main())


def replayed(app: App, history: History, **options: Any) -> Replayed:
    """The outcome of a replay on this app."""
    return asyncio.run(replay(app, history, **options))


def findings(outcome: Replayed) -> list[tuple[str, int, str]]:
    """The differences, without their texts."""
    return [(each.finding.value, each.super_step, each.where) for each in outcome.differences]


def changed(original: Any, name: str = "agent", **options: Any) -> tuple[History, App]:
    """A run of an agent, and an app for the code that comes after it."""
    app = fresh_app()
    return recorded(app, app.agent(name=name)(original), **options), fresh_app()
