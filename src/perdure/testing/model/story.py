"""What a move has changed, in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.testing.model import state as s
from perdure.testing.model.state import Run, State


def news(before: State | None, after: State) -> str:
    """What is new in the state, or what it is at the beginning."""
    if before is None:
        return f"the run is {_run(after.run)}"
    return "; ".join(_changes(before, after))


def _changes(before: State, after: State) -> Iterator[str]:
    if _run(before.run) != _run(after.run):
        yield f"the run is {_run(after.run)}"
    if before.step != after.step:
        yield f"the step has its record, under fence {after.step[-1].fence}"
    if before.effect != after.effect:
        yield f"the ledger says: {after.effect.status} (fence {after.effect.fence})"
    if before.provider.done != after.provider.done:
        yield f"the provider has done it {('', 'once', 'twice')[min(after.provider.done, 2)]}"
    for i, (old, new) in enumerate(zip(before.workers, after.workers, strict=True)):
        if old.row != new.row:
            yield f"{s.NAMES[i]}'s row is {new.row}"
        if old.at != new.at and new.at != s.GONE:
            yield f"{s.NAMES[i]} is {new.at}"
    if before.told != after.told:
        yield f"a client is told: {after.told}"


def _run(run: Run) -> str:
    owner = f" by {s.NAMES[run.owner]}" if run.owner >= 0 else ""
    reason = f" ({run.reason})" if run.reason else ""
    return f"{run.state}{reason}{owner}, fence {run.fence}"
