"""What a commit has written: its changes in the order in which they took hold."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import (
    AppendCheckpoint,
    Change,
    CloseWait,
    CommitOutcome,
    Deliver,
    EndRun,
    IntendEffect,
    ParkRun,
    Place,
    RecordAttempt,
    Reserve,
    SendMessage,
    place_of,
    record_of,
)
from perdure.core.records import Run, RunState
from perdure.core.requests import Bounce
from perdure.store.slices import within_slices
from perdure.testing.simulation.rules.look import Write

BOUNCES = {
    SendMessage: {Bounce.NO_THREAD, Bounce.FULL},
    Deliver: {Bounce.FULL},
    CloseWait: {Bounce.GONE, Bounce.ANSWERED},
    Reserve: {Bounce.BUDGET},
}
"""Why a change alone may not be written."""


def bounced(change: Change, outcome: CommitOutcome) -> Bounce | None:
    """Why the answer says that this one was not written, if it says so."""
    if not isinstance(change, SendMessage | Deliver | CloseWait | Reserve):
        return None
    why = outcome.bounced.get((change.run, change.super_step, change.key))
    return why if why in BOUNCES[type(change)] else None


def owned(was: Run | None, worker: int, fence: int | None) -> bool:
    """Whether this worker had the run in its hands under this fence."""
    return was is not None and was.worker == worker and was.fence == fence


def turns(write: Write) -> Iterator[tuple[Change, Bounce | None]]:
    """The changes of a commit that had their turn, with what the bounced ones bounced for; left out is what was not the
    committer's to write, and what is on record already, or was before it in this very batch."""
    if write.verb != "commit" or not write.done or not write.answer.alive:
        return
    outcome: CommitOutcome = write.answer
    filed: set[Place] = set()
    for change in within_slices(write.changes):
        was = write.before.runs.get(change.run)
        taken = change.run not in outcome.lost and change.run not in outcome.refused
        if not taken or not owned(was, write.args[0], change.fence) or _is_excepted(change, outcome):
            continue
        place, why = place_of(change), bounced(change, outcome)
        if place is not None and (place in filed or place[1:] in write.before.logs.get(change.run, {})):
            continue
        if place is not None and why is None:
            filed.add(place)
        yield change, why


def effective(write: Write) -> Iterator[Change]:
    """Those of them that were written."""
    return (change for change, why in turns(write) if why is None)


def tried(change: Change) -> AppendCheckpoint | RecordAttempt | None:
    """The try that a change says the end of, if it does."""
    return change if isinstance(change, RecordAttempt) else record_of(change)


def _is_excepted(change: Change, outcome: CommitOutcome) -> bool:
    """Whether it was refused for a cancellation that it does not know of."""
    match change:
        case EndRun():
            return change.run in outcome.cancelled and change.outcome is not RunState.CANCELLED
        case ParkRun() | IntendEffect():
            return change.run in outcome.cancelled and not change.cancelled
        case _:
            return False
