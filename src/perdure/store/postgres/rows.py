"""From the database's rows to records: the statements name their columns in the records' order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.changes import KeyTaken, OtherAgent, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.records import Attempt, Checkpoint, Claimed, Kind, Outcome, Run, RunState, Thread, Worker, WorkerState

Row = Any


def to_run(row: Row) -> Run:
    values = dict(row)
    return Run(**values | {"state": RunState(values["state"]), "tags": tuple(values["tags"])})


def to_thread(row: Row) -> Thread:
    return Thread(*row)


def to_worker(row: Row) -> Worker:
    values = dict(row)
    return Worker(**values | {"state": WorkerState(values["state"])})


def to_checkpoint(row: Row) -> Checkpoint:
    run, super_step, key, kind, *rest = row
    return Checkpoint(run, super_step, key, Kind(kind), *rest)


def to_attempt(row: Row) -> Attempt:
    return Attempt(*row)


def to_outcome(row: Row) -> Outcome:
    return Outcome(*row)


def to_claimed(row: Row, records: Iterable[Row], attempts: Iterable[Row]) -> Claimed:
    log = {"records": tuple(map(to_checkpoint, records)), "attempts": tuple(map(to_attempt, attempts))}
    return Claimed(**dict(row) | log)


def to_start_outcome(start: StartRun, row: Row) -> StartOutcome:
    """An answer of the function `start`; its file says what the numbers mean."""
    answer, run, thread_id, depth, agent = row
    match answer:
        case 0:
            return Started(start.id, start.thread_id, True)
        case 1:
            return Started(run, thread_id, False)
        case 2:
            return KeyTaken(run)
        case 3:
            return ThreadHeld(run, depth)
        case _:
            return OtherAgent(agent)
