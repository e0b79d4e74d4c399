"""The agents of an app's programs: a handful, and deterministic but for what the program decides.

Each app has its own, with a memory of its own: how often a body was tried, and how often an agent was called. So an
agent that fails the first two times fails the first two times on every store, however the stores differ in speed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import perdure
from perdure import Again, App, Retry

TWICE: Final = Retry(attempts=2, delay_s=0.001, retry_on=ArithmeticError)
LARGE_CHARS: Final = 40_000
"""A result of this size does not lie in its row."""


@dataclass
class Tally:
    """The state of a thread that counts."""

    total: int = 0
    seen: list[int] = field(default_factory=list)


def app_on(url: str) -> App:
    """An app on this store, with its agents."""
    app = App("differential", store=url)
    memory: Counter[str] = Counter()
    _register_sound(app)
    _register_failing(app, memory)
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

    @perdure.step(retry=TWICE)
    async def divide(name: str, failures: int) -> str:
        memory[name] += 1
        if memory[name] <= failures:
            raise ZeroDivisionError(f"try {memory[name]} of {name}")
        return f"try {memory[name]}"

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
        memory[name] += 1
        await name_it(f"{name} {min(memory[name], 2)}")
        if memory[name] == 1:
            raise ValueError(name)
        return name

    @app.agent(retry=Retry(attempts=2, delay_s=0.001, retry_on=LookupError))
    async def patient(name: str, failures: int) -> int:
        """Tried again as a whole."""
        memory[name] += 1
        if memory[name] <= failures:
            raise KeyError(name)
        return memory[name]
