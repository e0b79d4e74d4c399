"""What runs wait for: rows that come with their run's owner, stay as they are, and go with what ends them."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import BeginSuperStep, CloseWait, EndRun, OpenWait
from perdure.core.limits import NEVER_US
from perdure.core.records import Run, RunState, Wait, WaitKind
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.look import Waits, Write

ENDS_AT_ONCE = frozenset({"cancel", "start"})
"""The verbs that may end a run which nobody has to clean up after, and with it what it waits for."""


def of_waits(write: Write) -> Iterator[str]:
    """The waits that differ, and every run that only waits."""
    before, now = write.before, write.now
    for id in sorted(before.waits.keys() | now.waits.keys()):
        was, waits = before.waits.get(id, {}), now.waits.get(id, {})
        if was is not waits:
            yield from _of_rows(write, id, was, waits)
    for run in now.runs.values():
        if run.state is RunState.WAITING:
            yield from _of_parked(write, run)


def _of_parked(write: Write, run: Run) -> Iterator[str]:
    """No wake-up is lost: a run that only waits waits for something that has not come."""
    waits = write.now.waits.get(run.id, {})
    if not waits:
        yield f"run r{run.id} waits for nothing"
    for wait in waits.values():
        due = wait.due_at is not None and wait.due_at <= write.now_us
        if write.now.has_come(wait) and not due:  # whose time has come needs nobody to be woken by
            yield f"run r{run.id} still waits for {shown(wait)}, which has come"
    times = [*(wait.due_at for wait in waits.values()), run.deadline_at]
    ready_at = min((time for time in times if time is not None), default=NEVER_US)
    if run.ready_at != ready_at:
        yield f"run r{run.id} waits until {run.ready_at}, and what it waits for comes at {ready_at}"


def _of_rows(write: Write, id: int, before: Waits, now: Waits) -> Iterator[str]:
    run = write.now.runs[id]
    if now and run.state in TERMINAL:
        yield f"run r{id} is {run.state}, and waits for {sorted(now)}"
    for key, wait in now.items():
        if wait.super_step != run.super_step:
            yield f"run r{id} is in super-step {run.super_step}, and waits for {key!r} of {wait.super_step}"
        due = wait.due_at is not None and wait.due_at <= write.now_us
        if (wait.ready, wait.due) != (due or write.now.has_come(wait), due):
            yield f"run r{id}: the store says of {shown(wait)}: ready {wait.ready}, due {wait.due}"
        if key not in before or before[key].super_step != wait.super_step:
            yield from _opened(write, wait)
        elif lasting(wait) != lasting(before[key]):
            yield f"run r{id}: {shown(before[key])} became {shown(wait)} by {write.verb}"
        on_record = (wait.super_step, key) in write.now.logs.get(id, {})
        if on_record and wait.kind is not WaitKind.ROOM:  # a message may be sent while its sender still waits for room
            yield f"run r{id} waits for {key!r}, which is on record"
    for key in sorted(before.keys() - now.keys()):
        if not _may_go(write, id, key):
            yield f"run r{id} does not wait for {shown(before[key])} any more, by {write.verb}"


def lasting(wait: Wait) -> tuple[object, ...]:
    """What of a wait never changes."""
    return wait.super_step, wait.kind, wait.opened_at, wait.due_at, wait.target, wait.labels


def _opened(write: Write, wait: Wait) -> Iterator[str]:
    asked = openings(write, wait.run, wait.key)
    name = f"run r{wait.run} waits for {shown(wait)}"
    if not asked or not any(each.kind is wait.kind and each.labels == wait.labels for each in asked):
        yield f"{name} by {write.verb}, and has not asked to"
        return
    if wait.opened_at != write.now_us or not any(wait.due_at == due_at(each, write.now_us) for each in asked):
        yield f"{name} from {wait.opened_at} to {wait.due_at}, as nobody has asked at {write.now_us}"
    if wait.kind is WaitKind.ANSWER:
        question = write.now.interrupts.get(wait.target or 0)
        if question is None or (question.run, question.super_step, question.key) != (
            wait.run,
            wait.super_step,
            wait.key,
        ):
            yield f"{name}, which is not its own question: {question}"
    elif all(wait.target != each.target for each in asked):
        yield f"{name}, and asked for {[each.target for each in asked]}"


def openings(write: Write, run: int, key: str) -> list[OpenWait]:
    """What this write says to begin to wait for under this key."""
    return [each for each in write.changes if isinstance(each, OpenWait) and (each.run, each.key) == (run, key)]


def due_at(change: OpenWait, now_us: int) -> int | None:
    """When the wait is over in any case."""
    delayed = None if change.delay_us is None else now_us + change.delay_us
    return min((time for time in (delayed, change.due_at) if time is not None), default=None)


def _may_go(write: Write, id: int, key: str) -> bool:
    run = write.now.runs[id]
    if write.verb in ENDS_AT_ONCE:
        return run.state is RunState.CANCELLED
    for change in write.changes:
        if change.run != id:
            continue
        if isinstance(change, CloseWait) and change.key == key:
            return True
        if isinstance(change, BeginSuperStep | EndRun) and change.waited:
            return True
    return False


def shown(wait: Wait) -> str:
    """A wait in a few words."""
    about = f" {wait.target}" if wait.target is not None else ""
    until = f" until {wait.due_at}" if wait.due_at is not None else ""
    return f"{wait.kind.name.lower()}{about} under {wait.key!r}{until}"
