"""Committing and starting: one round trip each where nothing is odd, and patience where something is.

The functions of the database write a whole batch or nothing. What stands in the way is taken out here, and the rest is
sent again: runs that were lost or whose slice has ended, rows that are there already (our own from an answer that never
came, or somebody else's, which is a refusal), and, by halving the batch until one run is left, values that the database
does not take. So one bad member fails alone, and a healthy batch pays nothing for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from perdure.core import limits
from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome, StartOutcome, StartRun
from perdure.errors import NotSerializable
from perdure.store.postgres import batches, failures, rows, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Line, Pool
from perdure.store.reasons import recorded_before
from perdure.store.slices import within_slices

REASON_CHARS_MAX: Final = 500
"""Of the database's words about a refusal."""
PLAIN: Final = (
    "id", "thread", "thread_id", "agent", "queue", "priority", "delay_us", "key", "digest", "payload", "tenant",
)  # fmt: skip
"""Fields of a start that become columns as they are."""


class Committer:
    """Writes batches for workers on a line of its own.

    A write whose answer did not come may still be under way: its connection is gone, and the server does not know that
    yet. What is sent next waits for it, by locking the worker's row against all writes. Otherwise the late one could
    have compared its fence before this one gives the run back, and write after the next owner has claimed it."""

    def __init__(self, address: Address, line: Line) -> None:
        self._line = line
        self._unsure = False
        self._statements = schema.statements(address.prefix)

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        lost: set[int] = set()
        refused: dict[int, str] = {}
        waiting: list[Sequence[Change]] = [within_slices(changes)]
        while waiting:
            batch = waiting.pop()
            if not batch and changes:
                continue
            try:
                answer = await self._write(worker, batch)
            except asyncpg.UniqueViolationError as error:
                rest, reasons = await self._sift(batch)
                if len(rest) < len(batch):
                    refused |= reasons
                    waiting.append(rest)
                else:
                    waiting += self._split(batch, error, refused)
                continue
            except failures.REFUSED as error:
                waiting += self._split(batch, error, refused)
                continue
            if not answer["alive"]:
                return CommitOutcome(alive=False)
            if answer["lost"] or answer["done"]:
                over = {*(answer["lost"] or ()), *(answer["done"] or ())}
                waiting.append([change for change in batch if change.run not in over])
                rest, gone = await self._sort_out([each for each in batch if each.run in over], answer["lost"] or ())
                lost |= gone
                waiting.append(rest)
        return CommitOutcome(lost=frozenset(lost), refused=refused)

    async def _write(self, worker: int, batch: Sequence[Change]) -> Any:
        steps = [change for change in batch if type(change) is AppendCheckpoint]
        if len(steps) == len(batch) == 1 and not steps[0].blobs:
            name, arguments = "append_one", batches.append_one_arguments(worker, steps[0])
        elif len(steps) == len(batch):
            name, arguments = "append", batches.append_arguments(worker, steps)
        else:
            name, arguments = "commit", batches.Batch(batch).arguments(worker, batch)
        text = self._statements[name].text
        unsure, self._unsure = self._unsure, True
        try:
            if unsure:
                answer = await self._line.use(lambda connection: self._write_alone(connection, worker, text, arguments))
            else:
                answer = await self._line.fetchrow(text, *arguments)
        except failures.REFUSED:
            self._unsure = False  # that is an answer
            raise
        self._unsure = False
        return answer

    async def _write_alone(
        self, connection: asyncpg.Connection[Any], worker: int, text: str, arguments: Sequence[Any]
    ) -> Any:
        """Write while nothing else of this worker is written."""
        async with connection.transaction():
            await connection.execute(self._statements["wait_for_worker"].text, worker)
            return await connection.fetchrow(text, *arguments)

    async def _recorded(self, batch: Sequence[Change]) -> dict[tuple[int, int, str], int]:
        """The fences of those of the batch's checkpoints that exist."""
        places = {place for change in batch if (place := batches.checkpoint_place(change))}
        columns = [list(column) for column in zip(*places, strict=True)] or [[], [], []]
        found = await self._line.fetch(self._statements["recorded"].text, *columns)
        return {(run, super_step, key): fence for run, super_step, key, fence in found}

    async def _sift(self, batch: Sequence[Change]) -> tuple[list[Change], dict[int, str]]:
        """Take out what is recorded already, and the runs that would change a record."""
        recorded = await self._recorded(batch)
        rest: list[Change] = []
        reasons: dict[int, str] = {}
        seen: set[tuple[int, int, str]] = set()
        for change in batch:
            place = batches.checkpoint_place(change)
            fence = recorded.get(place) if place else None
            if place and fence is not None and fence != change.fence:
                _, super_step, key = place
                why = recorded_before(key, super_step, under=fence, fence=change.fence)
                reasons.setdefault(change.run, why)
            elif place is None or (fence is None and place not in seen):
                rest.append(change)
            if place:
                seen.add(place)
        return [change for change in rest if change.run not in reasons], reasons

    async def _sort_out(self, changes: Sequence[Change], lost: Iterable[int]) -> tuple[list[Change], set[int]]:
        """Of runs that were lost or whose slice has ended: what may be sent again, and the runs that are lost.

        A batch sent again may find itself written, and the run meanwhile in other hands: what it recorded is no loss.
        They may even be this worker's own, so that a batch has changes of a run under two fences.
        """
        own: list[Change] = []
        strays = [each for each in changes if each.run in set(lost)]
        if _under_two_fences(strays):
            fences = await self._fences({each.run for each in strays})
            own = [each for each in strays if fences.get(each.run) == each.fence]
            strays = [each for each in strays if fences.get(each.run) != each.fence]
        recorded = await self._recorded(strays)
        places = [(each, batches.checkpoint_place(each)) for each in strays]
        gone = {each.run for each, place in places if place is None or recorded.get(place) != each.fence}
        return [each for each in own if each.run not in gone], gone

    async def _fences(self, runs: set[int]) -> dict[int, int]:
        """These runs' fences now."""
        statement = self._statements["get_runs"]
        found = await self._line.fetch(statement.text, *statement.arguments({"runs": list(runs)}))
        return {row["id"]: row["fence"] for row in found}

    def _split(self, batch: Sequence[Change], error: Exception, refused: dict[int, str]) -> list[Sequence[Change]]:
        """Halve the batch; where one run is left, it is the one."""
        first, second = batches.halves(batch)
        if second:
            return [second, first]
        refused[first[0].run] = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        return []


def _under_two_fences(changes: Sequence[Change]) -> bool:
    return len({(each.run, each.fence) for each in changes}) > len({each.run for each in changes})


class Starter:
    """Puts runs on disk."""

    def __init__(self, address: Address, pool: Pool) -> None:
        self._pool = pool
        self._statement = schema.statements(address.prefix)["start"]

    async def start(self, starts: Sequence[StartRun]) -> list[StartOutcome]:
        if not starts:
            return []
        parts = _without_repeats(starts)
        try:
            async with self._pool.line() as line:
                found = await line.use(lambda connection: self._start(connection, parts))
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the start cannot be stored: {error}") from error
        return [rows.to_start_outcome(start, row) for start, row in zip(starts, found, strict=True)]

    async def _start(self, connection: asyncpg.Connection[Any], parts: list[Sequence[StartRun]]) -> list[Any]:
        """One round trip for one part; more are one transaction."""
        if len(parts) == 1:
            return list(await connection.fetch(self._statement.text, *self._arguments(parts[0])))
        found: list[Any] = []
        async with connection.transaction():
            for part in parts:
                found += await connection.fetch(self._statement.text, *self._arguments(part))
        return found

    def _arguments(self, starts: Sequence[StartRun]) -> tuple[Any, ...]:
        start, digest, data = batches.start_blobs(starts)
        values: dict[str, Any] = {name: [getattr(each, name) for each in starts] for name in PLAIN}
        values["if_busy"] = [each.if_busy.value for each in starts]
        values["tags"] = [msgspec.json.encode(each.tags).decode() if each.tags else None for each in starts]
        values |= {"blob_start": start, "blob_digest": digest, "blob_data": data}
        return self._statement.arguments(values | {"depth_max": limits.THREAD_QUEUE_MAX})


def _without_repeats(starts: Sequence[StartRun]) -> list[Sequence[StartRun]]:
    """Cut the group before a start whose key or run came before: what the first did decides what the second gets."""
    parts: list[list[StartRun]] = [[]]
    seen: set[str | int] = set()
    for start in starts:
        if start.key in seen or start.id in seen:
            parts.append([])
            seen = set()
        seen |= {start.id} if start.key is None else {start.id, start.key}
        parts[-1].append(start)
    return list(parts)
