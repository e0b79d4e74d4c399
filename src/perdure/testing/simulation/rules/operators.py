"""A person's word sends a run on, unless what it would go on from has been built upon since."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.records import Run, RunState
from perdure.testing.simulation.rules.look import Look, Write


def of_operator(write: Write) -> Iterator[str]:
    """What became of the run that a person sent on."""
    if write.verb not in ("retry", "release") or not write.done:
        return
    was, run = write.before.runs[write.args[0]], write.now.runs[write.args[0]]
    undo = bool(write.kwargs.get("undo"))
    if write.verb == "release":
        sent_on = was.state is RunState.HELD
    else:
        sent_on = was.state in (RunState.FAILED, RunState.CANCELLED) and _may_go_on(write.before, was, undo=undo)
    kept = was.cancel if undo else None
    forgotten = write.verb == "release" or (run.cancel, run.deadline_at) == (kept, None)
    if sent_on and not forgotten:
        yield f"run r{run.id} was sent on with cancellation {run.cancel} and deadline {run.deadline_at}"
    if sent_on and (run.state is not RunState.QUEUED or run.strikes or run.reason is not None):
        yield f"run r{run.id} was {was.state} and is {run.state} by {write.verb}, {run.strikes} strikes, {run.reason}"
    if not sent_on and run != was:
        yield f"run r{run.id} was {was.state} and was not to be sent on by {write.verb}; it is {run.state}"


def _may_go_on(look: Look, run: Run, *, undo: bool) -> bool:
    """Whether there is something to be undone; or whether its code may go on, and undoes nothing by that."""
    return bool(look.left_to_undo(run.id)) if undo else not run.undoing and not would_undo(look, run)


def would_undo(look: Look, run: Run) -> bool:
    """Whether this ended run, if it went on from the state at its own boundary, would undo that of later ones."""
    boundary = look.logs.get(run.id, {}).get((run.super_step, ""))
    if run.super_step == 1 or boundary is None or boundary.state is None:
        return False
    thread = look.threads[run.thread]
    head = None if thread.head is None else look.runs[thread.head]
    return thread.snapshot_run != run.id or (head is not None and not _gives_way(head, run))


def _gives_way(head: Run, run: Run) -> bool:
    return head.state is RunState.QUEUED and head.started_at is None and run.ordinal < head.ordinal


def is_over(look: Look, run: Run) -> bool:
    """Whether nothing more is to come of this run."""
    return run.state in (RunState.COMPLETED, RunState.CANCELLED) or (
        run.state is RunState.FAILED and (run.undoing or would_undo(look, run))
    )
