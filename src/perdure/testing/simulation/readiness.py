"""Readiness: in calm weather nothing lies there that somebody could go on with.

A worker whose row says that it is idle has free slots and has found nothing. It looks at the queue at the latest after
`poll_s`, spread by a fifth, hint or no hint. So within that and a second no run may be due, fit it and still be queued
or parked. A worker looks as often at what the runs in its hands wait for: what has come is on record soon after. And a
run that only waits is soon parked: it is in nobody's hands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from perdure.core.deliveries import DeliveryState
from perdure.core.limits import SUSPECT_STRIKES
from perdure.core.records import Run, RunState, Worker, WorkerState
from perdure.runtime.tenure import Tenure
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.budgets import Books
from perdure.testing.simulation.rules.look import Look
from perdure.testing.simulation.world import Process

POLL_S: Final = 1.0
WITHIN_S: Final = POLL_S * 1.2 + 1.0
DONE_WITHIN_S: Final = 6.0
"""Some looks, and what a run in hand may do meanwhile: a try and the pause after it."""
SETTLED_S: Final = 12.0
"""After how long in calm weather the requests of the storm have been answered and the backoffs are over."""


@dataclass(slots=True)
class Readiness:
    """Since when runs lie there and workers are idle."""

    calm_since: float | None = None
    homes: dict[int, Process] = field(default_factory=dict)
    """By worker: its process."""
    raw: frozenset[str] = frozenset()
    """Agents that are not parked for a long while."""
    _idle: dict[int, float] = field(default_factory=dict)
    _due: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By run: its fence, and since when it may be claimed under it."""
    _since: dict[object, float] = field(default_factory=dict)
    """Since when something is so that may be so only for a while."""
    busy_at: dict[int, float] = field(default_factory=dict)
    """When a body of a run has begun last."""

    def overdue(self, look: Look, now: float, now_us: int) -> Iterator[str]:
        """Look again, and say which runs have been there for too long."""
        if self.calm_since is None:
            return
        self._idle = {
            worker.id: self._idle.get(worker.id, now) for worker in look.workers.values() if self._is_idle(worker)
        }
        due = {run.id: run for run in look.runs.values() if _may_be_claimed(run, now_us)}
        known = self._due
        self._due = {
            id: known[id] if id in known and known[id][0] == run.fence else (run.fence, now) for id, run in due.items()
        }
        for id, run in due.items():
            for worker, idle_since in self._idle.items():
                since = max(idle_since, self._due[id][1], self.calm_since + SETTLED_S)
                if now - since > WITHIN_S and self._fits(worker, run):
                    yield f"run r{id} has been due for {now - since:.1f} s, and w{worker} is idle and fits it"
                    return

    def undone(self, look: Look, annals: Annals, books: Books, now: float, now_us: int) -> Iterator[str]:
        """Look at what is in workers' hands, and say what ought not to be there any more."""
        if self.calm_since is None or now < self.calm_since + SETTLED_S:
            return
        found = dict(self._undone(look, now, now_us))
        found |= dict(self._unused(look, annals, books))
        found |= dict(self._undelivered(look, now_us))
        self._since = {what: self._since.get(what, now) for what in found}
        for what, words in found.items():
            if now - self._since[what] > DONE_WITHIN_S:
                yield f"{words}, for {now - self._since[what]:.1f} s"
                return

    def _undone(self, look: Look, now: float, now_us: int) -> Iterator[tuple[object, str]]:
        for id, waits in look.waits.items():
            run = look.runs[id]
            if run.state is not RunState.RUNNING:
                continue
            for wait in waits.values():
                if look.has_come(wait) or (wait.due_at is not None and wait.due_at <= now_us):
                    yield (id, run.fence, wait.key), f"run r{id} is running, and nobody sees that {wait.key!r} has come"
            if now - self.busy_at.get(id, 0.0) > DONE_WITHIN_S and run.agent not in self.raw:
                yield (id, run.fence), f"run r{id} only waits, and is not parked"
        for id in self.homes:
            tenure = self._tenure(id)
            for run_id in () if tenure is None else tenure.executions:
                if look.runs[run_id].worker != id:
                    yield (id, run_id), f"w{id} executes run r{run_id}, which is {look.runs[run_id].state}"

    def _unused(self, look: Look, annals: Annals, books: Books) -> Iterator[tuple[object, str]]:
        """What is reserved, and nobody tries."""
        for run, super_step, key in books.reserved:
            fence = max(fence for fence, _ in books.reserved[run, super_step, key].values())
            row = look.runs[run]
            tried = annals.in_flight.get((run, fence), Counter())[key]
            if row.state is RunState.RUNNING and row.fence == fence and not tried:
                yield (run, fence, key, "reserved"), f"run r{run} has reserved for {key!r}, and does not try it"

    def _undelivered(self, look: Look, now_us: int) -> Iterator[tuple[object, str]]:
        """Deliveries that are due while some relay could take them."""
        for row in look.deliveries.values():
            tenure = self._tenure(row.worker or 0)
            if tenure is not None and tenure.relay is not None and row.id not in tenure.relay._in_hand:
                yield (row.id, row.attempts, "lost"), f"delivery d{row.id} is w{row.worker}'s, and it does not know"
            if row.state is not DeliveryState.QUEUED or not row.ready or row.due_at > now_us:
                continue
            free = [id for id in self.homes if self._has_room(look, id, row.sink)]
            if free:
                yield (row.id, row.attempts, "due"), f"delivery d{row.id} to {row.sink} is due, and w{free[0]} has room"

    def _has_room(self, look: Look, worker: int, sink: str) -> bool:
        tenure = self._tenure(worker)
        if tenure is None or tenure.draining or sink not in tenure.sinks:
            return False
        in_hand = sum((row.worker, row.sink) == (worker, sink) for row in look.deliveries.values())
        return in_hand < tenure.sinks[sink].concurrency

    def _tenure(self, worker: int) -> Tenure | None:
        """What a worker's process has of it, while it lives."""
        home = self.homes.get(worker)
        tenure = None if home is None or home.worker is None or not home.alive else home.worker._tenure
        return tenure if tenure is not None and tenure.worker == worker else None

    def _is_idle(self, worker: Worker) -> bool:
        return (
            worker.idle
            and worker.state is WorkerState.ALIVE
            and worker.id in self.homes
            and self.homes[worker.id].alive
        )

    def _fits(self, worker: int, run: Run) -> bool:
        home = self.homes[worker]
        return run.deployment in (None, home.deployment) and run.queue in home.queues


def _may_be_claimed(run: Run, now_us: int) -> bool:
    queued = run.state in (RunState.QUEUED, RunState.WAITING) and run.ready and run.ready_at <= now_us
    return queued and run.strikes < SUSPECT_STRIKES
