"""A cancellation goes down the tree at once, stays, and wins: from then on a run ends as cancelled, and as nothing
else."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from perdure.core.records import Run, RunState
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.bystanders import is_by_the_way
from perdure.testing.simulation.rules.look import Look, Write


def of_cancelled_runs(write: Write) -> Iterator[str]:
    """What may become of a run whose cancellation was requested."""
    for id in write.touched:
        was, run = write.before.runs.get(id), write.now.runs[id]
        if was is None or was == run:
            continue
        again = was.state is RunState.HELD and run.state in (RunState.CANCELLED, RunState.QUEUED)
        if was.cancel is not None and run.cancel != was.cancel and write.verb != "retry" and not again:
            yield f"run r{id}: its cancellation, {was.cancel}, became {run.cancel} by {write.verb}"
        if run.state in TERMINAL and (run.state is RunState.CANCELLED) != (run.cancel is not None):
            yield f"run r{id} is {run.state}, and its cancellation {run.cancel or 'was not requested'}"


def of_cancel(write: Write) -> Iterator[str]:
    """The run and its descendants are as they have to be after the request, and nobody else is concerned."""
    if write.verb != "cancel" or not write.done:
        return
    id, reason = write.args[0], write.args[1]
    if write.answer != write.now.runs.get(id):
        yield f"cancel of r{id}: {write.answer} is not its row"
    asked = set(requested(write.before, id))
    for each in write.touched:
        was, run = write.before.runs[each], write.now.runs[each]
        if each in asked:
            yield from of_request(write, was, run, reason)
        elif not is_by_the_way(write, was, run):
            yield f"run r{each} was {was.state} and is {run.state} by the cancellation of r{id}"
    for each in sorted(asked - set(write.touched)):
        yield f"run r{each} was to be cancelled with r{id}, and is as it was"


def requested(look: Look, id: int) -> list[int]:
    """Whom a cancellation of this run concerns."""
    run = look.runs.get(id)
    if run is None or not may_be_asked(run):
        return []
    return [each for each in look.tree(id) if may_be_asked(look.runs[each])]


def may_be_asked(run: Run) -> bool:
    """Whether a cancellation concerns this run: one that was held before it could end is asked again."""
    return run.state not in TERMINAL and (run.cancel is None or run.state is RunState.HELD)


def of_request(write: Write, was: Run, run: Run, reason: str) -> Iterator[str]:
    """One run that was asked to end."""
    if was.state is RunState.HELD and write.before.has_undoable(was.id):
        sent_on = replace(was, state=RunState.QUEUED, ready_at=write.now_us, strikes=0, reason=None, detail=None)
        expected = replace(sent_on, cancel=reason, undoing=True)
    elif ends_at_once(was):
        words = {"reason": reason, "detail": None, "ended_at": write.now_us, "ready": False}
        expected = replace(was, state=RunState.CANCELLED, cancel=reason, **words)
    elif was.state is RunState.RUNNING:
        expected = replace(was, cancel=reason)
    else:
        ready_at = write.now_us if was.state is RunState.WAITING else min(was.ready_at, write.now_us)
        expected = replace(was, state=RunState.QUEUED, ready_at=ready_at, cancel=reason)
    promoted = replace(expected, ready=True)
    if run != expected and not (run == promoted and run.state not in TERMINAL):
        differ = [each for each in run.__struct_fields__ if getattr(run, each) != getattr(expected, each)]
        yield f"run r{run.id} was asked to end, and {', '.join(differ)} are not as they have to be: {run}"


def ends_at_once(run: Run) -> bool:
    """Whether nobody has to clean up after it. (Who has effects to undo does not.)"""
    return run.attempt == 0 or run.state is RunState.HELD
