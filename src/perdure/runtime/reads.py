"""Reads that many tasks ask for one by one, and that the store answers in sets.

A parent with ten thousand children learns of hundreds of ends at once, and each branch reads its own: what is asked for
while the loop goes round once becomes one query. A store that is away is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Interrupt, Outcome, Run
from perdure.errors import StoreUnavailable
from perdure.runtime.frames import outside
from perdure.runtime.patience import insist
from perdure.store.protocol import Store

T = TypeVar("T")


class SetRead(Generic[T]):
    """One kind of row, by number."""

    def __init__(self, name: str, read: Callable[[Sequence[int]], Awaitable[dict[int, T]]]) -> None:
        self._name = name
        self._read = read
        self._asked: dict[int, list[asyncio.Future[T | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def one(self, number: int) -> T | None:
        """The row of this number; None if there is none."""
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(number, []).append(future)
        if self._task is None:
            with outside():  # the asker is an agent, and this is for all of them
                self._task = asyncio.create_task(self._serve(), name=f"perdure-read-{self._name}")
        return await future

    def close(self, error: Exception) -> None:
        """End it: whoever still asks is answered with this error."""
        if self._task is not None:
            self._task.cancel()
        for futures in self._asked.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._asked.clear()

    async def _serve(self) -> None:
        try:
            while self._asked:
                numbers = sorted(self._asked)[:LIST_ROWS_MAX]
                asked = {number: self._asked.pop(number) for number in numbers}
                await self._answer(asked)
        finally:
            self._task = None

    async def _answer(self, asked: dict[int, list[asyncio.Future[T | None]]]) -> None:
        found: dict[int, T] = {}
        failure: Exception | None = None

        async def attempt() -> None:
            found.update(await self._read(list(asked)))

        try:
            await insist(self._name, attempt)
        except Exception as error:  # the askers' to see: it goes to each of them
            failure = error
        for number, futures in asked.items():
            for future in futures:
                if future.done():
                    continue
                if failure is None:
                    future.set_result(found.get(number))
                else:
                    future.set_exception(failure)


class Reads:
    """The rows that waits end with."""

    def __init__(self, store: Store) -> None:
        async def runs(numbers: Sequence[int]) -> dict[int, Run]:
            return {run.id: run for run in await store.get_runs(numbers)}

        async def outcomes(numbers: Sequence[int]) -> dict[int, Outcome]:
            return {outcome.run: outcome for outcome in await store.outcomes(numbers)}

        async def interrupts(numbers: Sequence[int]) -> dict[int, Interrupt]:
            return {interrupt.id: interrupt for interrupt in await store.get_interrupts(numbers)}

        self.runs = SetRead("runs", runs)
        self.outcomes = SetRead("outcomes", outcomes)
        self.interrupts = SetRead("interrupts", interrupts)

    def close(self) -> None:
        """End all of them, with the worker's tenure."""
        ended = StoreUnavailable("the worker has ended before this was read")
        self.runs.close(ended)
        self.outcomes.close(ended)
        self.interrupts.close(ended)
