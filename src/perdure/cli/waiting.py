"""Why a run does not go on, decided from rows. Pure.

A run that is not terminal is always in one of these situations, and each has a sentence and, where a person can do
something, a remedy. The workers' rows do not say which agents and queues a worker serves, so that case is inferred: a
worker that stays idle while a due run is ready for it evidently does not serve that run.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from perdure.cli import awaiting
from perdure.cli.awaiting import Around
from perdure.core.records import HeldReason, Run, RunState, Wait, Worker, run_id, worker_id
from perdure.terminal.text import ago, clean, count, duration, moment

CLAIM_PATIENCE_US: Final = 3_000_000
"""An idle worker that has not taken a due run after this time does not serve it: wake-ups and polls are faster."""

_REMEDIES: Final[dict[str, str]] = {
    HeldReason.POISON: "it kept killing its workers: fix the cause (memory, a native crash), then `{release}`",
    HeldReason.DIVERGED: "deploy code that calls the step with the recorded arguments, then `{release}`",
    HeldReason.SCHEMA: "deploy code whose types load the recorded values, then `{release}`",
    HeldReason.VERSION: "start a worker that serves its deployment, then `{release}`",
    HeldReason.REFUSED: "the store refused what the run wanted to record: fix the value, then `{release}`",
    HeldReason.EXHAUSTED: "find out what the step's last try did; if its body is safe to run again, `{release}`",
}


@dataclass(frozen=True, slots=True)
class Why:
    """What a run waits for, in a few words and in a sentence, and what a person can do about it."""

    short: str
    what: str
    remedy: str | None = None
    unserved: bool = False
    """No worker that is alive will take it, however long it waits."""


def why(
    run: Run, *, head: Run | None, workers: Sequence[Worker], now_us: int, silent: Container[int] = (),
    waits: Sequence[Wait] = (), around: Around | None = None,
) -> Why | None:  # fmt: skip
    """What this run waits for; None if it ended or is making progress.

    `head` is the run whose turn it is on the thread; `workers` are those whose rows say alive, `silent` the ones among
    them that show no sign of life; `waits` is what a parked run waits for, and `around` the rows that these point to.
    """
    live = [worker for worker in workers if worker.lease_until > now_us and worker.id not in silent]
    match run.state:
        case RunState.COMPLETED | RunState.FAILED | RunState.CANCELLED:
            return None
        case RunState.HELD:
            return _held(run)
        case RunState.RUNNING:
            return _running(run, workers=workers, live=live, now_us=now_us)
        case RunState.WAITING:
            if run.ready_at <= now_us:
                return _due(run, live=live, now_us=now_us)
            return _parked(run, waits, around or Around(), now_us=now_us)
        case RunState.QUEUED:
            return _queued(run, head=head, live=live, now_us=now_us)
    assert_never(run.state)


def _held(run: Run) -> Why:
    reason = run.reason or "no reason recorded"
    detail = f": {clean(run.detail)}" if run.detail else ""
    remedy = _REMEDIES.get(reason, "`{release}`").format(release=f"perdure release {run_id(run.id)}")
    return Why(f"held: {clean(reason)}", f"a person (held, {clean(reason)}{detail})", remedy)


def _running(run: Run, *, workers: Sequence[Worker], live: Sequence[Worker], now_us: int) -> Why | None:
    if any(worker.id == run.worker for worker in live):
        return None
    owner = next((worker for worker in workers if worker.id == run.worker), None)
    said = "its worker is gone" if owner is None else f"its worker {worker_id(owner.id)} shows no sign of life"
    if owner is not None and owner.lease_until <= now_us:
        said = f"the lease of {worker_id(owner.id)} ran out {ago(owner.lease_until, now_us=now_us)}"
    if live:
        return Why("to be taken over", f"another worker to take it over: {said}", "nothing: it happens within a lease")
    remedy = "start one: `perdure worker MODULE:APP`"
    return Why("its worker is gone", f"a worker to take it over: {said}, and no other is alive", remedy)


def _queued(run: Run, *, head: Run | None, live: Sequence[Worker], now_us: int) -> Why:
    if not run.ready and head is not None and head.id != run.id:
        return _behind(head)
    if run.ready_at > now_us:
        left = duration(run.ready_at - now_us)
        return Why(f"due in {left}", f"its time: not due for {left} (until {moment(run.ready_at)})")
    return _due(run, live=live, now_us=now_us)


def _parked(run: Run, waits: Sequence[Wait], around: Around, *, now_us: int) -> Why:
    """Let go of by its worker until something comes."""
    if not waits:
        return Why("a wait inside", "what its agent has asked for")
    return Why(
        awaiting.in_short(waits, around, now_us=now_us),
        awaiting.in_words(waits, around, now_us=now_us),
        awaiting.remedy(run, waits),
    )


def _due(run: Run, *, live: Sequence[Worker], now_us: int) -> Why:
    """Nothing keeps it back but that nobody takes it."""
    if not live:
        remedy = f"start one that serves {_served(run)}: `perdure worker MODULE:APP`"
        return Why("no worker is alive", "a worker: none is alive", remedy, unserved=True)
    return _claimable(run, live, now_us=now_us)


def _behind(head: Run) -> Why:
    name = run_id(head.id)
    if head.state is RunState.HELD:
        reason = clean(head.reason or "")
        return Why(f"behind {name}, held", f"run {name}, which is held ({reason})", f"`perdure runs show {name}`")
    if head.state is RunState.WAITING:
        remedy = f"`perdure runs show {name}` says for what"
        return Why(f"behind {name}, waiting", f"run {name}, which is before it on its thread, and waits", remedy)
    return Why(f"behind {name}", f"run {name}, which is before it on its thread ({head.state.value})")


def _claimable(run: Run, live: Sequence[Worker], *, now_us: int) -> Why:
    """Due and ready, with workers alive: why does nobody take it?"""
    able = [worker for worker in live if run.deployment in (None, worker.deployment)]
    if not able:
        pinned = clean(run.deployment or "")
        remedy = f"start one: `perdure worker MODULE:APP --deployment {pinned}`"
        said = f"a worker of deployment {pinned}: none is alive"
        return Why(f"no worker of {pinned}", said, remedy, unserved=True)
    alive = f"{count(len(able), 'worker')} alive"
    if not any(worker.idle for worker in able):
        held = count(sum(worker.running for worker in able), "run")
        return Why("waits for a slot", f"a free slot: {alive} with {held} in hand")
    if now_us - run.ready_at < CLAIM_PATIENCE_US:
        return Why("about to be claimed", f"its claim: {alive}, and it has only just become due")
    remedy = f"start one that serves it: `perdure worker MODULE:APP --queue {clean(run.queue)}`"
    serves = f"a worker that serves {_served(run)}: {alive}, idle, and not taking it"
    return Why("no worker serves it", serves, remedy, unserved=True)


def _served(run: Run) -> str:
    return f"agent {clean(run.agent)} on queue {clean(run.queue)}"
