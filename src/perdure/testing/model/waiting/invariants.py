"""What must hold of waiting, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.testing.model.explorer import Invariant
from perdure.testing.model.waiting import readiness
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import State

NO_LOST_WAKE_UP: Final = "no lost wake-up"
ONE_RECORD: Final = "one record a wait"
TRUE_RECORD: Final = "true records"
ONE_ANSWER: Final = "one answer"
IN_TIME: Final = "answered in time"
MESSAGE_ONCE: Final = "a message once"
CANCEL_STANDS: Final = "a cancellation stands"
CANCEL_GOES_DOWN: Final = "a cancellation goes down"
ONE_END: Final = "one end"
ONE_CHILD: Final = "one child"
NO_STALE_WRITE: Final = "no stale write"
TOLD_TRULY: Final = "told truly"


def everything(setup: Setup) -> Sequence[Invariant[State]]:
    """All of them."""
    return [
        Invariant(
            NO_STALE_WRITE, "Nothing is written by an older claim than the newest.", state=lambda now: not now.stale
        ),
        Invariant(ONE_END, "A terminal run never changes.", move=_one_end),
        Invariant(
            CANCEL_STANDS,
            "A run whose cancellation was requested never completes.",
            state=lambda now: not (now.run.cancel and now.run.state == s.COMPLETED),
        ),
        Invariant(
            ONE_RECORD,
            "A wait gets one record, which never changes, and nobody waits for what is on record.",
            state=lambda now: not any(record.branch in now.waits for record in now.records),
            move=lambda before, after: set(before.records) <= set(after.records),
        ),
        Invariant(TRUE_RECORD, "A record says what came.", state=_true_records),
        Invariant(
            ONE_ANSWER,
            "An answered question keeps its answer, and an expired one takes none.",
            move=_one_answer,
        ),
        Invariant(
            IN_TIME, "No answer is taken that was sent when its time had come.", state=lambda now: not now.overdue
        ),
        Invariant(
            MESSAGE_ONCE,
            "A message that was sent is in the mailbox, or in one record, and not in both.",
            state=_message_once,
        ),
        Invariant(ONE_CHILD, "A child is started at most once.", state=lambda now: now.starts <= 1),
        Invariant(
            CANCEL_GOES_DOWN,
            "A child of a run whose cancellation was requested is to be cancelled too.",
            state=_cancel_goes_down,
        ),
        Invariant(TOLD_TRULY, "Who was told something finds it so on disk.", state=_told_truly),
        Invariant(
            NO_LOST_WAKE_UP,
            "Whenever no transaction is open, a parked run has nothing to do: it waits for something, and nothing has "
            "come that a claim would not see.",
            state=_nothing_to_do,
        ),
    ]


def _is_quiet(state: State) -> bool:
    """Whether no transaction is open. (One that has not arrived yet is none.)"""
    return all(each.stage == 0 for each in state.open)


def _nothing_to_do(state: State) -> bool:
    run = state.run
    if run.state != s.WAITING or not _is_quiet(state) or readiness.is_claimable(state):
        return True
    if run.cancel and not run.knew:
        return False
    return bool(state.waits) and not any(readiness.is_ready(state, branch) for branch in state.waits)


def _one_end(before: State, after: State) -> bool:
    return before.run.state not in s.TERMINAL or before.run == after.run


def _true_records(state: State) -> bool:
    return all(_is_true(state, record.branch, record.what) for record in state.records)


def _is_true(state: State, branch: str, what: str) -> bool:
    match branch:
        case s.ANSWER:
            question = state.question
            return what == (question.answer if question.state == s.ANSWERED else question.state)
        case s.CHILD:
            return what == s.HELD or state.child.state == s.ENDED
        case s.TIMER:
            return s.TIMER in state.due
        case _:
            return True


def _one_answer(before: State, after: State) -> bool:
    return before.question.state not in (s.ANSWERED, s.EXPIRED) or before.question == after.question


def _message_once(state: State) -> bool:
    recorded = [record.what for record in state.records if record.what in s.MESSAGES]
    sent = [s.MESSAGES[actor.name != "sender"] for actor in state.actors if actor.kind == s.SEND and actor.told]
    copies = [*state.mail, *recorded]
    once = len(set(copies)) == len(copies)
    kept = set(sent) | set(state.received) <= set(copies)
    return once and (kept or any(each.kind == s.RECORD_LATE for each in state.open))


def _cancel_goes_down(state: State) -> bool:
    child = state.child
    if not state.run.cancel or child.state not in (s.ACTIVE, s.HELD) or not _is_quiet(state):
        return True
    return child.cancel or child.spared


def _told_truly(state: State) -> bool:
    for actor in state.actors:
        if actor.told == "answered" and state.question.answer != f"{actor.name}'s":
            return False
        if actor.told == "not answered" and state.question.state == s.OPEN:
            return False
        if actor.kind == s.CANCEL and actor.told in s.TERMINAL and state.run.state != actor.told:
            return False
        if actor.told == "requested" and not state.run.cancel:
            return False
    return True
