"""Whose turn it is on a thread, how many wait, and where its newest state is."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import BeginSuperStep, EndRun
from perdure.core.records import Run, RunState, Thread
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.look import Write


def of_threads(write: Write) -> Iterator[str]:
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
        yield from _of_snapshot(write, before.threads.get(id), now.threads[id])


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


def _of_snapshot(write: Write, was: Thread | None, thread: Thread) -> Iterator[str]:
    """The newest state is where the last super-step ended, or the last run that succeeded with a state."""
    at = (thread.snapshot_run, thread.snapshot_step)
    before = (None, None) if was is None else (was.snapshot_run, was.snapshot_step)
    moved = _moved(write, thread.id)
    if at != (moved or before):
        yield f"thread {thread.thread_id}: its snapshot is at {at} after {write.verb}, not at {moved or before}"


def _moved(write: Write, thread: int) -> tuple[int, int] | None:
    """Where this write has moved a thread's snapshot to."""
    moved: tuple[int, int] | None = None
    if not write.done:
        return None
    for change in write.changes:
        ends = isinstance(change, EndRun) and change.outcome is RunState.COMPLETED and change.state is not None
        if change.thread != thread or not (ends or isinstance(change, BeginSuperStep)):
            continue
        assert isinstance(change, BeginSuperStep | EndRun)
        if (change.super_step, "") in write.before.logs.get(change.run, {}):
            continue  # it comes again
        if (change.super_step, "") in write.now.logs.get(change.run, {}):
            moved = (change.run, change.super_step)
    return moved
