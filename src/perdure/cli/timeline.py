"""What happened to a run, from its log. Pure.

The log is grouped by super-step. Inside one, steps and failed tries stand in the order they were recorded; a change
of the claim (a fence that moved) becomes a `Handover` between them, so that a take-over is seen where it happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    steps = sorted((row for row in log if row.kind is Kind.STEP), key=lambda row: (row.super_step, row.fence, row.seq))
    by_step = {number: tuple(rows) for number, rows in groupby(steps, key=lambda row: row.super_step)}
    tries: dict[int, list[Attempt]] = {}
    for row in attempts:
        tries.setdefault(row.super_step, []).append(row)
    return Timeline(_super_steps(run, boundaries, by_step, tries), ended)


def _super_steps(
    run: Run,
    boundaries: dict[int, Checkpoint],
    steps: dict[int, tuple[Checkpoint, ...]],
    tries: dict[int, list[Attempt]],
) -> tuple[SuperStep, ...]:
    made: list[SuperStep] = []
    owner: Checkpoint | None = None
    for number in sorted(boundaries.keys() | steps.keys() | tries.keys()):
        lines = tuple(_lines(run, steps.get(number, ()), tries.get(number, ()), owner=owner))
        owner = next((line for line in reversed(lines) if isinstance(line, Checkpoint)), owner)
        made.append(SuperStep(number, boundaries.get(number), lines))
    return tuple(made)


def _lines(
    run: Run, steps: Iterable[Checkpoint], tries: Iterable[Attempt], *, owner: Checkpoint | None
) -> Iterator[Line]:
    """Steps with each one's failed tries before it, then the tries of steps that have no record yet."""
    waiting: dict[str, list[Attempt]] = {}
    for row in sorted(tries, key=lambda row: (row.key, row.attempt)):
        waiting.setdefault(row.key, []).append(row)
    for step in steps:
        if owner is not None and step.fence != owner.fence:
            yield Handover(owner.worker, owner.fence, step.worker, step.fence)
        owner = step
        yield from (_try(run, row) for row in waiting.pop(step.key, ()))
        yield step
    for rows in waiting.values():
        yield from (_try(run, row) for row in rows)


def _try(run: Run, row: Attempt) -> Try:
    going_on = row.ended_at is None and run.state is RunState.RUNNING and row.fence == run.fence
    return Try(row, going_on)


def steps_of(line: Timeline) -> Iterator[Checkpoint]:
    """Every recorded step."""
    return (row for step in line.super_steps for row in step.lines if isinstance(row, Checkpoint))
