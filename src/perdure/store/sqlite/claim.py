"""Taking runs, and bringing along all that their execution needs.

A claim walks the waiting runs one priority after another, so that runs which wait for a later time at one priority
are never stepped over to reach the next. Suspects past their number are passed over, not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from perdure.core.effects import Effect, Undoing
from perdure.core.limits import CLAIM_ROWS_MAX, INLINE_BYTES_MAX, MIB, PRIORITY_MAX, SUSPECT_STRIKES
from perdure.core.records import Attempt, Checkpoint, Claimed, RunState, Wait
from perdure.core.requests import ClaimRequest
from perdure.store.sqlite import rows
from perdure.store.sqlite.budgets import named
from perdure.store.sqlite.ledger import claimed_effects
from perdure.store.sqlite.transaction import Transaction, encode
from perdure.store.sqlite.waits import read_waits

RUNS_A_PAGE_MIN: Final = 16
"""A page is at least this long, so that a claim of one run behind a few suspects takes one look."""

RECORD_BYTES_A_READ: Final = 64 * MIB
"""Payloads in one answer. They travel as hex, and SQLite makes no text of more than a billion bytes: read at once, the
logs of 500 runs with 1 MB each would be one too long, and nobody could claim them."""

RECORDS_A_READ: Final = RECORD_BYTES_A_READ // INLINE_BYTES_MAX
"""The same in records, for a run whose log is longer than that by itself."""


class Candidate(msgspec.Struct, array_like=True):
    """A claimable run, as the page statement answers."""

    run: int
    thread: int
    thread_id: str
    agent: str
    fence: int
    super_step: int
    attempt: int
    recoveries: int
    strikes: int
    created_at: int
    ready_at: int
    tenant: str | None
    priority: int
    deadline_at: int | None
    cancel: str | None
    logged: int
    """Whether there may be more of its super-step than the boundary."""
    undoing: int
    """Whether its effects are being undone."""
    budgets: tuple[int, ...] | None
    """Those that it was given."""


_candidates: Final = msgspec.json.Decoder(list[Candidate]).decode


def claim(tx: Transaction, request: ClaimRequest) -> list[Claimed]:
    """Put up to `limit` runs into the worker's hands."""
    may_claim, has_budgets = tx.row("may_claim", worker=request.worker, ticket=request.ticket)
    if not may_claim:
        return []
    chosen = _choose(tx, request)
    if not chosen:
        return []
    runs = encode([each.run for each in chosen])
    tx.run("claim_runs", runs=runs, worker=request.worker, deployment=request.deployment, now=tx.now)
    boundaries = {run: (arguments, state) for run, arguments, state in tx.array("claimed_boundaries", runs=runs)}
    log = _log(tx, [each.run for each in chosen if each.logged])
    if undoing := [each.run for each in chosen if each.undoing]:
        for run, outcome, payload in tx.array("claimed_undoings", runs=encode(undoing)):
            log.undoing[run] = Undoing(RunState(outcome), bytes.fromhex(payload))
    if has_budgets:
        log.named = named(tx, {name for each in chosen for name in _names(each)})
    return [_claimed(each, boundaries[each.run], log, tx.now) for each in chosen]


def _choose(tx: Transaction, request: ClaimRequest) -> list[Candidate]:
    chosen: list[Candidate] = []
    suspects = 0
    limit = min(request.limit, CLAIM_ROWS_MAX)
    if limit <= 0:
        return chosen
    for each in _claimable(tx, request):
        if each.strikes >= SUSPECT_STRIKES:
            if suspects >= request.suspects:
                continue
            suspects += 1
        chosen.append(each)
        if len(chosen) >= limit:
            break
    return chosen


def _claimable(tx: Transaction, request: ClaimRequest) -> Iterator[Candidate]:
    """Every run that this worker may claim, in order."""
    size = min(max(request.limit, RUNS_A_PAGE_MIN), CLAIM_ROWS_MAX)
    filters: dict[str, Any] = {
        "agents": encode(request.agents),
        "queues": encode(request.queues),
        "deployment": request.deployment,
        "now": tx.now,
        "limit": size,
    }
    priority: int | None = PRIORITY_MAX + 1
    while (priority := tx.value("next_priority", below=priority)) is not None:
        after_ready_at, after_id = -1, -1
        while True:
            values = filters | {"priority": priority, "after_ready_at": after_ready_at, "after_id": after_id}
            page = _candidates(tx.value("claimable", **values))
            yield from page
            if len(page) < size:
                break
            after_ready_at, after_id = page[-1].ready_at, page[-1].run


class Log:
    """What there is of runs' super-steps beyond the boundaries, by run; a new run has nothing."""

    def __init__(self) -> None:
        self.records: dict[int, list[Checkpoint]] = defaultdict(list)
        self.attempts: dict[int, list[Attempt]] = defaultdict(list)
        self.waits: dict[int, list[Wait]] = defaultdict(list)
        self.effects: dict[int, list[Effect]] = defaultdict(list)
        self.undoing: dict[int, Undoing] = {}
        self.named: dict[str, int] = {}
        """The budgets of their agents and tenants."""


def _log(tx: Transaction, runs: list[int]) -> Log:
    log = Log()
    if runs:
        for record in _records(tx, runs):
            log.records[record.run].append(record)
        for attempt in tx.records("claimed_attempts", rows.ATTEMPT, runs=encode(runs)):
            log.attempts[attempt.run].append(attempt)
        for wait in read_waits(tx, runs, now=tx.now):
            log.waits[wait.run].append(wait)
        for effect in claimed_effects(tx, runs):
            log.effects[effect.run].append(effect)
    return log


def _records(tx: Transaction, runs: list[int]) -> Iterator[Checkpoint]:
    """The records of these runs, in reads of a bounded size."""
    share: list[int] = []
    share_bytes = 0
    for run, size in tx.array("claimed_sizes", runs=encode(runs)):
        if size > RECORD_BYTES_A_READ:
            yield from _long_log(tx, run)
            continue
        if share_bytes + size > RECORD_BYTES_A_READ:
            yield from tx.records("claimed_records", rows.CHECKPOINT, runs=encode(share))
            share, share_bytes = [], 0
        share.append(run)
        share_bytes += size
    if share:
        yield from tx.records("claimed_records", rows.CHECKPOINT, runs=encode(share))


def _long_log(tx: Transaction, run: int) -> Iterator[Checkpoint]:
    after = ""
    while True:
        page = tx.records("claimed_page", rows.CHECKPOINT, run=run, after=after, limit=RECORDS_A_READ)
        yield from page
        if len(page) < RECORDS_A_READ:
            return
        after = page[-1].key


def _claimed(candidate: Candidate, boundary: tuple[str, str | None], log: Log, now: int) -> Claimed:
    arguments, state = boundary
    run, super_step = candidate.run, candidate.super_step
    return Claimed(
        run=run,
        thread=candidate.thread,
        thread_id=candidate.thread_id,
        agent=candidate.agent,
        fence=candidate.fence + 1,
        super_step=super_step,
        attempt=candidate.attempt + 1,
        recoveries=candidate.recoveries,
        strikes=candidate.strikes,
        created_at=candidate.created_at,
        arguments=bytes.fromhex(arguments),
        state=rows.blob(state),
        records=tuple(sorted(log.records[run], key=lambda record: record.seq)),
        attempts=tuple(log.attempts[run]),
        now=now,
        waits=tuple(wait for wait in log.waits[run] if wait.super_step == super_step),
        tenant=candidate.tenant,
        priority=candidate.priority,
        deadline_at=candidate.deadline_at,
        cancel=candidate.cancel,
        effects=tuple(log.effects[run]),
        undoing=log.undoing.get(run),
        budgets=_budgets(candidate, log.named),
    )


def _names(candidate: Candidate) -> list[str]:
    """The names of the budgets that it counts against besides those that it was given, where there are such."""
    tenant = [] if candidate.tenant is None else [f"tenant:{candidate.tenant}"]
    return [f"agent:{candidate.agent}", *tenant]


def _budgets(candidate: Candidate, named: dict[str, int]) -> tuple[int, ...]:
    given = candidate.budgets or ()
    if not named:
        return given
    return tuple(sorted({*given, *(named[name] for name in _names(candidate) if name in named)}))
