"""A question has one life: open, then answered once, expired at its time, or withdrawn by who asked."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from perdure.core.changes import CloseWait
from perdure.core.records import Interrupt, InterruptState, RunState
from perdure.core.requests import Answered, AnswerOutcome, NewAnswer, NotAnswered
from perdure.testing.simulation.rules.budgets import about_of
from perdure.testing.simulation.rules.look import Write, is_open
from perdure.testing.simulation.rules.waits import openings


def of_questions(write: Write) -> Iterator[str]:
    """The questions that differ."""
    before, now = write.before, write.now
    for id in sorted(before.interrupts.keys() - now.interrupts.keys()):
        yield f"question i{id} has vanished"
    for id, asked in now.interrupts.items():
        was = before.interrupts.get(id)
        if was is None:
            yield from _asked(write, asked)
        elif was != asked:
            yield from _changed(write, was, asked)
        if (asked.state is InterruptState.ANSWERED) != (asked.answer is not None):
            yield f"question i{id} is {asked.state} with answer {asked.answer!r}"
        if is_open(asked) and not _is_waited_for(write, asked):
            yield f"question i{id} of run r{asked.run} is open, and nobody waits for it"


def _is_waited_for(write: Write, asked: Interrupt) -> bool:
    wait = write.now.waits.get(asked.run, {}).get(asked.key)
    return wait is not None and wait.target == asked.id and wait.due_at == asked.expires_at


def _asked(write: Write, asked: Interrupt) -> Iterator[str]:
    if not openings(write, asked.run, asked.key):
        yield f"question i{asked.id} came by {write.verb}, and nobody has asked it"
    same = [
        each.id
        for each in write.now.interrupts.values()
        if (each.run, each.super_step, each.key) == (asked.run, asked.super_step, asked.key)
    ]
    if len(same) > 1:
        yield f"run r{asked.run} has asked {asked.key!r} more than once: {same}"


def _changed(write: Write, was: Interrupt, asked: Interrupt) -> Iterator[str]:
    name = f"question i{asked.id}, which was {was.state},"
    moved = was.state, asked.state
    fields = {"state": asked.state, "answer": asked.answer, "answered_by": asked.answered_by}
    known = replace(was, **fields, answered_at=asked.answered_at, expires_at=asked.expires_at)
    if known != asked:
        yield f"{name} has become another question by {write.verb}"
    match moved:
        case (InterruptState.OPEN, InterruptState.ANSWERED):
            if write.verb != "answer" or write.args[0].interrupt != asked.id:
                yield f"{name} was answered by {write.verb}"
            if was.expires_at is not None and was.expires_at <= write.now_us:
                yield f"{name} was answered {write.now_us - was.expires_at} us after its time"
        case (InterruptState.OPEN, InterruptState.EXPIRED):
            if was.expires_at is None or was.expires_at > write.now_us:
                yield f"{name} has expired by {write.verb}, and its time {was.expires_at} has not come"
        case (
            InterruptState.OPEN | InterruptState.EXPIRED,
            InterruptState.WITHDRAWN,
        ):  # expired, and nobody has noted it
            if not _may_be_withdrawn(write, asked):
                yield f"{name} was withdrawn by {write.verb}"
        case (InterruptState.WITHDRAWN | InterruptState.EXPIRED, InterruptState.OPEN | InterruptState.EXPIRED):
            if not openings(write, asked.run, asked.key):
                yield f"{name} is open again, and nobody has asked again"
        case _:
            yield f"{name} is {asked.state} by {write.verb}, with answer {asked.answer!r}"


def _may_be_withdrawn(write: Write, asked: Interrupt) -> bool:
    """Its run's super-step is over, or who asked it does not wait any more."""
    run, was = write.now.runs[asked.run], write.before.runs[asked.run]
    if _is_settled(write, asked):
        return True
    if run.super_step > asked.super_step or run.ended_at is not None or run.state is RunState.CANCELLED:
        return True
    return was.worker is not None and any(
        isinstance(each, CloseWait) and (each.run, each.key, each.record) == (asked.run, asked.key, None)
        for each in write.changes
    )


def _is_settled(write: Write, asked: Interrupt) -> bool:
    """Whether it is about a budget that this write has set."""
    if write.verb != "set_budget" or (about := about_of(asked)) is None:
        return False
    was, row = write.before.budgets.get(about[1]), write.now.budgets.get(about[1])
    return was is not None and row is not None and row.rev > was.rev


def of_answer(write: Write) -> Iterator[str]:
    """Every answer was answered as it had to be: the first one wins, and the others are told."""
    if write.verb != "answer" or not write.done:
        return
    given: NewAnswer = write.args[0]
    expected = _expected(write, given)
    if write.answer != expected:
        yield f"answer {given.answer!r} to i{given.interrupt}: {write.answer}, not {expected}"


def _expected(write: Write, given: NewAnswer) -> AnswerOutcome | None:
    was, asked = write.before.interrupts.get(given.interrupt), write.now.interrupts.get(given.interrupt)
    if was is None or asked is None:
        return None
    due = was.expires_at is not None and was.expires_at <= write.now_us
    if was.state is InterruptState.OPEN and not due:
        words = {"state": InterruptState.ANSWERED, "answer": given.answer, "answered_by": given.by}
        return Answered(replace(was, **words, answered_at=write.now_us), True)
    if was.state is InterruptState.ANSWERED and was.answer == given.answer:
        return Answered(asked, False)
    return NotAnswered(replace(asked, state=InterruptState.EXPIRED) if is_open(was) else asked)
