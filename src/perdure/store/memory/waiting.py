"""The verbs of the store in memory that have to do with waiting: what for, and whatever ends it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from perdure.core.records import Interrupt, Message, Run, RunState, Wait
from perdure.core.requests import (
    AnswerOutcome,
    ForkRun,
    InterruptFilter,
    NewAnswer,
    NewMessage,
    SendOutcome,
    StartOutcome,
)
from perdure.store.memory import cancelling, forks, mail, questions, waits
from perdure.store.memory.tables import Tables


class WaitingVerbs(ABC):
    """Half of the store in memory; `store.py` has the other."""

    @abstractmethod
    async def _tables(self) -> Tables:
        """The tables of an open store."""

    # -- executing -------------------------------------------------------------------------------------------

    async def waits(self, runs: Sequence[int], *, only_ready: bool = False) -> list[Wait]:
        tables = await self._tables()
        with tables.lock:
            found = waits.of_runs(tables, runs, now=tables.now_us())
        return [each for each in found if each.ready or not only_ready]

    async def cancellations(self, worker: int) -> dict[int, str]:
        tables = await self._tables()
        with tables.lock:
            held = ((run, tables.runs[run].cancel) for run in sorted(tables.held_by.get(worker, ())))
            return {run: reason for run, reason in held if reason is not None}

    async def next_due(self) -> int | None:
        tables = await self._tables()
        with tables.lock:
            now = tables.now_us()
            rows = (tables.runs[run] for run in tables.waiting)
            times = (row.ready_at - now for row in rows if row.state is RunState.WAITING and row.ready_at > now)
            return min(times, default=None)

    # -- between runs ----------------------------------------------------------------------------------------

    async def cancel(self, run: int, reason: str, payload: bytes) -> Run | None:
        tables = await self._tables()
        with tables.writing() as now:
            return cancelling.cancel(tables, run, reason, payload, now=now)

    async def answer(self, answer: NewAnswer) -> AnswerOutcome | None:
        tables = await self._tables()
        with tables.writing() as now:
            return questions.answer(tables, answer, now=now)

    async def interrupts(self, where: InterruptFilter) -> list[Interrupt]:
        tables = await self._tables()
        with tables.lock:
            return questions.page(tables, where, now=tables.now_us())

    async def get_interrupts(self, interrupts: Sequence[int]) -> list[Interrupt]:
        tables = await self._tables()
        with tables.lock:
            now = tables.now_us()
            found = (tables.interrupts[each] for each in sorted(set(interrupts)) if each in tables.interrupts)
            return [questions.seen(each, now) for each in found]

    async def send(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        tables = await self._tables()
        with tables.writing() as now:
            return [mail.send(tables, message, now=now) for message in messages]

    async def mailbox(self, thread: int, *, limit: int = 100, after: int = 0) -> list[Message]:
        tables = await self._tables()
        with tables.lock:
            return mail.mailbox(tables, thread, limit=limit, after=after)

    async def dead_letters(self, thread: int | None = None, *, limit: int = 100, after: int = 0) -> list[Message]:
        tables = await self._tables()
        with tables.lock:
            return mail.dead_letters(tables, thread, limit=limit, after=after)

    async def revive(self, message: int) -> Message | None:
        tables = await self._tables()
        with tables.writing():
            return mail.revive(tables, message)

    async def fork(self, fork: ForkRun) -> StartOutcome:
        tables = await self._tables()
        with tables.writing() as now:
            return forks.fork(tables, fork, now=now)
