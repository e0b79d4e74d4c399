"""A commit writes for the rightful owner only, and what it says it wrote is there, or was when it came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BeginUndo,
    BuryMessage,
    Change,
    CloseWait,
    CommitOutcome,
    Deliver,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    RecordAttempt,
    RequeueRun,
    Reserve,
    SendMessage,
    SettleEffect,
    place_of,
    record_of,
)
from perdure.core.records import InterruptState, Run, RunState
from perdure.core.requests import Bounce
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.batches import bounced, owned
from perdure.testing.simulation.rules.bystanders import is_by_the_way
from perdure.testing.simulation.rules.effects import is_there
from perdure.testing.simulation.rules.look import Log, Look, Write

IN_VAIN_MAX: Final = 40
"""How often a claim of a run may ask for it to be parked, and be told that something has come."""


def of_commit(write: Write, annals: Annals) -> Iterator[str]:
    """The owner wrote, and only the owner; what this commit has written goes into the annals."""
    if write.verb != "commit":
        return
    worker: int = write.args[0]
    mine = {change.run: change.fence for change in write.changes}
    yield from _of_strangers(write, worker, mine)
    if not write.done:
        return
    outcome: CommitOutcome = write.answer
    if not write.before.alive(worker) and (outcome.alive or write.before.runs != write.now.runs):
        yield f"w{worker} is not alive, and its commit was taken"
    if outcome.alive:
        yield from _of_answer(write, worker, outcome, mine, annals)
        yield from _of_changes(write, worker, outcome, annals)


def _of_strangers(write: Write, worker: int, mine: dict[int, int]) -> Iterator[str]:
    """Nothing of a run was written that this worker did not own."""
    before, now = write.before, write.now
    for id in write.touched:
        was, run = before.runs.get(id), now.runs[id]
        added = now.logs.get(id, {}).keys() - before.logs.get(id, {}).keys()
        changed = run != was or bool(added) or now.tries.get(id) != before.tries.get(id)
        if not changed or owned(was, worker, mine.get(id)):
            continue
        if was is None or added or not is_by_the_way(write, was, run):
            yield f"w{worker} wrote {sorted(added) or 'the row'} of run r{id} and was not its owner"
    for id in write.touched:
        for at in sorted(now.logs.get(id, {}).keys() - before.logs.get(id, {}).keys()):
            if now.logs[id][at].fence != mine.get(id):
                yield f"w{worker} wrote {at} of run r{id} under fence {now.logs[id][at].fence}, not {mine.get(id)}"


def _of_answer(
    write: Write, worker: int, outcome: CommitOutcome, mine: dict[int, int], annals: Annals
) -> Iterator[str]:  # fmt: skip
    """Nobody is told that it has lost what it owns, and nothing is refused that these agents write."""
    for id in sorted(outcome.lost):
        if owned(write.before.runs.get(id), worker, mine.get(id)):
            yield f"w{worker} was told that it has lost run r{id}, which it owns"
    for id, why in sorted(outcome.refused.items()):
        yield f"w{worker} was refused a write of run r{id}: {why}"
    runs = write.before.runs
    cancelled = {id for id in mine if id in runs and id not in outcome.lost and runs[id].cancel is not None}
    if outcome.cancelled != cancelled:
        yield f"w{worker} was told that {sorted(outcome.cancelled)} are cancelled; those who are: {sorted(cancelled)}"
    for id in sorted(outcome.awake):
        waits = write.now.waits.get(id, {}).values()
        if not any(wait.due or write.now.has_come(wait) for wait in waits):
            yield f"w{worker} was told that run r{id} is awake, and it only waits"
        annals.in_vain[id, mine[id]] += 1
        if annals.in_vain[id, mine[id]] == IN_VAIN_MAX:
            come = [wait.key for wait in waits if wait.due or write.now.has_come(wait)]
            yield f"run r{id} was to be parked {IN_VAIN_MAX} times, and does not take what has come: {come}"
    for change in write.changes:
        bounce = bounced(change, outcome)
        if bounce is not None and not _is_so(write, change, bounce):
            yield f"w{worker} was told that {type(change).__name__} of run r{change.run} is {bounce}; it is not so"


def _is_so(write: Write, change: Change, why: Bounce) -> bool:
    """Whether a change had to bounce."""
    match change:
        case SendMessage(message=message):
            thread = write.before.thread_named(message.thread_id)
            if why is Bounce.NO_THREAD or thread is None:
                return why is Bounce.NO_THREAD and thread is None
            return why is Bounce.FULL and (write.now.is_full(thread.id) or write.before.is_full(thread.id))
        case CloseWait() if why is Bounce.GONE:
            return change.take not in write.now.mail.get(change.thread, {})
        case CloseWait() if why is Bounce.ANSWERED:
            at = change.run, change.super_step, change.key
            asked = (each for each in write.before.interrupts.values() if (each.run, each.super_step, each.key) == at)
            return any(each.state is InterruptState.ANSWERED for each in asked)
        case Deliver() | Reserve():
            return True  # their models know better
        case _:
            return False


def _of_changes(write: Write, worker: int, outcome: CommitOutcome, annals: Annals) -> Iterator[str]:
    for change in write.changes:
        if isinstance(change, EndRun) and _is_excepted(change, outcome):
            annals.too_late.add(change.run)
        if isinstance(change, ParkRun) and owned(write.before.runs.get(change.run), worker, change.fence):
            yield from _of_parking(write, change, annals)
        if change.run in outcome.lost or change.run in outcome.refused or _is_excepted(change, outcome):
            continue
        was = write.before.runs.get(change.run)
        owns = owned(was, worker, change.fence)
        if owns:
            annals.written.add(change)
        what = f"{type(change).__name__} of run r{change.run}"
        if _comes_too_late(change, was, annals):
            continue
        if change not in annals.written or (owns and not _is_there(change, write)):
            yield f"w{worker} was told that {what} is on disk; it is not"
        if owns and write.now.absent.get(change.run):
            yield f"w{worker} was told that {what} is on disk; {write.now.absent[change.run]} of its blobs are not"


def _of_parking(write: Write, change: ParkRun, annals: Annals) -> Iterator[str]:
    """What is parked only waits, and knows whether it is to end."""
    was, run = write.before.runs[change.run], write.now.runs[change.run]
    if run.state is not RunState.WAITING:
        return
    running = +annals.in_flight.get((change.run, change.fence), Counter())
    if running:
        yield f"run r{run.id} was parked while the bodies of {sorted(running)} run"
    if was.cancel is not None and not change.cancelled:
        yield f"run r{run.id} was parked, and does not know of its cancellation"


def _comes_too_late(change: Change, was: Run | None, annals: Annals) -> bool:
    """Whether its run's slice is over, and it would only let go of the run, or had bounced in time: nobody hears this
    answer, or it is as good as the one that was lost."""
    if was is None or was.state is RunState.RUNNING or was.fence != change.fence:
        return False
    record = record_of(change)
    in_time = record is not None and (record.run, record.super_step, record.seq) in annals.bounced
    return in_time or isinstance(change, ParkRun | RequeueRun | Reserve)


def _is_excepted(change: Change, outcome: CommitOutcome) -> bool:
    """Whether the answer says that this one was not written."""
    match change:
        case EndRun():
            return change.run in outcome.cancelled and change.outcome is not RunState.CANCELLED
        case ParkRun():
            return change.run in outcome.awake or (change.run in outcome.cancelled and not change.cancelled)
        case IntendEffect():
            return change.run in outcome.cancelled and not change.cancelled
        case _:
            return bounced(change, outcome) is not None or place_of(change) in outcome.bounced


def _is_there(change: Change, write: Write) -> bool:
    now: Look = write.now
    run = now.runs[change.run]
    log = now.logs.get(change.run, {})
    match change:
        case AppendCheckpoint():
            row = log.get((change.super_step, change.key))
            dropped = change.failed and change.key in write.dropped_keys(change.run)
            return dropped or (row is not None and row.fence == change.fence and row.payload == change.payload)
        case SendMessage():
            return _is_there(change.record, write)
        case Deliver(delivery=new):
            there = any((row.sink, row.key) == (new.sink, new.key) for row in now.deliveries.values())
            return there and _is_there(change.record, write)
        case Reserve():
            return True  # the books of `budgets.py` say whether it is
        case CloseWait():
            waits = not _is_over(change, run, log) and change.key in now.waits.get(change.run, {})
            return (change.record is None or _is_there(change.record, write)) and (not waits or _again(change, write))
        case OpenWait():
            there = change.key in now.waits.get(change.run, {}) or (change.super_step, change.key) in log
            return there or _is_over(change, run, log) or _again(change, write)
        case BuryMessage():
            return change.seq not in now.mail.get(change.thread, {})
        case IntendEffect():
            return is_there(write, change)
        case SettleEffect():
            return is_there(write, change) and (change.record is None or _is_there(change.record, write))
        case BeginUndo():
            return run.undoing
        case ParkRun():
            return run.state is RunState.WAITING or _ends_beside(change, write)
        case BeginSuperStep():
            row = log.get((change.super_step, ""))
            return row is not None and row.fence == change.fence and row.state == change.state
        case EndRun():
            return run.state is change.outcome and run.ended_at is not None
        case RequeueRun():
            return run.state is RunState.QUEUED
        case HoldRun():
            return run.state is RunState.HELD and run.reason == change.reason
        case RecordAttempt():
            at = (change.super_step, change.key, change.attempt)
            tried = now.tries.get(change.run, {}).get(at)
            forgotten = write.sends_on(change.run) and (
                change.error is None or change.key in write.dropped_keys(change.run)
            )
            return forgotten or (tried is not None and (change.error is None or tried.error is not None))


def _ends_beside(change: ParkRun, write: Write) -> bool:
    """Whether the same commit ends the run's slice otherwise, which counts."""
    ends = EndRun | RequeueRun | HoldRun
    return any(isinstance(each, ends) and each.run == change.run for each in write.changes)


def _is_over(change: OpenWait | CloseWait, run: Run, log: Log) -> bool:
    """Whether its super-step has ended."""
    return run.super_step > change.super_step or (change.super_step + 1, "") in log


def _again(change: OpenWait | CloseWait, write: Write) -> bool:
    """Whether the same commit says something else of the same wait, too."""
    same = [
        each
        for each in write.changes
        if isinstance(each, OpenWait | CloseWait) and (each.run, each.key) == (change.run, change.key)
    ]
    return len(same) > 1
