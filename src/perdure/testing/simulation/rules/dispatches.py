"""What is dispatched was put on disk before, by whoever dispatches it; and what is undone comes in its turn."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.effects import Effect, EffectState
from perdure.core.limits import UNDO_ATTEMPTS
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.effects import COMPENSATION
from perdure.testing.simulation.rules.look import Look

HAPPENED = frozenset({EffectState.DONE, *COMPENSATION})


def of_dispatch(annals: Annals, row: Effect | None, fence: int, attempt: int) -> Iterator[str]:
    """The body of an effect is about to begin."""
    if row is None or (row.id, fence, EffectState.INTENDED, attempt) not in annals.intended:
        yield f"began without its intent on disk under its fence: {row and (row.state, row.attempt, row.fence)}"
    elif row.fence <= fence:  # whoever was taken over early may still dispatch, until its lease is over
        if row.state in HAPPENED:
            yield f"began though effect e{row.id} is {row.state}"
        elif row.attempt != attempt:
            yield f"began, and effect e{row.id} is at try {row.attempt}"


def of_undo(look: Look, annals: Annals, row: Effect | None, fence: int, attempt: int) -> Iterator[str]:
    """An undo is about to begin."""
    if row is None or (row.id, fence, EffectState.UNDOING, attempt) not in annals.intended:
        yield f"began without its intent on disk under its fence: {row and (row.state, row.undo_attempt, row.fence)}"
        return
    if row.fence > fence:
        return
    if row.state is not EffectState.UNDOING:
        yield f"began though effect e{row.id} is {row.state}"
    for later in look.left_to_undo(row.run):
        given_up = later.state is EffectState.UNDO_FAILED and later.undo_attempt >= UNDO_ATTEMPTS
        if _when(later) > _when(row) and not given_up:
            yield f"began before that of effect e{later.id}, which was done after it, and is {later.state}"


def _when(row: Effect) -> tuple[int, int, int]:
    return row.super_step, row.settled_at or 0, row.id
