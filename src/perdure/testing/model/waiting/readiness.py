"""Readiness: whether what is waited for has come is a question to the rows, asked anew each time."""

from __future__ import annotations

from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.state import State


def has_come(state: State, branch: str) -> bool:
    """Whether what this branch waits for is there, whatever the time."""
    match branch:
        case s.ANSWER:
            return state.question.state != s.OPEN
        case s.MESSAGE:
            return bool(state.mail)
        case s.CHILD:
            return state.child.state in (s.ENDED, s.HELD)
        case s.ROOM:
            return state.room
        case _:
            return False


def is_ready(state: State, branch: str) -> bool:
    """Whether the wait is over."""
    return branch in state.due or has_come(state, branch)


def is_claimable(state: State) -> bool:
    """Whether a claim may take the run now."""
    run = state.run
    return run.state == s.QUEUED or (run.state == s.WAITING and any(branch in state.due for branch in run.times))
