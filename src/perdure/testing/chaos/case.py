"""The case: both witnesses side by side, the rules, and what a broken one looks like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from perdure.core.records import Checkpoint, Kind, WorkerState, run_id, worker_id
from perdure.testing.chaos.account import Account, Execution
from perdure.testing.chaos.books import Books
from perdure.testing.chaos.testimony import Asked, Body

Found = Iterator[tuple[str, Iterable[str]]]
"""Where a rule is broken, and the rows that show it."""


class Rule(StrEnum):
    """What must not be."""

    START_LOST = "an acknowledged start is not in the store"
    TWO_RUNS = "one key stands for two runs"
    UNASKED = "a run is there that nobody asked for"
    REFUSED = "a start was refused without a reason"
    OTHER_INPUT = "a key took other input"
    EARLY = "a run began before its delay was over"
    UNFINISHED = "a run did not become terminal"
    HELD = "a run was held without a reason"
    UNTOLD = "a client was not told how its run ended"
    RESULT = "a result is not what it must be"
    STATE = "a thread's state does not hold its runs' entries, once each and in order"
    NO_BODY = "a record has no body that ended as it says"
    NO_RECORD = "a body of a completed run has no record"
    AFTER_RECORD = "a body began after its record was there"
    TWICE = "a body began twice under one claim"
    REPEATED = "a body ran again although its worker was alive"
    KEY_TWICE = "a log has a key twice"
    GAP = "a log has a gap"
    FENCES = "fences in a log do not only grow, one worker each"
    TWO_OWNERS = "two workers executed a run under one fence"
    DEPLOYMENT = "a run was executed by another deployment than its own"
    FELL = "a process ended by itself, or did not when it was asked to"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken, where, and the rows that show it."""

    rule: Rule
    where: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Both witnesses. `over`: the whole was played to its end, and nothing may be left unfinished."""

    account: Account
    books: Books
    over: bool = True

    @cached_property
    def records(self) -> dict[Body, list[Checkpoint]]:
        """The recorded steps."""
        found: dict[Body, list[Checkpoint]] = defaultdict(list)
        for log in self.books.logs.values():
            for row in log:
                if row.kind is Kind.STEP:
                    found[Body(row.run, row.super_step, row.key)].append(row)
        return found

    @cached_property
    def runs_of_key(self) -> dict[str, set[int]]:
        """The runs that each key was acknowledged with, or is written on."""
        found: dict[str, set[int]] = defaultdict(set)
        for key, lines in self.account.started.items():
            found[key].update(line.run for line in lines)
        for run in self.books.runs.values():
            if run.key is not None:
                found[run.key].add(run.id)
        return found

    @cached_property
    def orders(self) -> dict[int, Asked]:
        """What each run was asked for with."""
        return {
            run.id: self.account.asked[run.key]
            for run in self.books.runs.values()
            if run.key is not None and run.key in self.account.asked
        }

    @cached_property
    def repeats(self) -> list[tuple[Execution, Execution]]:
        """Pairs of a body's executions of which the second did again what the first had begun under a lower fence.
        That a failed try is followed by the next one is no repeat, whoever makes it."""
        return [
            (before, after)
            for executions in self.account.bodies.values()
            for before, after in pairwise(executions)
            if before.began.fence < after.began.fence
            and not (before.failed and after.began.attempt > before.began.attempt)
        ]

    @cached_property
    def in_flight(self) -> int:
        """Bodies that a dead worker had begun last and not got recorded, and those that were told to break off."""
        written = {(body, row.fence) for body, rows in self.records.items() for row in rows}
        return sum(
            (self.is_dead(last.began.worker) or last.broken_off) and (body, fence) not in written
            for body, executions in self.account.bodies.items()
            for fence, last in {each.began.fence: each for each in executions}.items()
        )

    def is_dead(self, worker: int) -> bool:
        """Whether this worker was declared dead."""
        row = self.books.workers.get(worker)
        return row is not None and row.state is WorkerState.DEAD


def name(body: Body) -> str:
    """A body as it is shown."""
    return f"{run_id(body.run)} {body.super_step} {body.key}"


def name_of(execution: Execution) -> str:
    """The body of an execution, as it is shown."""
    return name(Body(execution.began.run, execution.began.super_step, execution.began.key))


def shown(row: Checkpoint) -> str:
    """A checkpoint on one line, without its payload."""
    what = row.kind.name.lower() + (" failed" if row.failed else "")
    return (
        f"{run_id(row.run)} {row.super_step} {row.key!r} {what}, seq {row.seq}, try {row.attempt}, fence {row.fence}, "
        f"{worker_id(row.worker)}"
    )
