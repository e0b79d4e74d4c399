"""Why a run does not go on, decided from rows. Pure.

A run that is not terminal is always in one of these situations, and each has a sentence and, where a person can do
something, a remedy. The workers' rows do not say which agents and queues a worker serves, so that case is inferred: a
worker that is idle while a due run is ready for it evidently does not serve that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from perdure.cli.text import ago, clean, count, duration, moment
from perdure.core.records import HeldReason, Run, RunState, Worker, WorkerState, run_id

_REMEDIES: Final[dict[str, str]] = {
    HeldReason.POISON: "it kept killing its workers: fix the cause (memory, a native crash), then `{release}`",
    HeldReason.DIVERGED: "deploy code that calls the step with the recorded arguments, then `{release}`",
    HeldReason.SCHEMA: "deploy code whose types load the recorded values, then `{release}`",
    HeldReason.VERSION: "start a worker that serves its deployment, then `{release}`",
    HeldReason.REFUSED: "the store refused what the run wanted to record: fix the value, then `{release}`",
}


@dataclass(frozen=True, slots=True)
class Why:
    """What a run waits for, in a sentence, and what a person can do about it."""

    what: str
    remedy: str | None = None


def why(run: Run, *, head: Run | None, workers: Sequence[Worker], now_us: int) -> Why | None:
    """What this run waits for; None if it ended or is making progress.

    `head` is the run whose turn it is on the thread, `workers` are the alive ones.
    """
    match run.state:
        case RunState.COMPLETED | RunState.FAILED | RunState.CANCELLED:
            return None
        case RunState.HELD:
            return _held(run)
        case RunState.RUNNING:
            return _running(run, workers=workers, now_us=now_us)
        case RunState.WAITING:
            return Why("a wait inside the agent")
        case RunState.QUEUED:
            return _queued(run, head=head, workers=workers, now_us=now_us)
    assert_never(run.state)


def _held(run: Run) -> Why:
    reason = run.reason or "unknown reason"
    release = f"perdure release {run_id(run.id)}"
    detail = f": {clean(run.detail)}" if run.detail else ""
    return Why(
        f"a person (held, {clean(reason)}{detail})", _REMEDIES.get(reason, "`{release}`").format(release=release)
    )


def _running(run: Run, *, workers: Sequence[Worker], now_us: int) -> Why | None:
    owner = next((worker for worker in workers if worker.id == run.worker), None)
    if owner is not None and owner.lease_until > now_us:
        return None
    since = f" (its lease ran out {ago(owner.lease_until, now_us=now_us)})" if owner else ""
    if any(worker.lease_until > now_us for worker in workers):
        return Why(f"a live worker to take it over{since}", "nothing to do: it happens within a lease")
    return Why(f"a worker to take it over{since}; none is alive", "start one: `perdure worker MODULE:APP`")


def _queued(run: Run, *, head: Run | None, workers: Sequence[Worker], now_us: int) -> Why:
    if not run.ready and head is not None and head.id != run.id:
        return _behind(head)
    if run.ready_at > now_us:
        return Why(f"its time: not due for {duration(run.ready_at - now_us)} (until {moment(run.ready_at)})")
    live = [worker for worker in workers if worker.lease_until > now_us and worker.state is WorkerState.ALIVE]
    serve = f"agent {clean(run.agent)} on queue {clean(run.queue)}"
    if not live:
        return Why("a worker: none is alive", f"start one that serves {serve}: `perdure worker MODULE:APP`")
    if run.deployment is not None:
        live = [worker for worker in live if worker.deployment == run.deployment]
        if not live:
            pinned = clean(run.deployment)
            return Why(
                f"a worker of deployment {pinned}: none is alive",
                f"start one: `perdure worker MODULE:APP --deployment {pinned}`",
            )
    if any(worker.idle for worker in live):
        return Why(
            f"a worker that serves {serve}: {count(len(live), 'worker')} alive, idle, and not taking it",
            f"start one that serves it: `perdure worker MODULE:APP --queue {clean(run.queue)}`",
        )
    held = count(sum(worker.running for worker in live), "run")
    return Why(f"a free slot: {count(len(live), 'worker')} alive with {held} in hand")


def _behind(head: Run) -> Why:
    name = run_id(head.id)
    if head.state is RunState.HELD:
        return Why(f"run {name}, which is held ({clean(head.reason or '')})", f"`perdure runs show {name}`")
    return Why(f"run {name}, which is before it on its thread ({head.state.value})")
