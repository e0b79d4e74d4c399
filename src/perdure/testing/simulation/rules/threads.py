"""Whose turn it is on a thread, how many wait, and where its newest state is."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import BeginSuperStep, EndRun
from perdure.core.records import Run, RunState, Thread
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.annals import Annals, Pointer
from perdure.testing.simulation.rules.look import Write


def of_threads(write: Write, annals: Annals) -> Iterator[str]:
    """The head runs or is ready, the others wait behind it, and they are counted."""
    before, now = write.before, write.now
    touched = {now.runs[id].thread for id in write.touched}
    changed = [id for id, row in now.threads.items() if row is not before.threads.get(id)]
    suspected = touched.union(changed)
    if not suspected:
        return
    waiting: dict[int, list[Run]] = {id: [] for id in suspected}
    for run in now.runs.values():
        if run.state not in TERMINAL and run.thread in suspected:
            waiting[run.thread].append(run)
    for id in sorted(suspected):
        yield from _of_turn(now.threads[id], waiting[id])
        yield from _of_snapshot(write, annals, before.threads.get(id), now.threads[id])


def _of_turn(thread: Thread, waiting: list[Run]) -> Iterator[str]:
    name = f"thread {thread.thread_id}"
    if thread.depth != len(waiting):
        yield f"{name} says {thread.depth} unfinished runs, and there are {len(waiting)}"
    if (thread.head is None) != (not waiting):
        yield f"{name} has head {thread.head} and {len(waiting)} unfinished runs"
    for run in waiting:
        if run.ready != (run.id == thread.head):
            yield f"{name}: head r{thread.head}, and run r{run.id} is {'' if run.ready else 'not '}ready"
        if run.state is RunState.RUNNING and run.id != thread.head:
            yield f"{name}: run r{run.id} runs out of its turn"
    head = next((run for run in waiting if run.id == thread.head), None)
    if head is not None and head.state is RunState.QUEUED and head.started_at is None:
        if before := sorted(run.id for run in waiting if run.ordinal < head.ordinal):
            yield f"{name}: its head r{head.id} has not begun, and {before} are before it"


def _of_snapshot(write: Write, annals: Annals, was: Thread | None, thread: Thread) -> Iterator[str]:
    """The newest state is where the last super-step ended, or the last run that succeeded with a state; where a run was
    to be taken back, it is where it was before."""
    at = (thread.snapshot_run, thread.snapshot_step)
    before: Pointer = (None, None) if was is None else (was.snapshot_run, was.snapshot_step)
    moved = _moved(write, annals, thread.id, before)
    if at != moved:
        yield f"thread {thread.thread_id}: its snapshot is at {at} after {write.verb}, not at {moved}"


def _moved(write: Write, annals: Annals, thread: int, at: Pointer) -> Pointer:
    """Where this write has moved a thread's snapshot to."""
    if not write.done:
        return at
    for change in write.changes:
        if not isinstance(change, BeginSuperStep | EndRun) or change.thread != thread or not _is_new(write, change):
            continue
        here = (change.run, change.super_step)
        if isinstance(change, BeginSuperStep):
            if at[0] != change.run:
                annals.bases.setdefault(change.run, at)
            at = here
        elif change.outcome is RunState.COMPLETED and change.state is not None:
            at = here
        elif change.outcome is RunState.CANCELLED:
            at = _taken_back(write, annals, change.run, at)
    if write.verb in ("cancel", "start"):
        for id in write.touched:
            run, was = write.now.runs[id], write.before.runs.get(id)
            if run.thread == thread and was is not None and was.state is RunState.HELD and run.ended_at is not None:
                at = _taken_back(write, annals, id, at)
    if write.verb == "fork":
        ask = write.args[0]
        if ask.start.thread == thread and ask.state is not None and ask.start.id not in write.before.runs:
            at = (ask.start.id, ask.super_step)
            annals.bases[ask.start.id] = at
    return at


def _is_new(write: Write, change: BeginSuperStep | EndRun) -> bool:
    """Whether it was written by this, and not before."""
    place = (change.super_step, "")
    was, row = (look.logs.get(change.run, {}).get(place) for look in (write.before, write.now))
    return was is None and row is not None and row.fence == change.fence and row.payload == change.payload


def _taken_back(write: Write, annals: Annals, run: int, at: Pointer) -> Pointer:
    """Where the state is once a run has ended as cancelled."""
    if not write.now.runs[run].rollback or at[0] != run or run not in annals.bases:
        return at
    annals.taken_back.append(run)
    return annals.bases[run]
