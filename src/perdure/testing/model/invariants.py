"""What must hold, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.testing.model import database
from perdure.testing.model import state as s
from perdure.testing.model.explorer import Invariant
from perdure.testing.model.rules import BLIND, KEYS, RETRY, Setup
from perdure.testing.model.state import Request, State

ONE_WRITER: Final = "one writer"
NO_STALE_WRITE: Final = "no stale write"
NOT_AGAIN: Final = "not again"
LOG_STANDS: Final = "the log stands"
FENCE_GROWS: Final = "the fence grows"
TERMINAL_STANDS: Final = "the end stands"
INTENT_FIRST: Final = "intent first"
NO_SECOND_DISPATCH: Final = "no second dispatch"
DONE_ONCE: Final = "done once"
TOLD_TRULY: Final = "told truly"
NOT_STRANDED: Final = "not stranded"
POISON_HELD: Final = "poison is held"


def everything(setup: Setup) -> Sequence[Invariant[State]]:
    """All of them, the most telling first."""
    return [
        Invariant(
            ONE_WRITER,
            "At most one claim could have a commit accepted now.",
            state=lambda now: len(_writers(setup, now)) <= 1,
        ),
        Invariant(
            NO_STALE_WRITE,
            "Nothing is written by an older claim than the newest.",
            state=lambda now: not now.stale,
        ),
        Invariant(
            NOT_AGAIN,
            "The body of a recorded step is not begun by a later claim.",
            state=_nobody_repeats_the_step,
        ),
        Invariant(
            LOG_STANDS,
            "The log has one record a step, which never changes.",
            state=_one_record,
            move=_log_stands,
        ),
        Invariant(FENCE_GROWS, "The fence never becomes smaller.", move=_fence_grows),
        Invariant(TERMINAL_STANDS, "A terminal run never changes.", move=_terminal_stands),
        Invariant(TOLD_TRULY, "A client is told no end that is not on disk.", state=_told_truly),
        Invariant(
            NOT_STRANDED,
            "A run that has not ended is queued, or running under an alive worker, or held with a reason.",
            state=_not_stranded,
        ),
        Invariant(
            POISON_HELD,
            "A run whose last workers all died without getting further is held, not executed again.",
            state=lambda now: not (now.run.state == s.RUNNING and now.run.deaths >= setup.strikes_max),
        ),
        Invariant(INTENT_FIRST, "An effect is dispatched only when its intent is on disk.", move=_intent_first),
        Invariant(
            NO_SECOND_DISPATCH,
            "An effect is not dispatched a second time unless its outcome was put down as unknown in between.",
            state=lambda now: now.provider.dispatched <= 1,
        ),
        Invariant(DONE_ONCE, "The provider does the thing at most once.", state=lambda now: now.provider.done <= 1),
    ]


def promised(setup: Setup) -> Sequence[Invariant[State]]:
    """Those that hold in this world.

    Only what is said about dispatching rests on clocks, and a provider that honours keys makes up for them. Whoever
    retries blindly, at a provider that offers nothing, has chosen that the thing may be done twice.
    """
    waived = set()
    if not setup.clocks_agree:
        waived.add(NO_SECOND_DISPATCH)
    if setup.provider != KEYS and not setup.clocks_agree:
        waived.add(DONE_ONCE)
    if setup.provider == BLIND and setup.on_unknown == RETRY:
        waived.add(DONE_ONCE)
    return [each for each in everything(setup) if each.name not in waived]


def _writers(setup: Setup, state: State) -> set[int]:
    """The claims whose commit could be accepted as things are: those of workers with the run in hand, and those of
    requests on their way."""
    on_their_way = list(state.late)
    for i, worker in enumerate(state.workers):
        if worker.request is not None:
            on_their_way.append(worker.request)
        elif worker.claim:
            on_their_way.append(Request(s.HOLD, i, worker.fence, worker.claim))
    return {
        request.claim
        for request in on_their_way
        if request.kind != s.CLAIM and database.may_write(setup, state, request)
    }


def _nobody_repeats_the_step(state: State) -> bool:
    if not state.step:
        return True
    first = state.step[0].claim
    return not any(worker.at == s.IN_STEP and worker.claim > first for worker in state.workers)


def _one_record(state: State) -> bool:
    return len(state.step) <= 1


def _log_stands(before: State, after: State) -> bool:
    outcome = before.effect.status != s.OUTCOME or before.effect == after.effect
    return outcome and after.step[: len(before.step)] == before.step


def _fence_grows(before: State, after: State) -> bool:
    return after.run.fence >= before.run.fence


def _terminal_stands(before: State, after: State) -> bool:
    return before.run.state not in s.TERMINAL or before.run == after.run


def _told_truly(state: State) -> bool:
    return not state.told or state.told == state.run.state


def _not_stranded(state: State) -> bool:
    run = state.run
    if run.state == s.RUNNING:
        return run.owner >= 0 and state.workers[run.owner].row == s.ALIVE
    return run.owner < 0 and (run.state != s.HELD or run.reason != "")


def _intent_first(before: State, after: State) -> bool:
    return after.provider.dispatched <= before.provider.dispatched or after.effect.status != s.NONE
