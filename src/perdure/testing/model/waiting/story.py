"""What a move has changed, in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.state import Run, State


def news(before: State | None, after: State) -> str:
    """What is new in the state, or what it is at the beginning."""
    if before is None:
        return f"the run is {_run(after.run)}"
    return "; ".join(_changes(before, after))


def _changes(before: State, after: State) -> Iterator[str]:
    if before.run != after.run:
        yield f"the run is {_run(after.run)}"
    if before.waits != after.waits:
        yield f"it waits for {', '.join(after.waits) or 'nothing'}"
    if before.question != after.question:
        answer = f": {after.question.answer}" if after.question.answer else ""
        yield f"the question is {after.question.state}{answer}"
    if before.child != after.child:
        yield f"the child is {after.child.state}{', to be cancelled' if after.child.cancel else ''}"
    if before.mail != after.mail:
        yield f"the mailbox holds {', '.join(after.mail) or 'nothing'}"
    if before.room != after.room:
        yield f"the other mailbox {'has room' if after.room else 'is full'}"
    for record in after.records:
        if record not in before.records:
            yield f"on record for {record.branch}: {record.what} (fence {record.fence})"
    for i, (old, new) in enumerate(zip(before.workers, after.workers, strict=True)):
        if old.row != new.row:
            yield f"{s.NAMES[i]}'s row is {new.row}"
        if old.at != new.at and new.at != s.GONE:
            yield f"{s.NAMES[i]} is {new.at}"
        if new.knows and not old.knows:
            yield f"{s.NAMES[i]} knows of the cancellation"
    for was, now in zip(before.actors, after.actors, strict=True):
        if was.told != now.told:
            yield f"{now.name} is told: {now.told}"


def _run(run: Run) -> str:
    owner = f" by {s.NAMES[run.owner]}" if run.owner >= 0 else ""
    until = f" until the time of {' or '.join(run.times)}" if run.times else ""
    cancel = ", to be cancelled" if run.cancel and run.state not in s.TERMINAL else ""
    return f"{run.state}{owner}{until}{cancel}, fence {run.fence}"
