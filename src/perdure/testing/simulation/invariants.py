"""What must hold between two looks at the database, and within one.

Pure functions from what was before, what was asked and answered, and what is now, to violations in words. The witness
calls them after every write that the database has done, whoever asked for it and whatever became of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    Change,
    ClaimRequest,
    CommitOutcome,
    EndRun,
    HoldRun,
    RecordAttempt,
    RequeueRun,
)
from perdure.core.records import Checkpoint, Claimed, Kind, Run, RunState, Thread, Worker, WorkerState
from perdure.core.states import TERMINAL, may_move

Log = dict[tuple[int, str], Checkpoint]


@dataclass(slots=True)
class Look:
    """The rows at one moment."""

    runs: dict[int, Run] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    threads: dict[int, Thread] = field(default_factory=dict)
    logs: dict[int, Log] = field(default_factory=dict)

    def alive(self, worker: int | None) -> bool:
        row = self.workers.get(worker or 0)
        return row is not None and row.state is WorkerState.ALIVE


def of_rows(verb: str, before: Look, now: Look) -> Iterator[str]:
    """What each row that differs may have become."""
    for id in before.runs.keys() - now.runs.keys():
        yield f"run r{id} has vanished"
    for id in before.workers.keys() - now.workers.keys():
        yield f"worker w{id} has vanished"
    for id, row in now.workers.items():
        was = before.workers.get(id)
        if was is not None and was.state is not WorkerState.ALIVE and row.state is WorkerState.ALIVE:
            yield f"worker w{id} was {was.state} and is alive again"
    for id, run in now.runs.items():
        if run != before.runs.get(id):
            yield from _of_run(verb, before.runs.get(id), run, now)
        if run.state is RunState.RUNNING and not now.alive(run.worker):
            yield f"run r{id} is running under w{run.worker}, which is not alive"


def _of_run(verb: str, was: Run | None, run: Run, now: Look) -> Iterator[str]:
    name = f"run r{run.id}"
    if (run.state is RunState.RUNNING) != (run.worker is not None):
        yield f"{name} is {run.state} with worker {run.worker}"
    if was is None:
        if verb != "start" or run.state is not RunState.QUEUED:
            yield f"{name} came into being by {verb}, {run.state}"
        return
    if was.state is not run.state and not may_move(was.state, run.state):
        yield f"{name} went from {was.state} to {run.state}"
    if was.state in TERMINAL and verb != "retry":
        yield f"{name} was {was.state} and changed by {verb}"
    if was.state is RunState.HELD and run.state is not RunState.HELD and verb != "release":
        yield f"{name} was held and went on by {verb}"
    if run.fence < was.fence:
        yield f"{name}: its fence fell from {was.fence} to {run.fence}"
    if run.worker is not None and run.worker != was.worker and run.fence <= was.fence:
        yield f"{name}: w{run.worker} took it without a new fence"
    if was.worker is not None and run.worker is None and verb != "commit" and run.fence <= was.fence:
        yield f"{name} was taken from w{was.worker} by {verb} without a new fence"
    if run.super_step < was.super_step:
        yield f"{name} went back from super-step {was.super_step} to {run.super_step}"
    if was.deployment is not None and run.deployment != was.deployment:
        yield f"{name} was pinned to {was.deployment} and is now to {run.deployment}"
    yield from _of_counts(verb, was, run)


def _of_counts(verb: str, was: Run, run: Run) -> Iterator[str]:
    taken_over = verb == "take_over" and was.worker is not None and run.worker is None
    if run.recoveries != was.recoveries + taken_over:
        yield f"run r{run.id}: {was.recoveries} recoveries became {run.recoveries} by {verb}"
    claimed = verb == "claim" and run.state is RunState.RUNNING
    if run.attempt != was.attempt + claimed:
        yield f"run r{run.id}: {was.attempt} claims became {run.attempt} by {verb}"


def of_logs(verb: str, before: Log, now: Log, run: Run, dropped: set[str]) -> Iterator[str]:
    """What may have become of a run's log: rows are added, by commits; a record never changes. `dropped` are keys whose
    failed records may go."""
    name = f"run r{run.id}"
    for at, row in before.items():
        if at not in now:
            gone = (row.failed and row.key in dropped) or (row.kind is Kind.ENDED and verb == "retry")
            if not gone:
                yield f"{name}: record {at} has vanished by {verb}"
        elif now[at] != row:
            yield f"{name}: record {at} has changed by {verb}"
    added = now.keys() - before.keys()
    if added and verb not in ("commit", "start"):
        yield f"{name}: records {sorted(added)} came by {verb}"
    yield from _of_order(name, before, now)
    if run.state in TERMINAL and (run.super_step + 1, "") not in now:
        yield f"{name} is {run.state} without an end in its log"
    if run.state not in TERMINAL and any(row.kind is Kind.ENDED for row in now.values()):
        yield f"{name} is {run.state} and has an end in its log"
    if (run.super_step, "") not in now:
        yield f"{name} is in super-step {run.super_step}, which has no beginning in its log"


def _of_order(name: str, before: Log, now: Log) -> Iterator[str]:
    """A log has no gaps: what a claim recorded later is not there without what it recorded earlier."""
    added: dict[int, list[int]] = {}
    for at in now.keys() - before.keys():
        if now[at].kind is Kind.STEP:
            added.setdefault(at[0], []).append(now[at].seq)
    for super_step, numbers in added.items():
        last = max((row.seq for at, row in before.items() if at[0] == super_step), default=0)
        if sorted(numbers) != list(range(last + 1, last + 1 + len(numbers))):
            yield f"{name}: after number {last} of super-step {super_step} came {sorted(numbers)}"


def of_threads(now: Look) -> Iterator[str]:
    """Whose turn it is, and how many wait."""
    unfinished: dict[int, list[Run]] = {}
    for run in now.runs.values():
        if run.state not in TERMINAL:
            unfinished.setdefault(run.thread, []).append(run)
    for id, thread in now.threads.items():
        waiting = unfinished.get(id, [])
        name = f"thread {thread.thread_id}"
        if thread.depth != len(waiting):
            yield f"{name} says {thread.depth} unfinished runs, and there are {len(waiting)}"
        if (thread.head is None) != (not waiting):
            yield f"{name} has head {thread.head} and {len(waiting)} unfinished runs"
        for run in waiting:
            if run.ready != (run.id == thread.head):
                yield f"{name}: head r{thread.head}, and run r{run.id} is {'' if run.ready else 'not '}ready"
            if run.state is RunState.RUNNING and run.id != thread.head:
                yield f"{name}: run r{run.id} runs out of its turn"


def of_commit(
    worker: int, changes: Sequence[Change], outcome: CommitOutcome, before: Look, now: Look, written: set[Change]
) -> Iterator[str]:
    """A commit wrote for the rightful owner only, and what it says it wrote is there, or was when it came before.
    `written` is what earlier commits wrote; this one adds to it."""
    mine = {change.run: change.fence for change in changes}
    for id, log in now.logs.items():
        for at in log.keys() - before.logs.get(id, {}).keys():
            row, was = log[at], before.runs.get(id)
            if was is None or was.worker != worker or was.fence != row.fence or mine.get(id) != row.fence:
                yield f"w{worker} wrote {at} of run r{id} under fence {row.fence} and was not its owner"
    if not before.alive(worker) and (outcome.alive or before.runs != now.runs):
        yield f"w{worker} is not alive, and its commit was taken"
    if not outcome.alive:
        return
    for change in changes:
        if change.run in outcome.lost or change.run in outcome.refused:
            continue
        was = before.runs[change.run]
        if (was.worker, was.fence) == (worker, change.fence):
            written.add(change)
        if change not in written or not (was.worker != worker or _is_there(change, now)):
            yield f"w{worker} was told that {type(change).__name__} of run r{change.run} is on disk; it is not"


def _is_there(change: Change, now: Look) -> bool:
    run = now.runs[change.run]
    log = now.logs.get(change.run, {})
    match change:
        case AppendCheckpoint():
            row = log.get((change.super_step, change.key))
            return row is not None and row.fence == change.fence and row.payload == change.payload
        case BeginSuperStep():
            row = log.get((change.super_step, ""))
            return row is not None and row.fence == change.fence
        case EndRun():
            return run.state is change.outcome
        case RequeueRun() | HoldRun():
            return run.state is not RunState.RUNNING
        case RecordAttempt():
            return True


def of_claim(request: ClaimRequest, claimed: Sequence[Claimed], before: Look, now: Look, now_us: int) -> Iterator[str]:
    """A claim took what it may, and brought what is there."""
    if claimed and not before.alive(request.worker):
        yield f"w{request.worker} is not alive and claimed"
    for each in claimed:
        was, run = before.runs[each.run], now.runs[each.run]
        name = f"run r{run.id}, claimed by w{request.worker}"
        if was.state is not RunState.QUEUED or not was.ready or was.ready_at > now_us:
            yield f"{name}, was {was.state}, {'' if was.ready else 'not '}ready, due in {was.ready_at - now_us} us"
        if run.worker != request.worker or run.fence != each.fence:
            yield f"{name} under fence {each.fence}, is w{run.worker}'s under {run.fence}"
        if was.agent not in request.agents or was.queue not in request.queues:
            yield f"{name}, is of agent {was.agent} in queue {was.queue}"
        if was.deployment not in (None, request.deployment) or run.deployment != request.deployment:
            yield f"{name} of {request.deployment}, is pinned to {was.deployment}"
        there = {at for at, row in now.logs[run.id].items() if row.kind is Kind.STEP and at[0] == run.super_step}
        brought = {(row.super_step, row.key) for row in each.records}
        if there != brought:
            yield f"{name}: its log has {sorted(there)}, and it got {sorted(brought)}"
