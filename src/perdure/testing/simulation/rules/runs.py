"""What a run's row, and a worker's, may become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.core.changes import RequeueRun
from perdure.core.records import HeldReason, Run, RunState, WorkerState
from perdure.core.states import TERMINAL, may_move
from perdure.testing.simulation.rules.look import Write

MAY_CHANGE: Final[dict[str, frozenset[str]]] = {
    "claim": frozenset({"state", "worker", "fence", "attempt", "deployment", "started_at"}),
    "commit": frozenset(
        {"state", "worker", "ready", "ready_at", "super_step", "ended_at", "reason", "detail", "strikes", "undoing"}
    ),
    "take_over": frozenset({"state", "worker", "fence", "recoveries", "strikes", "reason", "detail", "ready_at"}),
    "retire": frozenset({"state", "worker", "fence"}),
    "give_back": frozenset({"state", "worker", "fence"}),
    "retry": frozenset(
        {
            "state",
            "ready",
            "ready_at",
            "strikes",
            "reason",
            "detail",
            "ended_at",
            "cancel",
            "rollback",
            "deadline_at",
            "undoing",
        }
    ),
    "release": frozenset({"state", "ready_at", "strikes", "reason", "detail"}),
    "cancel": frozenset({"state", "ready", "ready_at", "strikes", "reason", "detail", "ended_at", "cancel", "undoing"}),
    "start": frozenset(
        {"state", "ready", "ready_at", "strikes", "reason", "detail", "ended_at", "cancel", "rollback", "undoing"}
    ),
    "answer": frozenset({"state", "ready_at"}),
    "send": frozenset({"state", "ready_at"}),
    "revive": frozenset({"state", "ready_at"}),
    "set_budget": frozenset({"state", "ready_at"}),
}
"""The fields of a run that a verb may change; any other verb changes none."""

HELD_AS: Final = frozenset({HeldReason.POISON, HeldReason.EXHAUSTED})
"""Why a run may be held here: the agents of a simulated world neither diverge nor return what cannot be stored."""


def of_runs(write: Write) -> Iterator[str]:
    """What each row that differs may have become."""
    before, now = write.before, write.now
    for id in before.runs.keys() - now.runs.keys():
        yield f"run r{id} has vanished"
    for id in write.touched:
        was, run = before.runs.get(id), now.runs[id]
        if was is not run and was != run:
            yield from _born(write, run) if was is None else _changed(write, was, run)


def of_workers(write: Write) -> Iterator[str]:
    """What each worker's row may have become, and that nobody runs under one that is not alive."""
    before, now = write.before, write.now
    for id in before.workers.keys() - now.workers.keys():
        yield f"worker w{id} has vanished"
    for id, row in now.workers.items():
        was = before.workers.get(id)
        if was is not None and was.state is not WorkerState.ALIVE and row.state is WorkerState.ALIVE:
            yield f"worker w{id} was {was.state} and is alive again"
    for run in now.runs.values():
        if run.state is RunState.RUNNING and not now.alive(run.worker):
            yield f"run r{run.id} is running under w{run.worker}, which is not alive"


def _born(write: Write, run: Run) -> Iterator[str]:
    born = run.state is RunState.QUEUED or (run.state is RunState.CANCELLED and run.cancel is not None)
    if write.verb not in ("start", "fork") or not born or run.worker is not None:
        yield f"run r{run.id} came into being by {write.verb}, {run.state}, with worker {run.worker}"


def _changed(write: Write, was: Run, run: Run) -> Iterator[str]:
    verb, name = write.verb, f"run r{run.id}"
    differ = {field for field in run.__struct_fields__ if getattr(run, field) != getattr(was, field)}
    if wrong := sorted(differ - MAY_CHANGE.get(verb, frozenset())):
        yield f"{name}: {', '.join(f'{each} became {getattr(run, each)!r}' for each in wrong)} by {verb}"
    if (run.state is RunState.RUNNING) != (run.worker is not None):
        yield f"{name} is {run.state} with worker {run.worker}"
    if was.state is not run.state and not may_move(was.state, run.state):
        yield f"{name} went from {was.state} to {run.state}"
    if was.state in TERMINAL and verb != "retry":
        yield f"{name} was {was.state} and changed by {verb}"
    ends = run.state is RunState.CANCELLED or (run.cancel is not None and run.undoing)
    if was.state is RunState.HELD and verb != "release" and not ends:
        yield f"{name} was held and changed by {verb}"
    if run.state is RunState.HELD and run.reason not in HELD_AS:
        yield f"{name} is held as {run.reason}: {run.detail}"
    if was.undoing and not run.undoing:
        yield f"{name} was one whose effects are undone, and is not any more by {verb}"
    if run.super_step < was.super_step:
        yield f"{name} went back from super-step {was.super_step} to {run.super_step}"
    if was.deployment is not None and run.deployment != was.deployment:
        yield f"{name} was pinned to {was.deployment} and is now to {run.deployment}"
    yield from _of_fence(verb, was, run)
    yield from _of_counts(verb, was, run)
    yield from _of_place(write, was, run)


def _of_fence(verb: str, was: Run, run: Run) -> Iterator[str]:
    """Whoever gets a run or loses it, other than by its own word, sees a new fence."""
    name = f"run r{run.id}"
    if run.fence < was.fence:
        yield f"{name}: its fence fell from {was.fence} to {run.fence}"
    if run.worker is not None and run.worker != was.worker and run.fence <= was.fence:
        yield f"{name}: w{run.worker} took it without a new fence"
    if was.worker is not None and run.worker is None and verb != "commit" and run.fence <= was.fence:
        yield f"{name} was taken from w{was.worker} by {verb} without a new fence"


def _of_counts(verb: str, was: Run, run: Run) -> Iterator[str]:
    taken_over = verb == "take_over" and was.worker is not None and run.worker is None
    if run.recoveries != was.recoveries + taken_over:
        yield f"run r{run.id}: {was.recoveries} recoveries became {run.recoveries} by {verb}"
    claimed = verb == "claim" and run.state is RunState.RUNNING
    if run.attempt != was.attempt + claimed:
        yield f"run r{run.id}: {was.attempt} claims became {run.attempt} by {verb}"
    parked = was.worker is not None and run.state is RunState.WAITING
    if verb == "commit" and run.strikes != (0 if parked else was.strikes):
        yield f"run r{run.id}: {was.strikes} strikes became {run.strikes} by {verb}, {run.state}"
    if verb in ("retry", "release") and run.strikes:
        yield f"run r{run.id} was sent on with {run.strikes} strikes"


def _of_place(write: Write, was: Run, run: Run) -> Iterator[str]:
    """A run keeps its place in the queue, unless it is to wait or a person sends it on."""
    delays = [each.delay_us for each in write.changes if isinstance(each, RequeueRun) and each.run == run.id]
    delays = [0 for _ in delays] if was.cancel is not None else delays  # who is to clean up does not wait
    if write.verb == "commit" and run.ready_at != was.ready_at and delays == [0] and run.state is RunState.QUEUED:
        yield f"run r{run.id} was handed back and lost its place: {was.ready_at} became {run.ready_at}"
    due_at = write.now_us + max(delays, default=0)
    if run.deadline_at is not None:
        due_at = min(due_at, run.deadline_at)
    if write.verb == "commit" and any(delays) and run.ready_at != due_at:
        yield f"run r{run.id} is to wait {max(delays)} us, and is due in {run.ready_at - write.now_us} us"
