"""People: who answers the questions of a stage, with what, and how long they take."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from perdure.app import App
from perdure.core.changes import Place
from perdure.core.keys import meant
from perdure.core.records import Interrupt, InterruptState, interrupt_id, parse_id
from perdure.core.shown import did_you_mean
from perdure.errors import AlreadyAnswered, InterruptClosed, NotFound, UsageError
from perdure.store.memory.tables import Tables
from perdure.testing.answers import answered
from perdure.testing.simulation.world import Process, World

Act = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
"""Calls an async function as a client of the app."""


@dataclass(slots=True)
class Promise:
    """Somebody answers a question whenever it is asked, so long after that."""

    question: str
    """Its name, its key, or its id."""
    answer: Any
    """`answers.py` says what it stands for; a function gets the `InterruptInfo`."""
    by: str | None
    after_s: float
    asked: int = field(default=0, init=False)
    """How often it was."""

    def means(self, question: Interrupt) -> bool:
        """Whether this is the question."""
        known = meant((self.question,), key=question.key, name=question.name)
        return known is not None or self.question == interrupt_id(question.id)


class People:
    """Who has promised to answer. Each answer is given by a client process of its own."""

    def __init__(self, app: App, world: World, tables: Tables, act: Act) -> None:
        self._app = app
        self._world = world
        self._tables = tables
        self._act = act
        self._promises: list[Promise] = []
        self._failures: list[BaseException] = []
        """What went wrong where nobody waits for it."""

    def promise(self, promise: Promise) -> list[asyncio.Task[None]]:
        """From now on this is answered so; the answers to what is open already, on their way."""
        rows = [row for row in self._tables.interrupts.values() if promise.means(row)]
        if parse_id("i", promise.question) is not None:
            if not rows:
                raise NotFound(f"nobody has asked {promise.question} on this stage", id=promise.question)
            return [self._give(promise, rows[0], late=bool(promise.after_s))]
        self._promises = [*(each for each in self._promises if each.question != promise.question), promise]
        return [self._give(promise, row) for row in rows if row.state is InterruptState.OPEN]

    def asked(self, place: Place) -> None:
        """A question is open there."""
        run, super_step, key = place
        row = self._tables.interrupts[self._tables.asked[run][super_step, key]]
        promise = next((each for each in reversed(self._promises) if each.means(row)), None)
        if promise is not None and row.state is InterruptState.OPEN:
            self._give(promise, row)

    def raise_failure(self) -> None:
        """Raise what went wrong, if something did."""
        if self._failures:
            raise self._failures.pop(0)

    def unasked(self) -> str:
        """What to say of answers to questions that nobody has asked; nothing if there are none."""
        names = sorted({row.name for row in self._tables.interrupts.values()})
        words = [_guessed(each.question, names) for each in self._promises if not each.asked]
        if not words:
            return ""
        return f"nobody has asked {', '.join(words)}; questions that were asked: {', '.join(names) or 'none'}"

    def _give(self, promise: Promise, question: Interrupt, *, late: bool = True) -> asyncio.Task[None]:
        """Let somebody answer, after a while; with `late` it does not matter if the question is closed by then."""
        promise.asked += 1
        person = self._world.process(f"person {len(self._world.processes)}")
        respond = functools.partial(self._respond, promise, interrupt_id(question.id), late=late)
        task: asyncio.Task[None] = person.loops[0].create_task(self._act(respond))
        task.add_done_callback(functools.partial(self._given, person))
        return task

    def _given(self, person: Process, task: asyncio.Task[None]) -> None:
        person.kill()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failures.append(error)

    async def _respond(self, promise: Promise, question: str, *, late: bool) -> None:
        await asyncio.sleep(promise.after_s)
        value = await answered(promise.answer, (await self._app.interrupt_info(question),), {})
        try:
            await self._app.resume(question, value, by=promise.by)
        except (AlreadyAnswered, InterruptClosed):
            if not late:
                raise


def check_question(question: object) -> str:
    """What means a question."""
    if not isinstance(question, str) or not question:
        raise UsageError(f'a question is meant by its name, key or id, such as "approve" or "i7", and not {question!r}')
    return question


def _guessed(question: str, names: list[str]) -> str:
    return f"{question!r}{did_you_mean(question, names)}"
