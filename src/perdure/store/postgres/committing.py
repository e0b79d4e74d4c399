"""Committing: one round trip where nothing is odd, and patience where something is.

The functions of the database write a whole batch or nothing. What stands in the way is taken out here, and the rest is
sent again: runs that were lost or whose slice has ended, rows that are there already (our own from an answer that never
came, or somebody else's, which is a refusal), what bounces, what a cancellation forbids, and, by halving the batch
until one run is left, values that the database does not take. So one bad member fails alone, and a healthy batch pays
nothing for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncpg

from perdure.core.changes import (
    AppendCheckpoint,
    Change,
    CloseWait,
    CommitOutcome,
    Deliver,
    EndRun,
    Place,
    Reserve,
    SendMessage,
    place_of,
)
from perdure.core.requests import Bounce
from perdure.store.postgres import batches, effects, failures, following, schema, waits
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import CALL_TIMEOUT_S, Line
from perdure.store.reasons import recorded_before
from perdure.store.slices import is_aware, within_slices

REASON_CHARS_MAX: Final = 500
"""Of the database's words about a refusal."""


@dataclass(frozen=True, slots=True)
class _Write:
    """A statement that writes a part of a batch, or nothing."""

    text: str
    arguments: Sequence[Any]
    part: Sequence[Change]


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one says; one that follows says only what bounces."""

    alive: bool
    lost: frozenset[int]
    done: frozenset[int]
    cancelled: frozenset[int]
    forbidden: Sequence[Change] = ()
    bounced: Sequence[tuple[Change, Bounce]] = ()
    awake: frozenset[int] = frozenset()
    unfit: Sequence[tuple[Change, str]] = ()
    short: Sequence[Change] = ()
    """Reservations that alone were not written."""

    @classmethod
    def of(cls, write: _Write, row: Any) -> _Answer:
        cancelled = frozenset(row.get("cancelled") or ())
        forbidden = [each for each in write.part if each.run in cancelled and not is_aware(each)] if cancelled else ()
        return cls(
            alive=row.get("alive", True),
            lost=frozenset(row.get("lost") or ()),
            done=frozenset(row.get("done") or ()),
            cancelled=cancelled,
            forbidden=forbidden,
            bounced=[
                (write.part[at], Bounce(why))
                for at, why in zip(row.get("bounced") or (), row.get("why") or (), strict=True)
            ],
            awake=frozenset(row.get("awake") or ()),
            unfit=effects.unfit(write.part, row),
            short=[write.part[at] for at in row.get("short") or ()],
        )

    @property
    def is_odd(self) -> bool:
        """Whether nothing was written."""
        return not self.alive or bool(self.lost or self.done or self.forbidden or self.bounced or self.unfit)


class Odd(Exception):
    """A part of a batch met something odd: what the parts before it wrote is undone."""

    def __init__(self, answer: _Answer) -> None:
        super().__init__()
        self.answer = answer


@dataclass(slots=True)
class _Tally:
    """What has become of a batch so far."""

    lost: set[int] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    bounced: dict[Place, Bounce] = field(default_factory=dict)
    awake: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)

    def outcome(self) -> CommitOutcome:
        return CommitOutcome(
            lost=frozenset(self.lost),
            refused=self.refused,
            bounced=self.bounced,
            awake=frozenset(self.awake),
            cancelled=frozenset(self.cancelled - self.lost),
        )


class Committer:
    """Writes batches for workers on a line of its own.

    A write whose answer did not come may still be under way: its connection is gone, and the server does not know that
    yet. What is sent next waits for it, by locking the worker's row against all writes. Otherwise the late one could
    have compared its fence before this one gives the run back, and write after the next owner has claimed it."""

    def __init__(self, address: Address, line: Line) -> None:
        self._line = line
        self._unsure = False
        self._doubted = False
        self._statements = schema.statements(address.prefix)

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        tally = _Tally()
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
                    tally.refused |= reasons
                    waiting.append(rest)
                else:
                    waiting += self._split(batch, error, tally.refused)
                continue
            except failures.REFUSED as error:
                waiting += self._split(batch, error, tally.refused)
                continue
            if not answer.alive:
                return CommitOutcome(alive=False)
            waiting += await self._settle(batch, answer, tally)
        tally.cancelled |= await self._requested(tally.refused)
        return tally.outcome()

    async def _settle(self, batch: Sequence[Change], answer: _Answer, tally: _Tally) -> list[Sequence[Change]]:
        """Note what the answer says; what of the batch is to be sent again, the last first."""
        tally.cancelled |= answer.cancelled
        if over := answer.lost | answer.done:
            rest, gone = await self._sort_out([each for each in batch if each.run in over], answer.lost)
            tally.lost |= gone
            return [[each for each in batch if each.run not in over], rest]
        if answer.unfit:
            refused = {change.run: why for change, why in reversed(answer.unfit)}
            tally.refused |= refused
            return [[each for each in batch if each.run not in refused]]
        if answer.is_odd:
            for change, why in answer.bounced:
                assert isinstance(change, CloseWait | SendMessage | Deliver)
                tally.bounced[change.run, change.super_step, change.key] = why
            left_out = {*map(id, answer.forbidden), *(id(change) for change, _ in answer.bounced)}
            return [[each for each in batch if id(each) not in left_out]]
        tally.awake |= answer.awake
        for change in answer.short:
            assert isinstance(change, Reserve)
            tally.bounced[change.run, change.super_step, change.key] = Bounce.BUDGET
        return []

    async def _write(self, worker: int, batch: Sequence[Change]) -> _Answer:
        writes = self._writes(worker, batch)
        unsure, self._unsure, self._doubted = self._unsure or self._doubted, True, False
        try:
            if unsure or len(writes) > 1:
                answer = await self._line.use(lambda connection: self._write_in_one(connection, worker, writes, unsure))
            else:
                answer = _Answer.of(writes[0], await self._line.fetchrow(writes[0].text, *writes[0].arguments))
        except Odd as odd:
            answer = odd.answer
        except failures.REFUSED:
            self._unsure = False  # that is an answer
            raise
        self._unsure = False
        return answer

    def _writes(self, worker: int, batch: Sequence[Change]) -> list[_Write]:
        """The statements that write the batch; nearly always one."""
        if following.is_plain(batch):
            return self._log_writes(worker, batch, batch)
        if {*map(type, batch)} <= {AppendCheckpoint, Reserve}:
            steps = [change for change in batch if isinstance(change, AppendCheckpoint)]
            arguments = batches.append_arguments(worker, steps, batch) + following.using_arguments(batch)
            return [self._to_write("append_using", arguments, batch)]
        ends, parks = following.ends_of_deliverers(batch), following.parks_of_askers(batch)
        late = {*map(id, ends), *map(id, parks)}
        log = [change for change in following.plain(batch) if id(change) not in late]
        writes = self._log_writes(worker, log, batch, ends)
        if (delivered := following.deliveries(batch)) is not None:
            writes.append(self._to_write(*delivered, batch))
        if ends:
            writes += self._log_writes(worker, ends, ends)
        writes += [self._to_write(*used, batch) for used in following.usage(batch)]
        return writes + self._log_writes(worker, parks, parks) if parks else writes

    def _log_writes(
        self, worker: int, log: Sequence[Change], batch: Sequence[Change], ends: Sequence[EndRun] = ()
    ) -> list[_Write]:
        """Those that write what the batch has for the log, guarded as all of it; of `ends`, which follow, the locks."""
        steps = [change for change in log if type(change) is AppendCheckpoint]
        if len(steps) == len(batch) == 1 and not steps[0].blobs:
            return [self._to_write("append_one", batches.append_one_arguments(worker, steps[0]), log)]
        if len(steps) == len(log) and not ends:
            return [self._to_write("append", batches.append_arguments(worker, steps, batch), log)]
        if effects.has_effects(log):
            return self._writes_with_effects(worker, log, batch, ends)
        if not waits.has_waits(log):
            return [self._to_write("commit", batches.Batch(log, ends).arguments(worker, batch), log)]
        return self._writes_with_waits(worker, log, batch, ends)

    def _writes_with_waits(
        self, worker: int, log: Sequence[Change], batch: Sequence[Change], ends: Sequence[EndRun]
    ) -> list[_Write]:
        """Each part guards what it writes, and the first all that is not in the log: in a later one the slice of a run
        may be over."""
        writes: list[_Write] = []
        others: list[Change] = [change for change in batch if isinstance(change, Reserve)]
        for part in waits.parts(log):
            more = waits.more(part)
            arguments = batches.Batch(part, ends).arguments(worker, [*part, *others]) + waits.arguments(part) + more
            writes.append(self._to_write("commit_waits_more" if more else "commit_waits", arguments, part))
            others = []
        return writes

    def _writes_with_effects(
        self, worker: int, log: Sequence[Change], batch: Sequence[Change], ends: Sequence[EndRun]
    ) -> list[_Write]:
        """Each part is guarded as all of the batch, so that a run that is lost is not said to be refused."""
        parts, rest = effects.parts(log)
        later = self._writes_with_waits(worker, rest, rest, ends) if waits.has_waits(rest) else []
        if not later:
            parts[-1] += rest
        return [
            self._to_write(
                "commit_effects",
                batches.Batch(part, ends).arguments(worker, batch) + effects.arguments(part, rest),
                part,
            )
            for part in parts
        ] + later

    def _to_write(self, name: str, arguments: Sequence[Any], part: Sequence[Change]) -> _Write:
        return _Write(self._statements[name].text, arguments, part)

    async def _write_in_one(
        self, connection: asyncpg.Connection[Any], worker: int, writes: Sequence[_Write], unsure: bool
    ) -> _Answer:
        """Write the parts of a batch in one transaction, and, where one is `unsure`, while nothing else of this worker
        is written."""
        async with connection.transaction():
            if unsure:
                await connection.execute(self._statements["wait_for_worker"].text, worker)
            return await self._write_all(connection, writes)

    async def _write_all(self, connection: asyncpg.Connection[Any], writes: Sequence[_Write]) -> _Answer:
        answers: list[_Answer] = []
        for write in writes:
            row = await connection.fetchrow(write.text, *write.arguments, timeout=CALL_TIMEOUT_S)
            answer = _Answer.of(write, row)
            if answer.is_odd:
                raise Odd(answer)
            answers.append(answer)
        *_, last = answers
        return replace(
            last,
            cancelled=frozenset().union(*(each.cancelled for each in answers)),
            awake=frozenset().union(*(each.awake for each in answers)),
            short=[change for each in answers for change in each.short],
        )

    # -- a record in somebody else's transaction -------------------------------------------------------------

    async def file(
        self, connection: asyncpg.Connection[Any], worker: int, record: AppendCheckpoint
    ) -> CommitOutcome:  # fmt: skip
        """Write a record as `commit` would, in the transaction of this connection. Raises `Odd`, or a refusal, where
        it is not written; `explain` says what that comes to."""
        answer = await self._write_all(connection, self._writes(worker, [record]))
        return CommitOutcome(cancelled=answer.cancelled)

    async def explain(self, record: AppendCheckpoint, odd: Exception) -> CommitOutcome:
        """What the outcome is where the record was not written, once its transaction is undone."""
        if isinstance(odd, Odd) and not odd.answer.alive:
            return CommitOutcome(alive=False)
        rest, reasons = await self._sift([record])
        if rest and isinstance(odd, Odd):
            return CommitOutcome(lost=frozenset({record.run}))
        if rest:
            self._split(rest, odd, reasons)
        return CommitOutcome(refused=reasons, cancelled=frozenset(await self._requested([record.run])))

    def doubt(self) -> None:
        """Let the next commit wait until nothing of its worker is under way: another write's answer did not come."""
        self._doubted = True

    # -- what is odd -----------------------------------------------------------------------------------------

    async def _recorded(self, batch: Sequence[Change]) -> dict[Place, int]:
        """The fences of those of the batch's checkpoints that exist."""
        places = {place for change in batch if (place := place_of(change))}
        columns = [list(column) for column in zip(*places, strict=True)] or [[], [], []]
        found = await self._line.fetch(self._statements["recorded"].text, *columns)
        return {(run, super_step, key): fence for run, super_step, key, fence in found}

    async def _sift(self, batch: Sequence[Change]) -> tuple[list[Change], dict[int, str]]:
        """Take out what is recorded already, and the runs that would change a record."""
        recorded = await self._recorded(batch)
        rest: list[Change] = []
        reasons: dict[int, str] = {}
        seen: set[Place] = set()
        for change in batch:
            place = place_of(change)
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
        places = [(each, place_of(each)) for each in strays]
        gone = {each.run for each, place in places if place is None or recorded.get(place) != each.fence}
        return [each for each in own if each.run not in gone], gone

    async def _fences(self, runs: set[int]) -> dict[int, int]:
        """These runs' fences now."""
        return {row["id"]: row["fence"] for row in await self._rows(runs)}

    async def _requested(self, runs: Iterable[int]) -> set[int]:
        """Those of these runs whose cancellation was requested."""
        return {row["id"] for row in await self._rows(runs) if row["cancel"] is not None}

    async def _rows(self, runs: Iterable[int]) -> list[Any]:
        statement = self._statements["get_runs"]
        wanted = list(runs)
        return await self._line.fetch(statement.text, *statement.arguments({"runs": wanted})) if wanted else []

    def _split(self, batch: Sequence[Change], error: Exception, refused: dict[int, str]) -> list[Sequence[Change]]:
        """Halve the batch; where one run is left, it is the one."""
        first, second = batches.halves(batch)
        if second:
            return [second, first]
        refused[first[0].run] = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        return []


def _under_two_fences(changes: Sequence[Change]) -> bool:
    return len({(each.run, each.fence) for each in changes}) > len({each.run for each in changes})
