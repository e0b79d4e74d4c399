"""Rows for tests of pure code."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.records import (
    Attempt,
    Checkpoint,
    Interrupt,
    InterruptState,
    Kind,
    Run,
    RunState,
    Wait,
    WaitKind,
    Worker,
    WorkerState,
)

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


def run(**changes: Any) -> Run:
    """A queued run that nothing keeps back."""
    made = Run(
        id=12, thread=3, thread_id="topics/7", ordinal=1, agent="research", queue="default", deployment=None,
        state=RunState.QUEUED, reason=None, detail=None, ready=True, ready_at=NOW - 10 * SECOND, priority=0,
        worker=None, fence=0, attempt=0, recoveries=0, strikes=0, super_step=1, key=None, tenant=None, tags=(),
        created_at=NOW - 10 * SECOND, started_at=None, ended_at=None,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def worker(**changes: Any) -> Worker:
    """A live worker with nothing to do."""
    made = Worker(
        id=5, name="w1", host="box", pid=77, deployment="blue", state=WorkerState.ALIVE, idle=True, session=True,
        started_at=NOW - 60 * SECOND, lease_until=NOW + 10 * SECOND, ended_at=None,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def step(key: str, **changes: Any) -> Checkpoint:
    """A step that took a second."""
    made = Checkpoint(
        run=12, super_step=1, key=key, kind=Kind.STEP, seq=0, fence=1, worker=5, attempt=1, digest=0, failed=False,
        payload=b"", state=None, started_at=NOW, ended_at=NOW + SECOND,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def attempt(key: str, **changes: Any) -> Attempt:
    """A try that failed after a second."""
    made = Attempt(run=12, super_step=1, key=key, attempt=1, fence=1, error=b"x", started_at=NOW, ended_at=NOW + SECOND)
    return msgspec.structs.replace(made, **changes)


def wait(key: str, kind: WaitKind = WaitKind.MESSAGE, **changes: Any) -> Wait:
    """A wait that has just begun, without a time."""
    made = Wait(
        run=12, super_step=1, key=key, kind=kind, opened_at=NOW, due_at=None, target=None, labels=(), ready=False,
        due=False,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def question(key: str, **changes: Any) -> Interrupt:
    """A question to anybody that nobody has answered."""
    made = Interrupt(
        id=42, run=12, thread=3, thread_id="topics/7", agent="research", super_step=1, key=key, name="approve",
        state=InterruptState.OPEN, payload=b"\xa1?", schema=None, digest="d", on_timeout="raise", assignee=None,
        tenant=None, created_at=NOW, expires_at=None, answer=None, answered_by=None, answered_at=None,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)
