"""Rules of `commit` that need no row.

A run's slice ends once. What a batch says of a run after it has ended, requeued or held it would find the slice over,
as it would in a batch of its own: a no-op. Every store leaves it out before it looks at anything. A parking is no such
end, since it may be refused: it comes last, after all that its batch says of the run, and not at all beside an end.

A run whose cancellation was requested ends as cancelled, and is parked only by code that knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perdure.core.changes import Change, EndRun, HoldRun, IntendEffect, ParkRun, RequeueRun
from perdure.core.records import RunState

ENDINGS: Final = frozenset({EndRun, RequeueRun, HoldRun})


def within_slices(changes: Sequence[Change]) -> Sequence[Change]:
    """The changes without those that come after the end of their run's slice."""
    if ENDINGS.isdisjoint(map(type, changes)):
        return changes
    over: set[tuple[int, int]] = set()
    late: set[int] = set()
    for number, change in enumerate(changes):
        if over and (change.run, change.fence) in over:
            late.add(number)
        elif type(change) in ENDINGS:
            over.add((change.run, change.fence))
    late.update(
        number
        for number, change in enumerate(changes)
        if isinstance(change, ParkRun) and (change.run, change.fence) in over
    )
    return [each for number, each in enumerate(changes) if number not in late] if late else changes


def is_aware(change: Change) -> bool:
    """Whether the change may be written also where its run's cancellation was requested."""
    match change:
        case EndRun():
            return change.outcome is RunState.CANCELLED
        case ParkRun() | IntendEffect():
            return change.cancelled
        case _:
            return True
