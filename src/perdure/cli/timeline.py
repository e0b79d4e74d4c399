"""What happened to a run, from its log. Pure.

The log is grouped by super-step. Inside one, steps stand in the order they were recorded, each with its failed tries
before it. Where the claim changed (the fence moved), a `Handover` stands between them, so that a take-over is seen
where it happened; tries that the earlier claim left behind stand before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from perdure.core.records import Attempt, Checkpoint, Kind, Run, RunState


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


Line = Checkpoint | Try | Handover


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


def timeline(run: Run, log: Sequence[Checkpoint], attempts: Sequence[Attempt]) -> Timeline:
    """Order a run's log for reading."""
    ended = next((row for row in log if row.kind is Kind.ENDED), None)
    boundaries = {row.super_step: row for row in log if row.kind is Kind.BOUNDARY}
    ordered = sorted(
        (row for row in log if row.kind is Kind.STEP), key=lambda row: (row.super_step, row.fence, row.seq)
    )
    steps = {number: list(rows) for number, rows in groupby(ordered, key=lambda row: row.super_step)}
    tries: dict[int, list[Attempt]] = {}
    for row in _left_over(ordered, attempts):
        tries.setdefault(row.super_step, []).append(row)
    made: list[SuperStep] = []
    owner: Checkpoint | None = None
    for number in sorted(boundaries.keys() | steps.keys() | tries.keys()):
        recorded = steps.get(number, [])
        lines = tuple(_lines(run, recorded, tries.get(number, []), owner=owner))
        owner = recorded[-1] if recorded else owner
        made.append(SuperStep(number, boundaries.get(number), lines))
    return Timeline(tuple(made), ended)


def _left_over(steps: Sequence[Checkpoint], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Tries that did not become their step's record, in the order they began. (A try that might be cut off is noted
    before its body runs; if it succeeds, the note stays beside the record.)"""
    records = {(row.super_step, row.key, row.attempt) for row in steps}
    left = [row for row in attempts if (row.super_step, row.key, row.attempt) not in records]
    return sorted(left, key=lambda row: (row.fence, row.started_at, row.key, row.attempt))


def _lines(run: Run, steps: Sequence[Checkpoint], tries: list[Attempt], *, owner: Checkpoint | None) -> Iterator[Line]:
    """The lines of one super-step; `owner` recorded the step before."""
    waiting = list(tries)

    def take(*, before_fence: int = 0, key: str | None = None) -> list[Try]:
        taken = [row for row in waiting if row.fence < before_fence or row.key == key]
        for row in taken:
            waiting.remove(row)
        return [_try(run, row) for row in taken]

    for step in steps:
        if owner is not None and step.fence != owner.fence:
            yield from take(before_fence=step.fence)
            yield Handover(owner.worker, owner.fence, step.worker, step.fence)
        owner = step
        yield from take(key=step.key)
        yield step
    yield from (_try(run, row) for row in waiting)


def _try(run: Run, row: Attempt) -> Try:
    going_on = row.ended_at is None and run.state is RunState.RUNNING and row.fence == run.fence
    return Try(row, going_on)
