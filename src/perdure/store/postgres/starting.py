"""Starting and forking: one round trip where nothing is odd.

A group of starts is cut where a set could not tell what comes first; the parts are one transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from perdure.core import limits
from perdure.core.budgets import UNITS
from perdure.core.records import IfBusy
from perdure.core.requests import ForkRun, StartOutcome, StartRun
from perdure.errors import NotSerializable
from perdure.store.postgres import batches, failures, rows, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Pool

PLAIN: Final = (
    "id", "thread", "thread_id", "agent", "queue", "priority", "delay_us", "key", "digest", "payload", "tenant",
    "deadline_us", "deadline_at", "displaced",
)  # fmt: skip
"""Fields of a start that become columns as they are."""
DISPLACING: Final = frozenset({IfBusy.INTERRUPT, IfBusy.ROLLBACK})
NEW: Final = 0
"""The answer of `start_runs` to a run that was not there."""


class Starter:
    """Puts runs on disk."""

    def __init__(self, address: Address, pool: Pool) -> None:
        self._pool = pool
        statements = schema.statements(address.prefix)
        self._start_statement, self._fork_statement = statements["start"], statements["fork"]
        self._terms_statement = statements["start_on_terms"]

    async def start(self, starts: Sequence[StartRun]) -> list[StartOutcome]:
        if not starts:
            return []
        parts = _parts(starts)
        found = await self._use(lambda connection: self._start(connection, parts))
        return [rows.to_start_outcome(start, row) for start, row in zip(starts, found, strict=True)]

    async def fork(self, fork: ForkRun) -> StartOutcome:
        (found,) = await self._use(lambda connection: self._fork(connection, fork))
        return rows.to_start_outcome(fork.start, found)

    async def _use(self, work: Callable[[asyncpg.Connection[Any]], Awaitable[list[Any]]]) -> list[Any]:
        try:
            async with self._pool.line() as line:
                return await line.use(work)
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the start cannot be stored: {error}") from error

    async def _start(self, connection: asyncpg.Connection[Any], parts: list[Sequence[StartRun]]) -> list[Any]:
        """One round trip for one part; more are one transaction."""
        if len(parts) == 1:
            return await self._start_part(connection, parts[0])
        found: list[Any] = []
        async with connection.transaction():
            for part in parts:
                found += await self._start_part(connection, part)
        return found

    async def _start_part(
        self, connection: asyncpg.Connection[Any], part: Sequence[StartRun], *, new_thread: bool = False
    ) -> list[Any]:
        values = _values(part, new_thread=new_thread)
        statement = self._start_statement
        if any(each.budget is not None or each.billing is not None for each in part):
            statement = self._terms_statement
            values |= _terms(part)
        return list(await connection.fetch(statement.text, *statement.arguments(values)))

    async def _fork(self, connection: asyncpg.Connection[Any], fork: ForkRun) -> list[Any]:
        """Start the run on its thread, which must be new, and move it where it goes on from."""
        async with connection.transaction():
            found = await self._start_part(connection, [fork.start], new_thread=True)
            if found[0]["answer"] == NEW:
                await connection.fetch(self._fork_statement.text, *_fork_arguments(fork))
        return found


def _values(starts: Sequence[StartRun], *, new_thread: bool) -> dict[str, Any]:
    """The arguments of `start_runs`."""
    start, digest, data = batches.start_blobs(starts)
    parents = [each.parent for each in starts]
    values: dict[str, Any] = {name: [getattr(each, name) for each in starts] for name in PLAIN}
    values["if_busy"] = [each.if_busy.value for each in starts]
    values["tags"] = [msgspec.json.encode(each.tags).decode() if each.tags else None for each in starts]
    values["parent"] = [parent and parent.run for parent in parents]
    values["parent_fence"] = [parent and parent.fence for parent in parents]
    values["parent_worker"] = [parent and parent.worker for parent in parents]
    values["parent_cancelled"] = [parent is not None and parent.cancelled for parent in parents]
    values["detached"] = [parent is not None and parent.detached for parent in parents]
    values |= {"blob_start": start, "blob_digest": digest, "blob_data": data}
    values |= {"depth_max": limits.THREAD_QUEUE_MAX, "new_thread": new_thread}
    return values


def _terms(starts: Sequence[StartRun]) -> dict[str, Any]:
    """Those of runs that have budgets of their own, or are billed."""
    own = [each.budget for each in starts]
    values: dict[str, Any] = {"budget": [budget and budget.id for budget in own]}
    values |= {f"limit_{unit}": [budget and getattr(budget.limits, unit) for budget in own] for unit in UNITS}
    values["bill_sink"] = [each.billing and each.billing.sink for each in starts]
    values["bill_key"] = [each.billing and each.billing.key for each in starts]
    return values


def _fork_arguments(fork: ForkRun) -> list[Any]:
    log = (
        (
            row.super_step,
            row.key,
            int(row.kind),
            row.seq,
            row.fence,
            row.worker,
            row.attempt,
            row.digest,
            row.failed,
            row.payload,
            row.state,
            row.started_at,
            row.ended_at,
        )
        for row in fork.records
    )
    return [fork.start.id, fork.super_step, fork.state, *batches.columns(log, 13)]


def _parts(starts: Sequence[StartRun]) -> list[Sequence[StartRun]]:
    """Cut the group before a start whose key or run came before: what the first did decides what the second gets. One
    that displaces others is a part of its own."""
    parts: list[list[StartRun]] = [[]]
    seen: set[str | int] = set()
    for start in starts:
        alone = start.if_busy in DISPLACING
        if start.key in seen or start.id in seen or (parts[-1] and (alone or parts[-1][-1].if_busy in DISPLACING)):
            parts.append([])
            seen = set()
        seen |= {start.id} if start.key is None else {start.id, start.key}
        parts[-1].append(start)
    return list(parts)
