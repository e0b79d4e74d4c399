"""The verbs of the store on Postgres that have to do with waiting: what for, and whatever ends it.

What a worker asks about its own runs goes over the line of its other verbs; all else over the clients'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core import limits
from perdure.core.records import Interrupt, Message, Wait
from perdure.core.requests import AnswerOutcome, InterruptFilter, NewAnswer, NewMessage, SendOutcome
from perdure.errors import NotSerializable
from perdure.store.pages import page_size
from perdure.store.postgres import failures, rows, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Line, Pool


class Waiting:
    """Waits, questions and mail."""

    def __init__(self, address: Address, line: Line, pool: Pool) -> None:
        self._line = line
        self._pool = pool
        self._statements = schema.statements(address.prefix)

    # -- a worker's ------------------------------------------------------------------------------------------

    async def waits(self, runs: Sequence[int], *, only_ready: bool = False) -> list[Wait]:
        statement = self._statements["waits"]
        found = await self._line.fetch(statement.text, list(runs), limits.MAILBOX_MAX, only_ready)
        return [rows.to_wait(row) for row in found]

    async def cancellations(self, worker: int) -> dict[int, str]:
        return dict(await self._line.fetch(self._statements["cancellations"].text, worker))

    async def next_due(self) -> int | None:
        left_us: int | None = await self._line.fetchval(self._statements["next_due"].text)
        return left_us

    # -- questions -------------------------------------------------------------------------------------------

    async def answer(self, answer: NewAnswer) -> AnswerOutcome | None:
        blobs = {blob.digest: blob.data for blob in answer.blobs}
        values = {"interrupt": answer.interrupt, "answer": answer.answer, "by": answer.by}
        values |= {"b_digest": list(blobs), "b_data": list(blobs.values())}
        try:
            found = await self._fetch("answer", **values)
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the answer cannot be stored: {error}") from error
        return rows.to_answer_outcome(found[0], answer.answer) if found else None

    async def interrupts(self, where: InterruptFilter) -> list[Interrupt]:
        values: dict[str, Any] = {
            "after": -1 if where.after is None else where.after,
            "state": where.state and where.state.value,
            "assignee": where.assignee,
            "agent": where.agent,
            "tenant": where.tenant,
            "limit": page_size(where.limit),
        }
        if where.run is None and where.thread_id is None:
            found = await self._fetch("interrupts", **values)
        else:
            found = await self._fetch("interrupts_of", run=where.run, thread_id=where.thread_id, **values)
        return [rows.to_interrupt(row) for row in found]

    async def get_interrupts(self, interrupts: Sequence[int]) -> list[Interrupt]:
        return [rows.to_interrupt(row) for row in await self._fetch("get_interrupts", interrupts=list(interrupts))]

    # -- mail ------------------------------------------------------------------------------------------------

    async def send(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        """One that comes twice is asked for once: the second finds what the first did."""
        first: dict[int | tuple[str, str], NewMessage] = {}
        by_name = [(message.id if message.key is None else (message.thread_id, message.key)) for message in messages]
        for name, message in zip(by_name, messages, strict=True):
            first.setdefault(name, message)
        distinct = list({message.id: message for message in first.values()}.values())
        if not distinct:
            return []
        blobs = [(number, blob) for number, message in enumerate(distinct, 1) for blob in message.blobs]
        values: dict[str, Any] = {
            name: [getattr(each, name) for each in distinct]
            for name in ("id", "thread_id", "sender", "label", "payload", "key")
        }
        values |= {
            "blob_message": [number for number, _ in blobs],
            "blob_digest": [blob.digest for _, blob in blobs],
            "blob_data": [blob.data for _, blob in blobs],
            "mailbox_max": limits.MAILBOX_MAX,
            "memory_us": limits.MESSAGE_MEMORY_US,
        }
        try:
            found = await self._fetch("send", **values)
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the message cannot be stored: {error}") from error
        rows_by_id = {each.id: row for each, row in zip(distinct, found, strict=True)}
        return [
            rows.to_send_outcome(rows_by_id[first[name].id], message.id)
            for name, message in zip(by_name, messages, strict=True)
        ]

    async def mailbox(self, thread: int, *, limit: int, after: int) -> list[Message]:
        found = await self._fetch("mailbox", thread=thread, limit=page_size(limit), after=after)
        return [rows.to_message(row) for row in found]

    async def dead_letters(self, thread: int | None, *, limit: int, after: int) -> list[Message]:
        found = await self._fetch("dead_letters", thread=thread, limit=page_size(limit), after=after)
        return [rows.to_message(row) for row in found]

    async def revive(self, message: int) -> Message | None:
        act, get = self._statements["revive"], self._statements["get_message"]

        async def work(connection: Any) -> Message | None:
            async with connection.transaction():
                if not await connection.fetchval(act.text, message):
                    return None
                return rows.to_message(await connection.fetchrow(get.text, message))

        async with self._pool.line() as line:
            return await line.use(work)

    async def _fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._pool.fetch(statement.text, *statement.arguments(values))
