"""The store in memory, broken where it decides who may write: commits, take-overs, give-backs, renewals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from perdure.core.changes import CommitOutcome, EndRun
from perdure.core.records import Attempt, RunState, TakenOver, WorkerState
from perdure.store.memory import commits
from perdure.store.memory.commits import _Verdict
from perdure.store.memory.store import MemoryStore
from tests.simulation.breaking import Mutation, replaced, wrapped


def _whoever_runs_it(original: Any, tables: Any, worker: int, change: Any) -> Any:
    """The judgement without worker and fence."""
    run = tables.runs.get(change.run)
    verdict = original(tables, worker, change)
    if verdict is not _Verdict.LOST or run is None or run.state is not RunState.RUNNING:
        return verdict
    at = commits._address(change)
    return _Verdict.WRITE if at is None or at not in tables.checkpoints[run.id] else _Verdict.DONE


def _ended_again(original: Any, tables: Any, worker: int, change: Any) -> Any:
    verdict = original(tables, worker, change)
    if isinstance(change, EndRun) and tables.runs[change.run].state is RunState.COMPLETED:
        tables.move(change.run, ended_at=tables.now_us() + 1)
    return verdict


def _never_done_before(original: Any, tables: Any, worker: int, change: Any) -> Any:
    verdict = original(tables, worker, change)
    return _Verdict.LOST if verdict is _Verdict.DONE else verdict


def _dead_or_alive(original: Any, tables: Any, worker: int, changes: Any, *, now: int) -> Any:
    with patch.object(tables, "is_alive", lambda worker: True):
        return original(tables, worker, changes, now=now)


def _requeued_at_the_end(original: Any, tables: Any, change: Any, *, now: int) -> None:
    original(tables, change, now=now)
    tables.move(change.run, ready_at=now)


def _whatever_is_there(tables: Any, change: Any) -> None:
    at = (change.super_step, change.key, change.attempt)
    row = (change.fence, change.error, change.started_at, change.ended_at)
    tables.attempts[change.run][at] = Attempt(change.run, *at, *row)


@contextmanager
def _told_and_not_written() -> Iterator[None]:
    """Every seventh batch."""
    count = itertools.count(1)
    original = commits.apply

    def apply(tables: Any, worker: int, changes: Any, *, now: int) -> Any:
        return CommitOutcome() if next(count) % 7 == 0 else original(tables, worker, changes, now=now)

    with patch.object(commits, "apply", apply):
        yield


def _taking_over(*forgotten: str) -> Any:
    """A take-over that leaves some fields as they are."""

    def take_over(original: Any, store: Any, tables: Any, worker: int, recoveries_max: int, *, now: int) -> TakenOver:
        before = {run: tables.runs[run] for run in tables.held_by[worker]}
        taken: TakenOver = original(store, tables, worker, recoveries_max, now=now)
        for run, row in before.items():
            as_it_was = {name: getattr(row, name) for name in forgotten}
            tables.runs[run] = msgspec.structs.replace(tables.runs[run], **as_it_was)
        return taken

    return wrapped(MemoryStore, "_take_over_one", take_over)


def _held_after(deaths: int) -> Any:
    def take_over(original: Any, store: Any, tables: Any, worker: int, recoveries_max: int, *, now: int) -> Any:
        return original(store, tables, worker, deaths, now=now)

    return wrapped(MemoryStore, "_take_over_one", take_over)


def _every_death_counts(original: Any, store: Any, tables: Any, worker: int, recoveries_max: int, *, now: int) -> Any:
    with patch.object(tables, "checkpoints", {run: {} for run in tables.runs}):
        return original(store, tables, worker, recoveries_max, now=now)


async def _whose_lease_holds(original: Any, store: Any, suspects: Any, *, recoveries_max: int) -> Any:
    everybody = (await store._tables()).workers
    return await original(store, [*suspects, *everybody], recoveries_max=recoveries_max)


def _without_a_fence(original: Any, store: Any, tables: Any, runs: Any) -> int:
    given = sorted(runs)
    for run in given:
        tables.move(run, state=RunState.QUEUED, worker=None)
    return len(given)


async def _all_given_back(original: Any, store: Any, worker: int, *, keep: Any, ticket: int = 0) -> Any:
    return await original(store, worker, keep=(), ticket=ticket)


async def _revived(original: Any, store: Any, worker: int, lease_us: int) -> Any:
    tables = await store._tables()
    if not tables.is_alive(worker):
        tables.workers[worker] = msgspec.structs.replace(tables.workers[worker], state=WorkerState.ALIVE)
    return await original(store, worker, lease_us)


async def _ended_only(original: Any, store: Any, worker: int) -> int:
    tables = await store._tables()
    with tables.writing() as now:
        if tables.is_alive(worker):
            tables.end_worker(worker, WorkerState.STOPPED, now)
    return 0


OWNERSHIP = (
    Mutation("A commit is taken under any fence", "owner", wrapped(commits, "_judge", _whoever_runs_it)),
    Mutation("A commit of a worker that is dead is taken", "not alive", wrapped(commits, "apply", _dead_or_alive)),
    Mutation("A run that has ended ends again", "was completed", wrapped(commits, "_judge", _ended_again)),
    Mutation("A batch that comes again is not recognised", "lost", wrapped(commits, "_judge", _never_done_before)),
    Mutation("A batch is acknowledged and not written", "it is not", _told_and_not_written),
    Mutation(
        "A run that is handed back goes to the end of the queue",
        "its place|is to wait",
        wrapped(commits, "_requeue", _requeued_at_the_end),
    ),
    Mutation(
        "A try that begins replaces how it ended",
        "how any more",
        replaced(commits, "_record_attempt", _whatever_is_there),
    ),
    Mutation("A take-over does not raise the fence", "new fence", _taking_over("fence")),
    Mutation("A take-over is not counted", "recoveries", _taking_over("recoveries")),
    Mutation("A death is no strike", "strikes", _taking_over("strikes")),
    Mutation(
        "A death is a strike though something was recorded",
        "strikes",
        wrapped(MemoryStore, "_take_over_one", _every_death_counts),
    ),
    Mutation("A run that kills its workers is never held", "held", _held_after(1_000)),
    Mutation("A run is held after two deaths", "held", _held_after(2)),
    Mutation("A living worker is taken over", "known dead", wrapped(MemoryStore, "take_over", _whose_lease_holds)),
    Mutation("A give-back does not raise the fence", "new fence", wrapped(MemoryStore, "_give_back", _without_a_fence)),
    Mutation(
        "A give-back takes what is being executed", "which keeps", wrapped(MemoryStore, "give_back", _all_given_back)
    ),
    Mutation("A renewal revives a dead worker", "alive again", wrapped(MemoryStore, "renew", _revived)),
    Mutation("A worker that retires gives nothing back", "not alive", wrapped(MemoryStore, "retire", _ended_only)),
)
