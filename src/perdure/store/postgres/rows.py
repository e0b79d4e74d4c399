"""From the database's rows to records: the statements name their columns in the records' order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from perdure.core.changes import KeyTaken, OtherAgent, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.records import Attempt, Checkpoint, Claimed, Kind, Outcome, Run, RunState, Thread, Worker, WorkerState

Row = Any

_KINDS: Final = tuple(Kind)


def to_run(row: Row) -> Run:
    values = dict(row)
    return Run(**values | {"state": RunState(values["state"]), "tags": tuple(values["tags"])})


def to_thread(row: Row) -> Thread:
    return Thread(*row)


def to_worker(row: Row) -> Worker:
    values = dict(row)
    return Worker(**values | {"state": WorkerState(values["state"])})


def to_checkpoint(row: Row) -> Checkpoint:
    """Column by column: a replay builds thousands, and unpacking the rest as a list took five times as long."""
    run, super_step, key, kind, seq, fence, worker, attempt, digest, failed, payload, state, started_at, ended_at = row
    return Checkpoint(
        run, super_step, key, _KINDS[kind], seq, fence, worker, attempt, digest, failed, payload, state,
        started_at, ended_at,
    )  # fmt: skip


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
