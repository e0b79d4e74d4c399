"""Rules about bodies and their records.

Fences only grow, and a claim reads all that was committed under lower ones; so a body that began under a higher fence
than its record's was begun by a claim that should have known the record. And a worker's row becomes `dead` only when
somebody took its runs over; so a body that ran again under a higher fence is excused if its first worker's row says
`dead`, or if it was told to break off, and by nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Final

from perdure.core.records import Checkpoint, RunState, run_id, worker_id
from perdure.testing.chaos.account import Execution
from perdure.testing.chaos.case import Case, Found, name, name_of, shown
from perdure.testing.chaos.testimony import Body

VALUES: Final = ("now", "random", "uuid4")
"""Recorded values that have no body."""


def no_body(case: Case) -> Found:
    for body, rows in case.records.items():
        for row in rows:
            if not is_value(body) and not any(
                ended_as(execution, row) for execution in case.account.bodies.get(body, ())
            ):
                yield name(body), [shown(row), *map(str, case.account.bodies.get(body, ()))]


def ended_as(execution: Execution, row: Checkpoint) -> bool:
    """Whether this is the execution that the record is of."""
    at = execution.began
    mine = (at.worker, at.fence, at.attempt) == (row.worker, row.fence, row.attempt)
    return mine and execution.ended is not None and execution.failed == row.failed


def is_value(body: Body) -> bool:
    """Whether a record is of a value that is made without a body."""
    return body.key.rpartition("/")[2].partition("#")[0] in VALUES


def no_record(case: Case) -> Found:
    for body, executions in case.account.bodies.items():
        run = case.books.runs.get(body.run)
        if run is not None and run.state is RunState.COMPLETED and body not in case.records:
            yield name(body), [str(run), *map(str, executions)]


def after_record(case: Case) -> Found:
    for body, rows in case.records.items():
        for row in rows:
            late = [
                execution
                for execution in case.account.bodies.get(body, ())
                if (execution.began.fence, execution.began.attempt) > (row.fence, row.attempt)
            ]
            if late:
                yield name(body), [shown(row), *map(str, late)]


def twice(case: Case) -> Found:
    for body, executions in case.account.bodies.items():
        for before, after in pairwise(executions):
            if before.began.fence != after.began.fence:
                continue
            if before.began.attempt == after.began.attempt or not before.failed:
                yield name(body), [str(before), str(after)]


def repeated(case: Case) -> Found:
    for before, after in case.repeats:
        if not case.is_dead(before.began.worker) and not before.broken_off:
            worker = case.books.workers.get(before.began.worker)
            yield name_of(before), [str(before), str(after), f"{worker_id(before.began.worker)}: {worker}"]


def two_owners(case: Case) -> Found:
    owners: dict[tuple[int, int], dict[int, Execution]] = defaultdict(dict)
    for execution in case.account.executions:
        at = execution.began
        owners[at.run, at.fence].setdefault(at.worker, execution)
    for (run, fence), workers in owners.items():
        if len(workers) > 1:
            yield f"{run_id(run)} under fence {fence}", map(str, workers.values())


def deployment(case: Case) -> Found:
    for execution in case.account.executions:
        run = case.books.runs.get(execution.began.run)
        if run is not None and run.deployment != execution.began.deployment:
            yield name_of(execution), [str(execution.began), str(run)]
