"""A run's life, as a table. Every store moves runs along these edges and no others.

    queued  --claim-->  running  --end-->  completed | failed | cancelled
       ^                |  |  \\
       |<-- give back --|  |   \\--hold-->  held
       |<-- take over --|  park              |
       |<------ wake ----  waiting --claim (its time has come)--> running
       |<-------------- release -------------|
       |<-- retry -- failed | cancelled

Five things hold: a terminal run moves only by `retry`, which a person asks for; only a running run has a worker; a
claim and a loss of the worker each add one to the fence; a held run leaves only by `release` or a cancel; whatever is
not terminal is the head of its thread or waits behind one. A run that has begun is cancelled by its worker, which
lets its code clean up; one that has not, or is held, by whoever asks.
"""

from __future__ import annotations

from typing import Final

from perdure.core.records import RunState

TERMINAL: Final = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
UNFINISHED: Final = frozenset(RunState) - TERMINAL

MOVES: Final[dict[RunState, frozenset[RunState]]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.HELD, RunState.CANCELLED}),
    RunState.RUNNING: frozenset(RunState) - {RunState.RUNNING},
    RunState.WAITING: frozenset({RunState.QUEUED, RunState.RUNNING}),
    RunState.HELD: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),
    RunState.CANCELLED: frozenset({RunState.QUEUED}),
}


def may_move(before: RunState, after: RunState) -> bool:
    """Whether a run may go from one state to the other in one step."""
    return after in MOVES[before]
