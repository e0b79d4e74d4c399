"""What happened to a run, from its log. Pure.

The log is grouped by super-step. Inside one, steps stand in the order they were recorded, each with its failed tries
before it. Where the claim changed (the fence moved), a `Handover` stands between them, so that a take-over is seen
where it happened; tries that the earlier claim left behind stand before it. Where the run was parked, a `Parked` stands
there instead: a parking is not recorded, but it shows. The store let go of the run without raising its fence, so the
next claim's is one higher, and the first thing that claim has recorded is what was waited for (or what a cancelled run
did to clean up). A question about a budget leaves no record: there the question says when it was asked, and the first
thing that the next claim has begun when it was over. What the run waits for now stands at the end, and what a fork has
taken over at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from perdure.cli.budget_stops import BudgetStops
from perdure.cli.budget_words import Budgets, about
from perdure.cli.verbs import WAITS, verb_of
from perdure.core.records import Attempt, Checkpoint, Interrupt, Kind, Run, RunState, Wait
from perdure.core.states import TERMINAL

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
    """Who went on with it, where that is known."""
    for_budget: bool = False
    """There is no record of what it waited for: it asked whether its budget is raised."""


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
    unsure: bool = False
    """It may have been parked for a budget at times that nobody knows."""


def timeline(
    run: Run,
    log: Sequence[Checkpoint],
    attempts: Sequence[Attempt],
    *,
    waits: Sequence[Wait] = (),
    questions: Sequence[Interrupt] = (),
    budgets: Budgets | None = None,
    clocks_us: int = CLOCKS_US,
) -> Timeline:
    """Order a run's log for reading. `budgets`: those that its questions are about. `clocks_us`: how much the clocks of
    its workers and of the store may differ."""
    ended = next((row for row in log if row.kind is Kind.ENDED), None)
    boundaries = {row.super_step: row for row in log if row.kind is Kind.BOUNDARY}
    recorded = [row for row in log if row.kind is Kind.STEP]
    steps, tries = _grouped(recorded), _grouped(_left_over(recorded, attempts))
    asked, open_now = _grouped(questions), _grouped(waits)
    made: list[SuperStep] = []
    owner: Checkpoint | None = None
    first, unsure = min(boundaries, default=1), False
    budgets = budgets if budgets and run.cancel is None else {}  # that withdraws questions too, and nobody knows when
    for number in sorted(boundaries.keys() | steps.keys() | tries.keys() | open_now.keys()):
        boundary = boundaries.get(number)
        if boundary is not None and boundary.fence == (1 if owner is None else owner.fence):
            owner = boundary  # the first one, under fence 0, was filed by whoever started the run
        told = _Told(run, tries.get(number, []), asked.get(number, []), owner, clocks_us, budgets, number)
        lines: list[Line] = [Forked(0, number)] if number == first > 1 and not _takes(told, steps, number) else []
        lines += list(told.lines(steps.get(number, []), open_now.get(number, [])))
        owner = told.owner
        unsure = unsure or told.unsure
        if ended is not None and number == ended.super_step - 1:
            lines += told.end(ended)
        made.append(SuperStep(number, boundary, tuple(lines)))
    return Timeline(tuple(made), ended, unsure)


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
                 clocks_us: int, budgets: Budgets, number: int) -> None:  # fmt: skip
        self._is_last = number == run.super_step
        self._clocks_us = clocks_us
        self._stops = BudgetStops(asked, budgets, clocks_us)
        self.unsure = False
        self.owner = owner
        self._run = run
        self._tries = tries
        self._asked = {row.key: row for row in asked}
        self._of_budgets = [row for row in asked if about(row) is not None]
        self._done: set[str] = set()
        """The steps that are recorded so far, and when the last thing was done, whether that is recorded or failed."""
        self._worked_at = 0
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
        unanswered = self._unanswered(recorded, waits)
        for step in own:
            if self._fence_before() != step.fence:
                yield from self._take([row for row in self._tries if row.fence < step.fence])
                begun = self._begun(step.fence, own)
                before = list(_until(unanswered, step.ended_at, begun))
                stops = self._stops_before(step, begun)
                yield from self._asked_and_parked(before, stops)
                yield from self._between(step, begun if stops else None)
            self.owner = step
            self._done.add(step.key)
            self._worked_at = max(self._worked_at, step.ended_at)
            self._at = max(self._at, step.ended_at)
            yield from self._take([row for row in self._tries if row.key == step.key])
            yield step
        yield from self._rest(unanswered, waits)
        yield from waits
        if waits and self._run.state in (RunState.WAITING, RunState.QUEUED):  # or woken, and not taken up yet
            yield Parked(max([self._last_at(), *(wait.opened_at for wait in waits)]), None, None)

    def end(self, ended: Checkpoint) -> Iterator[Line]:
        """What stands between the last claim that recorded something and the one that ended the run."""
        if ended.worker and self._fence_before() == ended.fence - 1:
            yield Parked(self._last_at(), ended.ended_at, ended.worker)
        elif self._fence_before() < ended.fence:
            self._note_unsure(ended.ended_at)

    def _unanswered(self, recorded: Sequence[Checkpoint], waits: Sequence[Wait]) -> list[Interrupt]:
        """The questions of which neither a record nor a wait is left, oldest first: all about budgets, too, that are
        over, of which one place may have had several."""
        left = self._asked.keys() - {row.key for row in recorded} - {wait.key for wait in waits}
        targets = {wait.target for wait in waits}
        others = [row for key, row in self._asked.items() if key in left and about(row) is None]
        return sorted(
            [*others, *(row for row in self._of_budgets if row.id not in targets)], key=lambda row: row.id
        )  # fmt: skip

    def _begun(self, fence: int, own: Sequence[Checkpoint]) -> int | None:
        """When the claim with this fence began the first thing that is known; None for none."""
        starts = [row.started_at for row in own if row.fence == fence]
        return min([*starts, *(row.started_at for row in self._tries if row.fence == fence)], default=None)

    def _stops_before(self, step: Checkpoint, begun: int | None) -> list[Interrupt]:
        """The questions about budgets for which the run was parked before the claim that recorded this."""
        claims = step.fence - self._fence_before()
        if claims == 1 and self._has_waited(step):
            return []
        stops = self._stops.between(claims=claims, worked_at=self._worked_at, begun=begun, done=self._done)
        if not stops:
            self._note_unsure(begun)
        return stops

    def _note_unsure(self, begun: int | None) -> None:
        self.unsure = self.unsure or self._stops.is_left(worked_at=self._worked_at, begun=begun, done=self._done)

    def _asked_and_parked(self, asked: Iterable[Interrupt], stops: Sequence[Interrupt]) -> Iterator[Line]:
        """Questions that have no record, and the parkings for them, but for the last."""
        for row in asked:
            yield self._seen(row)
            if row in stops[:-1]:
                yield Parked(self._last_at(), stops[stops.index(row) + 1].created_at, None, for_budget=True)

    def _rest(self, unanswered: Sequence[Interrupt], waits: Sequence[Wait]) -> Iterator[Line]:
        """What stands behind the last record."""
        run = self._run
        stops: list[Interrupt] = []
        claims, begun = run.fence - self._fence_before(), self._begun(run.fence, ())
        if self._is_last and run.state not in TERMINAL and claims > 0:
            stops = self._stops.between(claims=claims, worked_at=self._worked_at, begun=begun, done=self._done)
            yield from self._take([row for row in self._tries if row.fence < run.fence])
        yield from self._asked_and_parked(unanswered, stops)
        if stops:
            after = [wait.opened_at for wait in waits if wait.opened_at > stops[-1].created_at]
            until = min([*after, *([] if begun is None else [begun])], default=self._stops.until(stops[-1]))
            self.unsure = self.unsure or until is None
            if until is not None:
                yield Parked(min(self._last_at(), until), until, run.worker, for_budget=True)
        elif claims > 0 and run.state not in TERMINAL:
            self._note_unsure(begun)
        yield from self._take(list(self._tries))

    def _between(self, step: Checkpoint, begun: int | None) -> Iterator[Line]:
        """What stands between two claims; `begun`: when the later one began something, if the run was parked for its
        budget before."""
        if begun is not None:
            yield Parked(min(self._last_at(), begun), begun, step.worker, for_budget=True)
        elif self._fence_before() == step.fence - 1 and (self._has_waited(step) or self._run.cancel is not None):
            yield Parked(self._last_at(), step.ended_at if self._is_wait(step) else step.started_at, step.worker)
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
                self._worked_at = max(self._worked_at, row.ended_at)
                self._failed_at[row.key] = row.ended_at
                self._at = max(self._at, row.ended_at)
        return [_try(self._run, row) for row in rows]


def _until(unanswered: list[Interrupt], ended_at: int, begun: int | None) -> Iterator[Interrupt]:
    """Takes those out that were asked before a record; about a budget, before its claim had begun anything."""
    while unanswered:
        limit = ended_at if begun is None or about(unanswered[0]) is None else begun
        if unanswered[0].created_at > limit:
            return
        yield unanswered.pop(0)


def _try(run: Run, row: Attempt) -> Try:
    going_on = row.ended_at is None and run.state is RunState.RUNNING and row.fence == run.fence
    return Try(row, going_on)
