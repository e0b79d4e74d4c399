"""The agents of an app's programs: a handful, and deterministic but for what the program decides.

Each app has its own, with a memory of its own: for each run, how often a body was tried, and how often the agent was
called. So an agent that fails the first two times fails the first two times on every store, however the stores differ
in speed, and whoever runs beside it (a run and its fork, say).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import perdure
from perdure import Again, App, Retry
from perdure.testing.differential.trading import BILLS, register_sinks, register_trading

TWICE: Final = Retry(attempts=2, delay_s=0.001, retry_on=ArithmeticError)
LARGE_CHARS: Final = 40_000
"""A result of this size does not lie in its row."""

MOMENT_S: Final = 0.01
"""What is waited for where time is to come: whoever parks goes on by itself, and soon."""

TIMED: Final = frozenset({"napping", "expiring", "limited"})
"""Agents that wait for such a time, and never for anybody."""

RACING: Final = TIMED | {"parenting", "reading", "writing"}
"""Agents that may or may not be parked when what they wait for comes: how often they were claimed is chance."""


@dataclass
class Tally:
    """The state of a thread that counts."""

    total: int = 0
    seen: list[int] = field(default_factory=list)


def app_on(url: str) -> App:
    """An app on this store, with its agents."""
    app = App("differential", store=url, billing=BILLS)
    memory: Counter[str] = Counter()
    _register_sound(app)
    _register_failing(app, memory)
    _register_waiting(app)
    _register_social(app)
    register_sinks(app)
    register_trading(app)
    return app


def _register_sound(app: App) -> None:
    """Agents that succeed."""

    @perdure.step
    async def double(number: int) -> int:
        return number * 2

    @perdure.step
    async def swell(number: int) -> str:
        return str(number) * LARGE_CHARS

    @app.agent
    async def line(number: int) -> int:
        """One step after another."""
        return await double(await double(number)) + await double(1)

    @app.agent
    async def fan(number: int) -> list[int]:
        """Steps beside each other."""
        return list(await asyncio.gather(*(double(number + n) for n in range(3))))

    @app.agent
    async def count(number: int, round: int = 1, *, state: Tally) -> int | Again:
        """Super-steps with a state that grows."""
        state.total += await double(number)
        state.seen.append(round)
        return Again(number, round + 1) if round < 3 else state.total

    @app.agent
    async def large(number: int) -> str:
        """A step whose result is a blob, and a result that is one."""
        return await swell(number)


def _register_failing(app: App, memory: Counter[str]) -> None:
    """Agents that fail, or that go another way when they are called again."""

    def again() -> int:
        """How often the run that asks has asked."""
        run = perdure.current().run_id
        memory[run] += 1
        return memory[run]

    @perdure.step(retry=TWICE)
    async def divide(name: str, failures: int) -> str:
        count = again()
        if count <= failures:
            raise ZeroDivisionError(f"try {count} of {name}")
        return f"try {count}"

    @perdure.step
    async def name_it(name: str) -> str:
        return name

    @app.agent
    async def shaky(name: str, failures: int) -> list[str]:
        """A step that fails so often, two tries a time."""
        return [await name_it(name), await divide(name, failures)]

    @app.agent
    async def careful(name: str, failures: int) -> str:
        """The same, and the failure is caught."""
        try:
            return await divide(name, failures)
        except perdure.StepFailed as error:
            return await name_it(error.type)

    @app.agent
    async def fickle(name: str) -> str:
        """Goes another way when it is called again, and fails the first time: a retry finds that it diverges."""
        count = again()
        await name_it(f"{name} {min(count, 2)}")
        if count == 1:
            raise ValueError(name)
        return name

    @app.agent(retry=Retry(attempts=2, delay_s=0.001, retry_on=LookupError))
    async def patient(name: str, failures: int) -> int:
        """Tried again as a whole."""
        count = again()
        if count <= failures:
            raise KeyError(name)
        return count


def _register_waiting(app: App) -> None:
    """Agents that wait for a person, for mail or for a time."""

    @perdure.step
    async def say(word: str) -> str:
        return word

    @app.agent
    async def asking(name: str) -> list[str]:
        """A question, then two at once; whoever cancels it hears a last word."""
        try:
            first = await perdure.interrupt({"may": name}, name="may", schema=bool, assignee="ann")
            both = await asyncio.gather(*(perdure.interrupt(n, name="which") for n in range(2)))
        finally:
            await say(f"{name} is done")
        return [await say(f"{name} {first}"), *map(str, both)]

    @app.agent
    async def expiring(name: str) -> str:
        """Questions that nobody answers in time: the answer by default, and the end."""
        answer = await perdure.interrupt(name, timeout=MOMENT_S, on_timeout=perdure.Default("nobody"))
        await perdure.interrupt(answer, timeout=MOMENT_S, on_timeout="cancel")
        return name

    @app.agent
    async def napping(number: int, round: int = 1, *, state: Tally) -> int | Again:
        """Sleeps beside each other, over super-steps."""
        await asyncio.gather(perdure.sleep(MOMENT_S), perdure.sleep(2 * MOMENT_S))
        state.total += number
        return Again(number, round + 1) if round < 2 else state.total

    @app.agent
    async def limited(name: str) -> str:
        """A limit that is reached, and one that is not."""
        async with perdure.timeout(3600):
            await say(name)
        try:
            async with perdure.timeout(MOMENT_S):
                await perdure.sleep(3600)
        except TimeoutError:
            return f"{name} was late"
        return name

    @app.agent
    async def reading(count: int) -> list[str]:
        """Mail: numbers first, then anything."""
        return [str(await perdure.receive(int if n == 0 else None)) for n in range(count)]


def _register_social(app: App) -> None:
    """Agents that write to others, or start them."""

    @app.agent
    async def writing(thread_id: str, number: int) -> str:
        """Messages to a thread that may not be there."""
        try:
            for n in range(number):
                await perdure.send(thread_id, n if n % 2 else f"letter {n}")
        except perdure.NotFound:
            return f"nobody at {thread_id}"
        return f"{number} to {thread_id}"

    @app.agent
    async def parenting(name: str, failures: int) -> list[str]:
        """Children: one that ends, one that may fail, one that waits, and one that outlives it."""
        await perdure.start("asking", f"{name} apart", detached=True)
        waiting = await perdure.start("asking", name)
        found = [str(await perdure.call("line", failures))]
        try:
            found += await perdure.call("shaky", name, failures)
        except perdure.RunFailed as error:
            found.append(type(error).__name__)
        return [*found, *await waiting]
