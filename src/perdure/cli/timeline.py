"""What happened to a run, from its log. Pure.

The log is grouped by super-step. Inside one, steps stand in the order they were recorded, each with its failed tries
before it. Where the claim changed (the fence moved), a `Handover` stands between them, so that a take-over is seen
where it happened; tries that the earlier claim left behind stand before it. Where the run was parked, a `Parked` stands
there instead: a parking is not recorded, but it shows. The store let go of the run without raising its fence, so the
next claim's is one higher, and the first thing that claim has recorded is what was waited for (or what a cancelled run
did to clean up). What the run waits for now stands at the end, and what a fork has taken over at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perdure.cli.verbs import WAITS, verb_of
from perdure.core.records import Attempt, Checkpoint, Interrupt, Kind, Run, RunState, Wait

Row = TypeVar("Row", Checkpoint, Attempt, Interrupt, Wait)

PAUSE_US: Final = 4_500_000
"""A pause between two tries from here on is a wait for which a run is parked, give or take a clock."""

CLOCKS_US: Final = 2_000_000
"""How much the clocks of a worker and of the store may well differ."""


@dataclass(frozen=True, slots=True)
class Handover:
    """From here on another claim executes the run; the worker may be the same."""

    from_worker: int
    from_fence: int
    to_worker: int
    to_fence: int


@dataclass(frozen=True, slots=True)
class Try:
    """A try of a step that did not become its record."""

    row: Attempt
    open: bool
    """It is going on now, as far as anybody knows."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The run was in nobody's hands: it only waited."""

    from_at: int
    until_at: int | None
    """None while it is."""
    worker: int | None
    """Who went on with it."""


@dataclass(frozen=True, slots=True)
class Forked:
    """What stands above was recorded by another run, and taken over. Which run that was is not recorded."""

    count: int
    super_step: int
    """Where the run began: it has none of the super-steps before."""


Line = Checkpoint | Try | Handover | Parked | Forked | Wait | Interrupt
"""(A question stands by itself where neither a record nor a wait is left of it.)"""


@dataclass(frozen=True, slots=True)
class SuperStep:
    """One call of the agent function."""

    number: int
    boundary: Checkpoint | None
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run's super-steps in order, and the record of its end if it has one."""

    super_steps: tuple[SuperStep, ...]
    ended: Checkpoint | None


def timeline(
    run: Run,
    log: Sequence[Checkpoint],
    attempts: Sequence[Attempt],
    *,
    waits: Sequence[Wait] = (),
    questions: Sequence[Interrupt] = (),
    clocks_us: int = CLOCKS_US,
) -> Timeline:
    """Order a run's log for reading. `clocks_us`: how much the clocks of its workers and of the store may differ."""
    ended = next((row for row in log if row.kind is Kind.ENDED), None)
    boundaries = {row.super_step: row for row in log if row.kind is Kind.BOUNDARY}
    recorded = [row for row in log if row.kind is Kind.STEP]
    steps, tries = _grouped(recorded), _grouped(_left_over(recorded, attempts))
    asked, open_now = _grouped(questions), _grouped(waits)
    made: list[SuperStep] = []
    owner: Checkpoint | None = None
    first = min(boundaries, default=1)
    for number in sorted(boundaries.keys() | steps.keys() | tries.keys() | open_now.keys()):
        boundary = boundaries.get(number)
        if boundary is not None and boundary.fence == (1 if owner is None else owner.fence):
            owner = boundary  # the first one, under fence 0, was filed by whoever started the run
        told = _Told(run, tries.get(number, []), asked.get(number, []), owner, clocks_us)
        lines: list[Line] = [Forked(0, number)] if number == first > 1 and not _takes(told, steps, number) else []
        lines += list(told.lines(steps.get(number, []), open_now.get(number, [])))
        owner = told.owner
        if ended is not None and number == ended.super_step - 1:
            lines += told.end(ended)
        made.append(SuperStep(number, boundary, tuple(lines)))
    return Timeline(tuple(made), ended)


def _takes(told: _Told, steps: dict[int, list[Checkpoint]], number: int) -> bool:
    return any(told.is_taken(row) for row in steps.get(number, []))


def _grouped(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """Rows by super-step, in the order they came."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.super_step, []).append(row)
    return groups


def _left_over(recorded: Sequence[Checkpoint], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Tries that did not become their step's record, in the order they began. (A try that might be cut off is noted
    before its body runs; if it succeeds, the note stays beside the record.)"""
    records = {(row.super_step, row.key, row.attempt) for row in recorded}
    left = [row for row in attempts if (row.super_step, row.key, row.attempt) not in records]
    return sorted(left, key=lambda row: (row.fence, row.started_at, row.key, row.attempt))


class _Told:
    """Tells one super-step; `owner` is what was recorded before."""

    def __init__(self, run: Run, tries: list[Attempt], asked: Sequence[Interrupt], owner: Checkpoint | None,
                 clocks_us: int = CLOCKS_US) -> None:  # fmt: skip
        self._clocks_us = clocks_us
        self.owner = owner
        self._run = run
        self._tries = tries
        self._asked = {row.key: row for row in asked}
        self._failed_at: dict[str, int] = {}
        """When the last try of each step failed."""
        self._at = 0
        """When the last thing happened in this super-step."""

    def lines(self, recorded: Sequence[Checkpoint], waits: Sequence[Wait]) -> Iterator[Line]:
        """What was recorded, what was left over, and what is waited for."""
        taken = sorted((row for row in recorded if self.is_taken(row)), key=lambda row: row.seq)
        yield from taken
        if taken:
            yield Forked(len(taken), taken[0].super_step)
        own = sorted((row for row in recorded if not self.is_taken(row)), key=lambda row: (row.fence, row.seq))
        left = self._asked.keys() - {row.key for row in recorded} - {wait.key for wait in waits}
        unanswered = sorted((self._asked[key] for key in left), key=lambda row: row.id)
        for step in own:
            if self._fence_before() != step.fence:
                yield from self._take([row for row in self._tries if row.fence < step.fence])
                while unanswered and unanswered[0].created_at <= step.ended_at:
                    yield self._seen(unanswered.pop(0))
                yield from self._between(step, until_at=step.ended_at if self._is_wait(step) else step.started_at)
            self.owner = step
            self._at = max(self._at, step.ended_at)
            yield from self._take([row for row in self._tries if row.key == step.key])
            yield step
        yield from self._take(list(self._tries))
        yield from (self._seen(row) for row in unanswered)
        yield from waits
        if waits and self._run.state in (RunState.WAITING, RunState.QUEUED):  # or woken, and not taken up yet
            yield Parked(max([self._last_at(), *(wait.opened_at for wait in waits)]), None, None)

    def end(self, ended: Checkpoint) -> Iterator[Line]:
        """What stands between the last claim that recorded something and the one that ended the run."""
        if ended.worker and self._fence_before() == ended.fence - 1:
            yield Parked(self._last_at(), ended.ended_at, ended.worker)

    def _between(self, step: Checkpoint, *, until_at: int) -> Iterator[Line]:
        """What stands between two claims."""
        if self._fence_before() == step.fence - 1 and (self._has_waited(step) or self._run.cancel is not None):
            yield Parked(self._last_at(), until_at, step.worker)
        elif self.owner is not None:
            yield Handover(self.owner.worker, self.owner.fence, step.worker, step.fence)

    def _has_waited(self, step: Checkpoint) -> bool:
        """Whether this is something to park for: a wait, or the next try of a step after a pause."""
        last_try = self._failed_at.get(step.key)
        return self._is_wait(step) or (last_try is not None and step.started_at - last_try >= PAUSE_US)

    def _is_wait(self, step: Checkpoint) -> bool:
        return verb_of(step, asked=step.key in self._asked) in WAITS

    def is_taken(self, step: Checkpoint) -> bool:
        """Whether a fork has taken it over: it is older than the run, by more than clocks differ, and the run is one
        that a fork may have made."""
        run = self._run
        may_be = run.ordinal == 1 and run.parent is None and run.key is None
        return (
            may_be
            and step.ended_at < run.created_at
            and (run.attempt == 0 or step.fence > run.fence or step.ended_at < run.created_at - self._clocks_us)
        )

    def _fence_before(self) -> int:
        """The fence of what was recorded before; of the first claim, where that has recorded nothing yet."""
        return 1 if self.owner is None else self.owner.fence

    def _last_at(self) -> int:
        """When the last thing happened that is known; if nothing is, when the run was claimed for the first time."""
        first = self._run.started_at or self._run.created_at
        return max(self._at, first if self.owner is None else self.owner.ended_at)

    def _seen(self, asked: Interrupt) -> Interrupt:
        self._at = max(self._at, asked.created_at)
        return asked

    def _take(self, rows: list[Attempt]) -> list[Try]:
        for row in rows:
            self._tries.remove(row)
            if row.error is not None and row.ended_at is not None:
                self._failed_at[row.key] = row.ended_at
                self._at = max(self._at, row.ended_at)
        return [_try(self._run, row) for row in rows]


def _try(run: Run, row: Attempt) -> Try:
    going_on = row.ended_at is None and run.state is RunState.RUNNING and row.fence == run.fence
    return Try(row, going_on)
