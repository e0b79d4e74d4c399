"""A take-over takes what is a dead worker's, and counts; a give-back takes what its worker does not keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.core.effects import TAKEN_BACK
from perdure.core.records import HeldReason, Run, RunState, TakenOver
from perdure.testing.simulation.rules.look import Write


def of_take_over(write: Write) -> Iterator[str]:
    """Who was taken over, and what became of the runs."""
    if write.verb != "take_over" or not write.done:
        return
    taken: Sequence[TakenOver] = write.answer
    suspects = set(write.args[0])
    for each in taken:
        row = write.before.workers.get(each.worker)
        if row is None or not (row.lease_until <= write.now_us or each.worker in suspects):
            yield f"w{each.worker} was taken over, and neither is it known dead nor has its lease run out"
        before = {run.id for run in write.before.held_by(each.worker)}
        if before != {*each.requeued, *each.held}:
            yield f"w{each.worker} had {sorted(before)}, and {each.requeued} and {each.held} were taken over"
        for id in sorted(before):
            yield from _of_strikes(write, write.before.runs[id], write.now.runs[id])


def _of_strikes(write: Write, was: Run, run: Run) -> Iterator[str]:
    """A death counts where the dead claim has recorded nothing in the current super-step, and come to the end of no
    undo; so many hold the run."""
    log = write.before.logs.get(was.id, {})
    recorded = any(row.fence == was.fence and at[0] == was.super_step for at, row in log.items())
    mine = (row for row in write.before.effects.values() if (row.run, row.fence) == (was.id, was.fence))
    strikes = 0 if recorded or any(row.state in TAKEN_BACK for row in mine) else was.strikes + 1
    poison = strikes >= write.kwargs["recoveries_max"]
    if run.strikes != strikes:
        yield f"run r{run.id}: {was.strikes} strikes became {run.strikes}, not {strikes}"
    if poison != (run.state is RunState.HELD and run.reason == HeldReason.POISON):
        yield f"run r{run.id} has {strikes} strikes and is {run.state}, {'' if poison else 'not '}to be held as poison"


def of_give_back(write: Write, tickets: dict[int, int]) -> Iterator[str]:
    """A give-back takes what its worker does not execute, and nothing where it comes too late."""
    if write.verb not in ("give_back", "retire") or not write.done:
        return
    worker: int = write.args[0]
    late = write.verb == "give_back" and write.kwargs.get("ticket", 0) < tickets.get(worker, 0)
    kept = set(write.kwargs.get("keep", ()))
    for id in write.touched:
        was, run = write.before.runs[id], write.now.runs[id]
        if was != run and (was.worker != worker or id in kept or late or not write.before.alive(worker)):
            yield f"run r{id} of w{was.worker} was given back by {write.verb} of w{worker}, which keeps {sorted(kept)}"
    left = [run.id for run in write.now.held_by(worker) if run.id not in kept]
    if left and not late and write.before.alive(worker):
        yield f"w{worker} gave back what it does not keep, and still has {left}"
