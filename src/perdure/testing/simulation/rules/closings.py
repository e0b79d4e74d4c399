"""The record of a wait says what truly came: the answer that won, the message that was taken, how a child ended, or
that its time had come, on the store's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.core.changes import AppendCheckpoint, BeginUndo, CloseWait, EndRun
from perdure.core.codec import codec_for
from perdure.core.errors import decode_error
from perdure.core.records import InterruptState, Run, RunState, Wait, WaitKind
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Write
from perdure.testing.simulation.rules.tries import step_of
from perdure.testing.simulation.rules.waits import due_at, openings

Withdraws = Callable[[str], bool]
"""Whether the code of this agent may cancel a branch of its own."""


def of_closings(write: Write, annals: Annals, withdraws: Withdraws) -> Iterator[str]:
    """What the records that this write has filed say."""
    for change in write.changes:
        if isinstance(change, BeginUndo) and owns(write, change) and change.outcome is RunState.FAILED:
            yield from _of_overdue(write, change)
        if isinstance(change, CloseWait) and owns(write, change):
            if change.record is None:
                yield from _of_withdrawal(write, change, withdraws)
            elif _filed(write, change.record):
                yield from _of_record(write, annals, change, change.record)
        elif isinstance(change, EndRun) and owns(write, change):
            yield from _of_deadline(write, change)


def owns(write: Write, change: CloseWait | EndRun | BeginUndo | AppendCheckpoint) -> bool:
    """Whether the committer owned the run, so that the change counts."""
    was = write.before.runs.get(change.run)
    return was is not None and was.worker == write.args[0] and was.fence == change.fence


def _filed(write: Write, record: AppendCheckpoint) -> bool:
    at = record.super_step, record.key
    row = write.now.logs.get(record.run, {}).get(at)
    return row is not None and row.fence == record.fence and at not in write.before.logs.get(record.run, {})


def _of_record(write: Write, annals: Annals, change: CloseWait, record: AppendCheckpoint) -> Iterator[str]:
    name = f"run r{change.run}: the record of {change.key!r}"
    wait = write.before.waits.get(change.run, {}).get(change.key)
    kinds = [wait.kind] if wait is not None else [each.kind for each in openings(write, change.run, change.key)]
    time_is_up = _time_is_up(write, change, wait)
    failed_as = decode_error(record.payload).type.rpartition(".")[2] if record.failed else None
    if (change.expired or failed_as == "TimedOut") and not time_is_up:
        yield f"{name} says that its time has come; it has not"
    if change.take is not None:
        yield from _of_message(write, change, record, name)
    elif WaitKind.ANSWER in kinds:
        yield from _of_answer(write, change, record, name)
    elif WaitKind.RUN in kinds:
        yield from _of_child(write, annals, change, record, name, wait)
    elif WaitKind.MESSAGE in kinds and failed_as != "TimedOut":
        yield f"{name} says neither what was received nor that its time has come"
    elif WaitKind.TIMER in kinds and step_of(change.key) != "timeout" and not change.expired:
        yield f"{name} ends a sleep before its time"


def _time_is_up(write: Write, change: CloseWait, wait: Wait | None) -> bool:
    if wait is not None:
        return wait.due_at is not None and wait.due_at <= write.now_us
    times = [due_at(each, write.now_us) for each in openings(write, change.run, change.key)]
    return any(time is not None and time <= write.now_us for time in times)


def _of_answer(write: Write, change: CloseWait, record: AppendCheckpoint, name: str) -> Iterator[str]:
    asked = [
        each
        for each in write.now.interrupts.values()
        if (each.run, each.super_step, each.key) == (change.run, change.super_step, change.key)
    ]
    if len(asked) != 1:
        yield f"{name} is the answer to {len(asked)} questions"
        return
    question = asked[0]
    if change.expired:
        if question.state is not InterruptState.EXPIRED:
            yield f"{name} says that i{question.id} has expired; it is {question.state}"
    elif question.state is not InterruptState.ANSWERED or record.failed or record.payload != question.answer:
        yield f"{name} is not the answer that i{question.id}, {question.state}, was given"


def _of_message(write: Write, change: CloseWait, record: AppendCheckpoint, name: str) -> Iterator[str]:
    """It is the message that was there, it is gone, and none of its kind was before it."""
    assert change.take is not None
    message = write.before.mail.get(change.thread, {}).get(change.take)
    left = write.now.mail.get(change.thread, {})
    if message is None:
        sent = [each for each in left.values() if each.seq == change.take]
        yield from () if not sent else [f"{name} took message {change.take}, which is still there"]
        return
    if record.failed or _plain(record.payload) != [message.label, _plain(message.payload)]:
        yield f"{name} is not message m{message.id} that was taken"
    if change.take in left:
        yield f"{name} took message m{message.id}, which is still in its mailbox"
    for other in left.values():
        if other.seq < message.seq and other.label == message.label:
            yield f"{name} took message m{message.id} before m{other.id}, which came first"


def _plain(payload: bytes) -> Any:
    return codec_for(Any).decode(payload)


def _of_child(
    write: Write, annals: Annals, change: CloseWait, record: AppendCheckpoint, name: str, wait: Wait | None
) -> Iterator[str]:
    """How the child ended, or how it was held, at some time."""
    targets = [wait.target] if wait is not None else [o.target for o in openings(write, change.run, change.key)]
    target = targets[0] or 0
    ends = [*annals.ends.get(target, ()), write.now.runs[target]]
    said = decode_error(record.payload).type.rpartition(".")[2] if record.failed else "completed"
    if said not in {_said_of(end) for end in ends}:
        yield f"{name} says {said} of child r{target}, which was {[str(end.state) for end in ends]}"
    child = write.now.runs[target]
    if not record.failed and child.state is RunState.COMPLETED:
        end = write.now.logs.get(target, {}).get((child.super_step + 1, ""))
        if end is None or end.payload != record.payload:
            yield f"{name} is not what child r{target} has returned"


def _said_of(run: Run) -> str:
    return {
        RunState.COMPLETED: "completed",
        RunState.FAILED: "RunFailed",
        RunState.CANCELLED: "RunCancelled",
        RunState.HELD: "RunHeld",
    }.get(run.state, "nothing")


def _of_withdrawal(write: Write, change: CloseWait, withdraws: Withdraws) -> Iterator[str]:
    """Nobody waits any more only where a branch was cancelled: by its own code, or with its run."""
    wait = write.before.waits.get(change.run, {}).get(change.key)
    run = write.before.runs[change.run]
    if wait is not None and _is_beside(wait) and (wait.due or write.before.has_come(wait)):
        return
    if wait is None or wait.kind is WaitKind.ROOM or withdraws(run.agent) or run.cancel is not None:
        return
    if not _is_overdue(run, write):
        yield f"run r{run.id} of {run.agent} does not wait for {change.key!r} any more, and nobody has cancelled that"


def _is_beside(wait: Wait) -> bool:
    """Whether it is beside a step's key: a pause, or a question about an effect or a budget. What came of it shows in
    what the step does then."""
    return "~" in wait.key and wait.kind in (WaitKind.ANSWER, WaitKind.TIMER)


def _of_deadline(write: Write, change: EndRun) -> Iterator[str]:
    run = write.now.runs[change.run]
    if change.outcome is RunState.FAILED and run.state is RunState.FAILED and not run.undoing:
        yield from _of_overdue(write, change)


def _of_overdue(write: Write, change: EndRun | BeginUndo) -> Iterator[str]:
    run = write.now.runs[change.run]
    if decode_error(change.payload).type.endswith(".DeadlineExceeded"):
        if not _is_overdue(run, write):
            yield f"run r{run.id} failed for its deadline {run.deadline_at}, at {write.now_us}"


def _is_overdue(run: Run, write: Write) -> bool:
    """Whether its deadline has come. Its worker counts the time from the claim; that time, and the one of now, were
    rounded to a microsecond each."""
    return run.deadline_at is not None and run.deadline_at <= write.now_us + 1
