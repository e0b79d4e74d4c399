"""What a write may do to runs that it is not about: give one its turn, or wake one that waits."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from perdure.core.changes import BuryMessage, CloseWait
from perdure.core.records import Run, RunState, Wait, WaitKind
from perdure.testing.simulation.rules.look import Write


def is_by_the_way(write: Write, was: Run, run: Run) -> bool:
    """Whether that is all that has become of this run."""
    return run == was or run == woken(write, was) or (_had_its_turn(write, was) and run == replace(was, ready=True))


def woken(write: Write, was: Run) -> Run | None:
    """A run as it is once it has been woken; None if nothing that it waits for has come."""
    if was.state is not RunState.WAITING or not any(_comes(write, wait) for wait in waits_of(write, was.id)):
        return None
    return replace(was, state=RunState.QUEUED, ready_at=write.now_us)


def waits_of(write: Write, run: int) -> list[Wait]:
    """What it waited for before."""
    return list(write.before.waits.get(run, {}).values())


def of_wakes(write: Write) -> Iterator[str]:
    """A run is woken for something, and is not parked while something of it has come: nothing is lost, and nobody is
    woken twice for one thing."""
    for id in write.touched:
        was, run = write.before.runs.get(id), write.now.runs[id]
        if was is None or was.state is not RunState.WAITING or run.state is not RunState.QUEUED:
            continue
        if run.cancel == was.cancel and not any(_comes(write, wait) for wait in waits_of(write, id)):
            yield f"run r{id} was woken by {write.verb}, and nothing that it waits for has come"


def _comes(write: Write, wait: Wait) -> bool:
    if write.now.has_come(wait):
        return True
    # Room in a mailbox may have been there in the middle of a commit only.
    return wait.kind is WaitKind.ROOM and any(
        change.thread == wait.target
        for change in write.changes
        if isinstance(change, BuryMessage) or (isinstance(change, CloseWait) and change.take is not None)
    )


def _had_its_turn(write: Write, was: Run) -> bool:
    """Whether the run before it on its thread has ended."""
    head = write.before.threads[was.thread].head
    return head is not None and write.now.threads[was.thread].head != head
