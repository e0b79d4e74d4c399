"""The witness's eyes: after each write of the database they look at the rows that it may have touched.

They look through a store of their own, on the database's loop, before the next request is served. What a verb does to
rows that it has no business with, a later look finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from perdure.core.budgets import BudgetFilter
from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    BuryMessage,
    Change,
    CloseWait,
    Deliver,
    EndRun,
    IntendEffect,
    OpenWait,
    SendMessage,
)
from perdure.core.deliveries import DeliveryFilter
from perdure.core.effects import EffectFilter
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.requests import InterruptFilter, RunFilter, StartRun
from perdure.core.states import UNFINISHED
from perdure.store.protocol import Store
from perdure.testing.simulation.rules.batches import tried
from perdure.testing.simulation.rules.look import Look, Write
from perdure.testing.simulation.wire import WRITES, Request

ON_WORKERS: Final = frozenset({"register", "renew", "attend", "set_idle", "take_over", "retire"})
ON_DELIVERIES: Final = frozenset({"claim_deliveries", "settle_deliveries", "redeliver"})
ON_RUNS: Final = WRITES - {"register", "renew", "attend", "set_idle"} - ON_DELIVERIES
ON_THREADS: Final = frozenset({"start", "commit", "retry", "cancel", "fork"})
ON_QUESTIONS: Final = frozenset({"start", "commit", "cancel", "answer", "set_budget"})


@dataclass(slots=True)
class Eyes:
    """Looks at the rows."""

    store: Store
    _waits: bool = False
    """Whether anybody has ever waited for anything: before that there is nothing to be seen."""
    _effects: bool = False
    """The same of effects."""
    _deliveries: bool = False
    _budgets: bool = False

    async def look(self, request: Request, answer: Any, before: Look, now_us: int) -> Write:
        """What was asked and answered, and the rows before it and after."""
        store, verb = self.store, request.verb
        changes: tuple[Change, ...] = tuple(request.args[1]) if verb == "commit" else ()
        now = Look(
            before.runs, before.workers, before.threads, before.logs, before.tries, before.waits, before.interrupts,
            before.mail, before.dead, before.effects, before.audits, before.deliveries, before.meters, before.budgets,
        )  # fmt: skip
        touched: list[int] = []
        if verb in ON_WORKERS:
            now.workers = {worker.id: worker for worker in await store.workers(alive=False)}
        if verb in ON_THREADS:
            now.threads = {thread.id: thread for thread in await store.list_threads(limit=LIST_ROWS_MAX)}
        if verb in ON_RUNS:
            now.runs = {run.id: run for run in await store.list_runs(RunFilter(limit=LIST_ROWS_MAX))}
            differ = {id for id, run in now.runs.items() if run != before.runs.get(id)}
            touched = sorted(differ.union(change.run for change in changes if change.run in now.runs))
            await self._logs(now, touched)
            await self._look_at_waits(now, verb, changes, touched)
            await self._look_at_mail(now, request, changes)
        await self._look_at_effects(now, changes)
        await self._look_at_outbox(now, request, changes)
        await self._look_at_budgets(now, request)
        await self._blobs(now, changes)
        return Write(verb, request.args, request.kwargs, answer, before, now, tuple(touched), now_us)

    async def _logs(self, now: Look, touched: list[int]) -> None:
        """The logs and the tries of runs that may differ."""
        if touched:
            now.logs, now.tries = dict(now.logs), dict(now.tries)
        for id in touched:
            rows = await self.store.checkpoints(id, limit=LIST_ROWS_MAX)
            now.logs[id] = {(row.super_step, row.key): row for row in rows}
            now.tries[id] = {(row.super_step, row.key, row.attempt): row for row in await self.store.attempts(id)}

    async def _look_at_waits(self, now: Look, verb: str, changes: tuple[Change, ...], touched: list[int]) -> None:
        """What unfinished runs wait for, and all questions."""
        self._waits = self._waits or any(isinstance(change, OpenWait) for change in changes)
        if not self._waits:
            return
        waiting = {id for id, run in now.runs.items() if run.state in UNFINISHED and run.attempt}
        now.waits = {}
        for wait in await self.store.waits(sorted(waiting.union(touched))):
            now.waits.setdefault(wait.run, {})[wait.key] = wait
        if verb in ON_QUESTIONS:
            rows = await self.store.interrupts(InterruptFilter(state=None, limit=LIST_ROWS_MAX))
            now.interrupts = {row.id: row for row in rows}

    async def _look_at_mail(self, now: Look, request: Request, changes: tuple[Change, ...]) -> None:
        """The mailboxes that this may have touched, and the dead letters."""
        names = {message.thread_id for message in request.args[0]} if request.verb == "send" else set()
        threads: set[int] = set()
        for change in changes:
            if isinstance(change, SendMessage):
                names.add(change.message.thread_id)
            elif isinstance(change, BuryMessage) or (isinstance(change, CloseWait) and change.take is not None):
                threads.add(change.thread)
        if request.verb == "revive" or any(isinstance(change, BuryMessage) for change in changes):
            threads.update(message.thread for message in now.dead.values())
            dead = await self.store.dead_letters(limit=LIST_ROWS_MAX)
            now.dead = {message.id: message for message in dead}
        threads.update(row.id for row in now.threads.values() if row.thread_id in names)
        if threads:
            now.mail = dict(now.mail)
        for thread in sorted(threads):
            now.mail[thread] = {row.seq: row for row in await self.store.mailbox(thread, limit=LIST_ROWS_MAX)}

    async def _look_at_effects(self, now: Look, changes: tuple[Change, ...]) -> None:
        """The whole ledger: whose claim is over is seen by it, too."""
        self._effects = self._effects or any(isinstance(change, IntendEffect) for change in changes)
        if self._effects:
            rows = await self.store.effects(EffectFilter(limit=LIST_ROWS_MAX))
            known, now.effects, now.audits = now.effects, {row.id: row for row in rows}, dict(now.audits)
            for row in rows:
                if row.id not in known or known[row.id].rev != row.rev:
                    now.audits[row.id] = tuple(await self.store.effect_events(row.id))

    async def _look_at_outbox(self, now: Look, request: Request, changes: tuple[Change, ...]) -> None:
        """The whole outbox, and the meters of runs that have some by this."""
        verb = request.verb
        self._deliveries = self._deliveries or any(isinstance(change, Deliver) for change in changes)
        self._deliveries = self._deliveries or any(ask.billing is not None for ask in _asked(request))
        if self._deliveries and (verb in ON_DELIVERIES or verb in ON_THREADS or verb in ON_WORKERS):
            rows = await self.store.deliveries(DeliveryFilter(limit=LIST_ROWS_MAX))
            now.deliveries = {row.id: row for row in rows}
        said = (tried(change) for change in changes)
        if metered := {each.run for each in said if each is not None and each.meters}:
            now.meters = dict(now.meters)
            for run in sorted(metered):
                uses = await self.store.meters(run, limit=LIST_ROWS_MAX)
                now.meters[run] = {
                    (each.super_step, each.key, each.attempt, each.fence, each.number): each for each in uses
                }

    async def _look_at_budgets(self, now: Look, request: Request) -> None:
        """All of them: whose claim is over is seen by them, too."""
        asked = any(ask.budget is not None for ask in _asked(request))
        self._budgets = self._budgets or request.verb == "set_budget" or asked
        if self._budgets and request.verb in ON_RUNS:
            rows = await self.store.budgets(BudgetFilter(limit=LIST_ROWS_MAX))
            now.budgets = {row.id: row for row in rows}

    async def _blobs(self, now: Look, changes: tuple[Change, ...]) -> None:
        for change in changes:
            if isinstance(change, AppendCheckpoint | BeginSuperStep | EndRun) and change.blobs:
                digests = {blob.digest for blob in change.blobs}
                there = await self.store.blobs(change.thread, sorted(digests))
                now.absent[change.run] = now.absent.get(change.run, 0) + len(digests) - len(there)


def _asked(request: Request) -> list[StartRun]:
    """The starts that are asked for."""
    if request.verb == "fork":
        return [request.args[0].start]
    return list(request.args[0]) if request.verb == "start" else []
