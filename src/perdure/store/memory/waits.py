"""Waits: rows that say what a run waits for. Whether it has come is a question to the other rows, asked anew each time.

A wait ends with its step's record, without one when nobody waits any more, or with its super-step. The functions that
write are arms of a commit; `commits.py` has judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from perdure.core import limits
from perdure.core.changes import CloseWait, OpenWait, ParkRun
from perdure.core.records import InterruptState, RunState, Wait, WaitKind
from perdure.core.requests import Bounce
from perdure.core.states import TERMINAL
from perdure.core.times import earliest
from perdure.store.memory import mail, questions
from perdure.store.memory.tables import Tables


def of_runs(tables: Tables, runs: Iterable[int], *, now: int) -> list[Wait]:
    """What these runs wait for, by run and key, and whether it has come."""
    return [
        _seen(tables, wait, now)
        for run in sorted(set(runs))
        for wait in sorted(tables.waits.get(run, {}).values(), key=lambda wait: wait.key)
    ]


def _seen(tables: Tables, wait: Wait, now: int) -> Wait:
    due = wait.due_at is not None and wait.due_at <= now
    return msgspec.structs.replace(wait, ready=due or _has_come(tables, wait), due=due)


def _has_come(tables: Tables, wait: Wait) -> bool:
    """Whether what is waited for is there, whatever the time."""
    match wait.kind:
        case WaitKind.TIMER:
            return False
        case WaitKind.ANSWER:
            return tables.interrupts[_target(wait)].state is not InterruptState.OPEN
        case WaitKind.MESSAGE:
            box = tables.mail.get(tables.runs[wait.run].thread, {})
            return any(mail.fits(message, wait) for message in box.values())
        case WaitKind.RUN:
            run = tables.runs.get(_target(wait))
            return run is not None and (run.state in TERMINAL or run.state is RunState.HELD)
        case WaitKind.ROOM:
            return not mail.is_full(tables, _target(wait))
        case _:
            assert_never(wait.kind)


def _target(wait: Wait) -> int:
    assert wait.target is not None, wait
    return wait.target


# -- the arms of a commit ------------------------------------------------------------------------------------


def open_wait(tables: Tables, change: OpenWait, *, now: int) -> None:
    """Nothing where it is open, or where it is over: its step is on record, or its super-step has ended."""
    run = tables.runs[change.run]
    at = change.super_step, change.key
    if at in tables.waits[run.id] or at in tables.checkpoints[run.id] or change.super_step != run.super_step:
        return
    delayed = None if change.delay_us is None else now + change.delay_us
    due_at = earliest(delayed, change.due_at)
    asks = change.interrupt is not None
    wait = Wait(
        run=run.id,
        super_step=change.super_step,
        key=change.key,
        kind=change.kind,
        opened_at=now,
        due_at=due_at,
        target=questions.ask(tables, change, due_at, now=now) if asks else change.target,
        labels=change.labels,
        ready=False,
        due=False,
    )
    tables.add_wait(wait)
    tables.put_blobs(change.thread, change.blobs)


def bounce(tables: Tables, change: CloseWait) -> Bounce | None:
    """Why the wait cannot end like this."""
    asked = tables.asked[change.run].get((change.super_step, change.key))
    if change.expired and asked is not None and tables.interrupts[asked].state is InterruptState.ANSWERED:
        return Bounce.ANSWERED
    if change.take is not None and change.take not in tables.mail[change.thread]:
        return Bounce.GONE
    return None


def close_wait(tables: Tables, change: CloseWait, *, now: int) -> None:
    """All but the record."""
    at = change.super_step, change.key
    wait = tables.drop_wait(change.run, at)
    asked = tables.asked[change.run].get(at)
    if asked is not None and change.expired:
        questions.close(tables, asked, InterruptState.EXPIRED)
    if asked is not None and wait is not None and change.record is None:
        questions.close(tables, asked, InterruptState.WITHDRAWN)
    if change.take is not None:
        mail.take(tables, change.thread, change.take, now=now)


def close_all(tables: Tables, run: int) -> None:
    """A run's super-step is over: nobody waits any more."""
    for at in list(tables.waits[run]):
        tables.drop_wait(run, at)
    for interrupt in tables.asked[run].values():
        questions.close(tables, interrupt, InterruptState.WITHDRAWN)


def park(tables: Tables, change: ParkRun, *, now: int) -> bool:
    """Whether the run was parked: not one whose wait is over, or that waits for nothing."""
    waits = of_runs(tables, [change.run], now=now)
    if not waits or any(wait.ready for wait in waits):
        return False
    first = earliest(*(wait.due_at for wait in waits), tables.runs[change.run].deadline_at)
    ready_at = limits.NEVER_US if first is None else first
    tables.move(change.run, state=RunState.WAITING, worker=None, strikes=0, ready_at=ready_at)
    return True
