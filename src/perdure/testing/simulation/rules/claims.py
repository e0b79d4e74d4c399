"""A claim takes what it may and no more, in the order of the queue, and brings what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from perdure.core.limits import SUSPECT_STRIKES
from perdure.core.records import Claimed, Kind, Run, RunState
from perdure.core.requests import ClaimRequest
from perdure.testing.simulation.rules.look import Write

CLAIMABLE: Final = frozenset({RunState.QUEUED, RunState.WAITING})


def of_claim(write: Write, tickets: Mapping[int, int]) -> Iterator[str]:
    """What was claimed. `tickets` are the workers' last give-backs."""
    if write.verb != "claim" or not write.done:
        return
    request: ClaimRequest = write.args[0]
    claimed: Sequence[Claimed] = write.answer
    if claimed and not write.before.alive(request.worker):
        yield f"w{request.worker} is not alive and claimed"
    if claimed and request.ticket < tickets.get(request.worker, 0):
        yield f"w{request.worker} claimed by a request from before its last give-back"
    yield from _of_choice(write, request, [each.run for each in claimed], tickets)
    yield from _of_suspects(write, request.worker)
    for each in claimed:
        yield from _of_row(write, request, each)
        yield from _of_load(write, each)


def _of_choice(write: Write, request: ClaimRequest, taken: list[int], tickets: Mapping[int, int]) -> Iterator[str]:
    """The first of those that may be claimed, by priority, then by when they became due."""
    due = [run for run in write.before.runs.values() if may_claim(run, request, write.now_us)]
    due.sort(key=lambda run: (-run.priority, run.ready_at, run.id))
    expected: list[int] = []
    suspects = 0
    for run in due:
        suspects += run.strikes >= SUSPECT_STRIKES
        if run.strikes < SUSPECT_STRIKES or suspects <= request.suspects:
            expected.append(run.id)
    if not write.before.alive(request.worker) or request.ticket < tickets.get(request.worker, 0):
        expected = []
    if taken != expected[: request.limit]:
        yield f"w{request.worker} claimed {taken} and passed over what was first in the queue: {expected}"


def may_claim(run: Run, request: ClaimRequest, now_us: int) -> bool:
    """Whether this request fits this run, now."""
    return (
        run.state in CLAIMABLE
        and run.ready
        and run.ready_at <= now_us
        and run.agent in request.agents
        and run.queue in request.queues
        and run.deployment in (None, request.deployment)
    )


def _of_suspects(write: Write, worker: int) -> Iterator[str]:
    """A worker has one suspect in its hands at a time, until it has recorded something."""
    held = [run for run in write.now.held_by(worker) if run.strikes >= SUSPECT_STRIKES]
    silent = sorted(run.id for run in held if not write.now.has_recorded(run))
    if len(silent) > 1:
        yield f"w{worker} has {len(silent)} suspects in its hands that have recorded nothing: {silent}"


def _of_row(write: Write, request: ClaimRequest, each: Claimed) -> Iterator[str]:
    was, run = write.before.runs[each.run], write.now.runs[each.run]
    name = f"run r{run.id}, claimed by w{request.worker}"
    if was.state not in CLAIMABLE or not was.ready or was.ready_at > write.now_us:
        due_us = was.ready_at - write.now_us
        yield f"{name}, was {was.state}, {'' if was.ready else 'not '}ready, due in {due_us} us"
    if run.worker != request.worker or run.fence != each.fence:
        yield f"{name} under fence {each.fence}, is w{run.worker}'s under {run.fence}"
    if was.agent not in request.agents or was.queue not in request.queues:
        yield f"{name}, is of agent {was.agent} in queue {was.queue}"
    if was.deployment not in (None, request.deployment) or run.deployment != request.deployment:
        yield f"{name} of {request.deployment}, is pinned to {was.deployment}"
    told = (each.thread, each.agent, each.super_step, each.attempt, each.recoveries, each.strikes)
    if told != (run.thread, run.agent, run.super_step, run.attempt, run.recoveries, run.strikes):
        yield f"{name}: was told {told}, which is not what is in its row"


def _of_load(write: Write, each: Claimed) -> Iterator[str]:
    """All that the execution needs is what is on disk."""
    run, log = write.now.runs[each.run], write.now.logs.get(each.run, {})
    name = f"run r{run.id}, claimed by w{run.worker}"
    there = {at for at, row in log.items() if row.kind is Kind.STEP and at[0] == run.super_step}
    brought = {(row.super_step, row.key) for row in each.records}
    if there != brought:
        yield f"{name}: its log has {sorted(there)}, and it got {sorted(brought)}"
    tried = {at for at in write.now.tries.get(run.id, {}) if at[0] == run.super_step}
    told = {(row.super_step, row.key, row.attempt) for row in each.attempts}
    if tried != told:
        yield f"{name}: its tries are {sorted(tried)}, and it was told of {sorted(told)}"
    waits = tuple(wait for _, wait in sorted(write.now.waits.get(run.id, {}).items()))
    if each.waits != waits:
        yield f"{name}: it waits for {waits}, and it was told of {each.waits}"
    of_run = (row for row in write.now.effects.values() if (row.run, row.super_step) == (run.id, run.super_step))
    effects = tuple(sorted(of_run, key=lambda row: row.key))
    if each.effects != effects or (each.undoing is not None) != run.undoing:
        yield f"{name}: its effects are {effects}, and it was told of {each.effects}, {each.undoing}"
    of_row = (each.cancel, each.deadline_at, each.tenant, each.priority)
    if of_row != (run.cancel, run.deadline_at, run.tenant, run.priority):
        yield f"{name}: was told {of_row} of its cancellation and its deadline, which is not what is in its row"
    begins = log.get((run.super_step, ""))
    if begins is None or each.arguments != begins.payload:
        yield f"{name}: got other arguments than those on disk"
    thread = write.now.threads[run.thread]
    at = (thread.snapshot_run or 0, thread.snapshot_step or 0) if run.super_step == 1 else (run.id, run.super_step)
    newest = write.now.logs.get(at[0], {}).get((at[1], ""))
    if each.state != (None if newest is None else newest.state):
        yield f"{name}: got another state than the one at {at}"
