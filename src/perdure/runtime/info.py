"""What is shown of runs and threads: frozen views with ids as strings and times as datetimes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from perdure.core.codec import codec_for
from perdure.core.errors import text_of
from perdure.core.failures import decode_error
from perdure.core.paths import type_name
from perdure.core.records import AgentState, Checkpoint, ErrorInfo, Kind, Outcome, Run, RunState, run_id, worker_id
from perdure.errors import PerdureError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""What the store's times count from."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run, as it was when it was read."""

    run_id: str
    thread_id: str
    agent: str
    state: RunState
    held_reason: str | None
    attempt: int
    """How often it has been claimed."""
    recoveries: int
    """How often its worker died."""
    deployment: str | None
    """The version it is pinned to; None before its first claim."""
    worker: str | None
    waiting_for: str | None
    """In words, what an unfinished run waits for; None while it runs and when it has ended."""
    result: Any
    error: ErrorInfo | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    super_step: int
    queue: str
    priority: int
    key: str | None
    tenant: str | None
    tags: tuple[str, ...]
    result_note: str | None = None
    """Why `result` is plain data, as recorded: it does not load as what its agent declares by now."""
    parent: str | None = None
    """The run that started it, if an agent did."""
    deadline_at: datetime | None = None
    """When it fails if it has not ended by then."""
    cancel: str | None = None
    """Why its cancellation was requested; None where it was not. It ends as cancelled, and as nothing else."""


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One entry of a log: a step's record, the start of a super-step, or the end of a run."""

    run_id: str
    super_step: int
    key: str
    """The step's key; empty for boundaries and ends."""
    kind: Kind
    attempt: int
    failed: bool
    size: int
    """Bytes recorded."""
    worker: str
    started_at: datetime
    ended_at: datetime
    has_state: bool


def moment(us: int) -> datetime:
    """A store's time as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=us)


def run_info(
    run: Run, outcome: Outcome | None, decode: Callable[[bytes], Any], *, head: int | None = None, now_us: int = 0,
    awaited: str | None = None,
) -> RunInfo:  # fmt: skip
    """A view of a run; `head` is the run that its thread is at, `awaited` what a parked one waits for, where that is
    known."""
    result, note = read_result(outcome.payload, decode) if outcome is not None and not outcome.failed else (None, None)
    error = decode_error(outcome.payload) if outcome is not None and outcome.failed else None
    return RunInfo(
        run_id=run_id(run.id), thread_id=run.thread_id, agent=run.agent, state=run.state,
        held_reason=run.reason if run.state is RunState.HELD else None, attempt=run.attempt, recoveries=run.recoveries,
        deployment=run.deployment, worker=None if run.worker is None else worker_id(run.worker),
        waiting_for=awaited or waiting_for(run, head=head, now_us=now_us), result=result, error=error,
        created_at=moment(run.created_at), started_at=maybe(run.started_at), ended_at=maybe(run.ended_at),
        super_step=run.super_step, queue=run.queue, priority=run.priority, key=run.key, tenant=run.tenant,
        tags=run.tags, result_note=note, parent=None if run.parent is None else run_id(run.parent),
        deadline_at=maybe(run.deadline_at), cancel=run.cancel,
    )  # fmt: skip


def read_result(payload: bytes, decode: Callable[[bytes], Any]) -> tuple[Any, str | None]:
    """A result as its agent declares it, or as recorded with the reason: who looks at an old run gets no error."""
    try:
        return decode(payload), None
    except Exception as error:  # the edge of user code: a constructor or a validator of the declared type
        return plain(payload), f"as recorded, for it does not load as what the agent returns now: {named(error)}"


def plain(payload: bytes) -> Any:
    """A recorded value as plain data."""
    return codec_for(Any).decode(payload)


def named(error: Exception) -> str:
    """An error's text, with its type where that is not one of ours."""
    return str(error) if isinstance(error, PerdureError) else f"{type_name(type(error))}: {text_of(error)}"


def waiting_for(run: Run, *, head: int | None = None, now_us: int = 0) -> str | None:
    """In words, what an unfinished run waits for."""
    match run.state:
        case RunState.QUEUED if not run.ready:
            return f"run {run_id(head)} of its thread" if head not in (None, run.id) else "earlier runs of its thread"
        case RunState.QUEUED if run.ready_at > now_us > 0:
            return f"its time, {moment(run.ready_at).isoformat(timespec='seconds')}"
        case RunState.QUEUED:
            return "a free worker"
        case RunState.HELD:
            return f"a person: {run.reason}" + (f" ({run.detail})" if run.detail else "")
        case RunState.WAITING:
            return "what it has asked for"
        case _:
            return None


def checkpoint_info(row: Checkpoint) -> CheckpointInfo:
    """A view of a checkpoint."""
    return CheckpointInfo(
        run_id(row.run), row.super_step, row.key, row.kind, row.attempt, row.failed,
        len(row.payload) + len(row.state or b""), worker_id(row.worker), moment(row.started_at), moment(row.ended_at),
        row.state is not None,
    )  # fmt: skip


def agent_state(head: Run | None) -> AgentState:
    """What a thread is doing, from its head: `response` is a head that waits for somebody's answer."""
    if head is None:
        return AgentState.IDLE
    return AgentState.RESPONSE if head.state is RunState.WAITING else AgentState.PROCESSING


def maybe(us: int | None) -> datetime | None:
    """The same where there is one."""
    return None if us is None else moment(us)
