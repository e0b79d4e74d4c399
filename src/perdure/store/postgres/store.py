"""The Postgres store: the database decides, in one round trip a verb.

Connections are few and each has one purpose: one for commits, one for a worker's other verbs, a small pool for
clients and one for users' transactions, one that listens for hints, one that holds the session lock by which a worker's
death shows. Each opens at its first use. `schema.py` owns the tables, `functions/` what happens in them,
`committing.py` the odd cases.

A lost connection is `StoreUnavailable` for the call it was lost in; the next call connects again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from perdure.core import limits
from perdure.core.budgets import BudgetFilter, BudgetRow, NewBudget
from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome, Place
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, Settlement
from perdure.core.effects import Effect, EffectEvent, EffectFilter, Resolution
from perdure.core.meters import MeterRow, UsageFilter, UsageRow
from perdure.core.records import (
    Attempt,
    Blob,
    Checkpoint,
    Claimed,
    Interrupt,
    Message,
    Outcome,
    Run,
    TakenOver,
    Thread,
    Wait,
    Worker,
)
from perdure.core.requests import (
    AnswerOutcome,
    ClaimRequest,
    ForkRun,
    InterruptFilter,
    NewAnswer,
    NewMessage,
    NewWorker,
    RunFilter,
    SendOutcome,
    StartOutcome,
    StartRun,
)
from perdure.errors import NotSerializable, StoreError
from perdure.store.postgres import failures, rows, schema
from perdure.store.postgres.address import parse
from perdure.store.postgres.attendance import Attendance
from perdure.store.postgres.committing import Committer
from perdure.store.postgres.handing import Handing
from perdure.store.postgres.lines import WORKER_TIMEOUT_S, WRITING, Line, Pool
from perdure.store.postgres.listener import Listener
from perdure.store.postgres.reading import Reader
from perdure.store.postgres.starting import Starter
from perdure.store.postgres.transacting import Transactor
from perdure.store.postgres.waiting import Waiting
from perdure.store.protocol import Hint, Transaction

CLIENT_CONNECTIONS_MAX: Final = 3

TRANSACTIONS_MAX: Final = 8
"""Of users', at once, in one process: each holds a connection for as long as its body runs."""

LOGS_A_READ: Final = 50
"""Logs read at a time after a claim: each read has a worker's short patience, and logs may be long."""


class PostgresStore:
    """A store in one schema of a Postgres database, 14 or later."""

    def __init__(self, url: str) -> None:
        self._given_url = url
        self._address = parse(url)
        self._statements = schema.statements(self._address.prefix)
        self._claims = Line(self._address, WRITING, timeout_s=WORKER_TIMEOUT_S)
        self._commits = Line(self._address, WRITING)
        self._clients = Pool(self._address, CLIENT_CONNECTIONS_MAX)
        self._transactions = Pool(self._address, TRANSACTIONS_MAX, plans={}, timeout_s=limits.STEP_TIMEOUT_S)
        self._attendance = Attendance(self._address, self._statements)
        self._listener = Listener(self._address)
        self._committer = Committer(self._address, self._commits)
        self._starter = Starter(self._address, self._clients)
        self._waiting = Waiting(self._address, self._claims, self._clients)
        self._handing = Handing(self._address, self._claims, self._clients)
        self._transactor = Transactor(self._address, self._transactions, self._committer)
        self._reader = Reader(self._address, self._clients)

    @property
    def url(self) -> str:
        return self._address.public

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        try:
            async with self._clients.line() as line:
                if await schema.check(line, self._address) == 0:
                    await schema.migrate(line, self._address)
                    await schema.check(line, self._address)
        except StoreError:
            await self.close()
            raise
        self._listener.resume()

    async def close(self) -> None:
        await self._listener.close()
        await self._attendance.close()
        for part in (self._claims, self._commits, self._transactions, self._clients):
            await part.close()

    def abandon(self) -> None:
        self._listener.abandon()
        self._attendance.abandon()
        for part in (self._claims, self._commits, self._transactions, self._clients):
            part.abandon()

    def clone(self) -> PostgresStore:
        return PostgresStore(self._given_url)

    async def migrate(self) -> tuple[int, int]:
        line = Line(self._address)
        try:
            return await schema.migrate(line, self._address)
        finally:
            await line.close()

    async def now_us(self) -> int:
        now_us: int = await self._clients.fetchval(self._statements["now_us"].text)
        return now_us

    async def reserve_ids(self, count: int) -> int:
        assert count > 0
        first: int = await self._clients.fetchval(self._statements["reserve_ids"].text, count)
        return first

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        return self._listener.add(on_hint)

    # -- workers ---------------------------------------------------------------------------------------------

    async def register(self, worker: NewWorker) -> None:
        fields = {name: getattr(worker, name) for name in worker.__struct_fields__}
        await self._claim_line("register", **fields)

    async def renew(self, worker: int, lease_us: int) -> bool:
        renewed = await self._claim_line("renew", id=worker, lease_us=lease_us)
        if renewed:
            with contextlib.suppress(StoreError):  # the lease is renewed all the same
                await self._attendance.resume(worker)
        return bool(renewed)

    async def attend(self, worker: int) -> bool:
        return await self._attendance.attend(worker)

    async def silent_workers(self) -> list[int]:
        return await self._attendance.silent_workers(self._clients)

    async def set_idle(self, worker: int, idle: bool) -> None:
        await self._claim_line("set_idle", id=worker, idle=idle)

    async def take_over(self, suspects: Iterable[int], *, recoveries_max: int) -> list[TakenOver]:
        taken = []
        for suspect in await self._claim_line("suspects", known=list(suspects)):
            (row,) = await self._claim_line(
                "take_over", worker=suspect["id"], known=suspect["known"], recoveries_max=recoveries_max
            )
            if row["requeued"] is not None:
                taken.append(TakenOver(suspect["id"], tuple(row["requeued"]), tuple(row["held"])))
        return taken

    async def retire(self, worker: int) -> int:
        (row,) = await self._claim_line("retire", worker=worker)
        count: int = row[0]
        return count

    async def give_back(self, worker: int, *, keep: Sequence[int], ticket: int = 0) -> int:
        (row,) = await self._claim_line("give_back", worker=worker, keep=list(keep), ticket=ticket)
        count: int = row[0]
        return count

    async def workers(self, *, alive: bool = True) -> list[Worker]:
        return await self._reader.workers(alive=alive)

    # -- starting and executing ------------------------------------------------------------------------------

    async def start(self, starts: Sequence[StartRun]) -> list[StartOutcome]:
        return await self._starter.start(starts)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        found = await self._claim_line(
            "claim",
            worker=request.worker,
            agents=list(dict.fromkeys(request.agents)),
            queues=list(dict.fromkeys(request.queues)),
            deployment=request.deployment,
            limit=max(0, min(request.limit, limits.CLAIM_ROWS_MAX)),
            suspects=request.suspects,
            ticket=request.ticket,
        )
        records = await self._of_claimed("claimed_records", [row for row in found if row["recorded"]])
        attempts = await self._of_claimed("claimed_attempts", [row for row in found if row["tried"]])
        waits = await self._of_claimed(
            "claimed_waits", [row for row in found if row["waits"]], mailbox_max=limits.MAILBOX_MAX
        )
        effects = await self._of_claimed("claimed_effects", [row for row in found if row["effects"]])
        logs = [_by_run(each) for each in (records, attempts, waits, effects)]
        return [rows.to_claimed(row, *(log.get(row["run"], ()) for log in logs)) for row in found]

    async def _of_claimed(self, name: str, claimed: list[Any], **values: Any) -> list[Any]:
        """What there is of these runs in their super-steps, a limited number of runs at a time."""
        found: list[Any] = []
        for at in range(0, len(claimed), LOGS_A_READ):
            some = claimed[at : at + LOGS_A_READ]
            where = {"runs": [row["run"] for row in some], "super_steps": [row["super_step"] for row in some]}
            found += await self._claim_line(name, **where, **values)
        return found

    async def commit(self, worker: int, changes: Sequence[Change]) -> CommitOutcome:
        return await self._committer.commit(worker, changes)

    async def waits(self, runs: Sequence[int], *, only_ready: bool = False) -> list[Wait]:
        return await self._waiting.waits(runs, only_ready=only_ready)

    async def cancellations(self, worker: int) -> dict[int, str]:
        return await self._waiting.cancellations(worker)

    async def next_due(self) -> int | None:
        return await self._waiting.next_due()

    # -- between runs ----------------------------------------------------------------------------------------

    async def cancel(self, run: int, reason: str, payload: bytes) -> Run | None:
        return await self._sent_on("cancel", run, reason=reason, payload=payload)

    async def answer(self, answer: NewAnswer) -> AnswerOutcome | None:
        return await self._waiting.answer(answer)

    async def interrupts(self, where: InterruptFilter) -> list[Interrupt]:
        return await self._waiting.interrupts(where)

    async def get_interrupts(self, interrupts: Sequence[int]) -> list[Interrupt]:
        return await self._waiting.get_interrupts(interrupts)

    async def send(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        return await self._waiting.send(messages)

    async def mailbox(self, thread: int, *, limit: int = 100, after: int = 0) -> list[Message]:
        return await self._waiting.mailbox(thread, limit=limit, after=after)

    async def dead_letters(self, thread: int | None = None, *, limit: int = 100, after: int = 0) -> list[Message]:
        return await self._waiting.dead_letters(thread, limit=limit, after=after)

    async def revive(self, message: int) -> Message | None:
        return await self._waiting.revive(message)

    async def fork(self, fork: ForkRun) -> StartOutcome:
        return await self._starter.fork(fork)

    # -- effects ---------------------------------------------------------------------------------------------

    async def effects(self, where: EffectFilter) -> list[Effect]:
        return await self._reader.effects(where)

    async def get_effects(self, effects: Sequence[int]) -> list[Effect]:
        return await self._reader.get_effects(effects)

    async def effect_events(self, effect: int) -> list[EffectEvent]:
        return await self._reader.effect_events(effect)

    async def resolve(self, resolution: Resolution, blobs: Sequence[Blob] = ()) -> Effect | None:
        values: dict[str, Any] = {name: getattr(resolution, name) for name in ("effect", "outcome", "by", "note")}
        by_digest = {blob.digest: blob.data for blob in blobs}
        values |= {"state": resolution.state.value, "b_digest": list(by_digest), "b_data": list(by_digest.values())}
        try:
            found = await self._act_and_get("resolve", values, "get_effects", {"effects": [resolution.effect]})
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the resolution cannot be stored: {error}") from error
        return rows.to_effect(found[0]) if found else None

    # -- the outbox, meters and budgets ----------------------------------------------------------------------

    async def claim_deliveries(self, request: ClaimDeliveries) -> list[Delivery]:
        return await self._handing.claim_deliveries(request)

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        await self._handing.settle_deliveries(worker, settlements)

    async def next_delivery(self, sinks: Sequence[str], *, suspects: bool = True) -> int | None:
        return await self._handing.next_delivery(sinks, suspects=suspects)

    async def overdue_deliveries(self, before: int, *, limit: int = 100) -> list[Delivery]:
        return await self._handing.overdue_deliveries(before, limit=limit)

    async def deliveries(self, where: DeliveryFilter) -> list[Delivery]:
        return await self._handing.deliveries(where)

    async def get_deliveries(self, deliveries: Sequence[int]) -> list[Delivery]:
        return await self._handing.get_deliveries(deliveries)

    async def redeliver(self, deliveries: Sequence[int]) -> list[Delivery]:
        return await self._handing.redeliver(deliveries)

    async def meters(self, run: int, *, limit: int = 1000, offset: int = 0) -> list[MeterRow]:
        return await self._handing.meters(run, limit=limit, offset=offset)

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        return await self._handing.usage(where)

    async def set_budget(self, budget: NewBudget, by: str | None, *, if_rev: int | None = None) -> BudgetRow:
        return await self._handing.set_budget(budget, by, if_rev=if_rev)

    async def budgets(self, where: BudgetFilter) -> list[BudgetRow]:
        return await self._handing.budgets(where)

    async def get_budgets(self, budgets: Sequence[int]) -> list[BudgetRow]:
        return await self._handing.get_budgets(budgets)

    async def transact(
        self, worker: int, place: Place, work: Callable[[Transaction], Awaitable[AppendCheckpoint]]
    ) -> CommitOutcome:  # fmt: skip
        return await self._transactor.transact(worker, place, work)

    # -- operators -------------------------------------------------------------------------------------------

    async def retry(self, run: int, drop_keys: Sequence[str], *, undo: bool = False) -> Run | None:
        return await self._sent_on("retry", run, drop_keys=list(drop_keys), undo=undo)

    async def release(self, run: int) -> Run | None:
        return await self._sent_on("release", run)

    async def watch(self, runs: Sequence[int]) -> None:
        await self._client_line("watch", runs=list(runs))

    # -- reading ---------------------------------------------------------------------------------------------

    async def get_runs(self, runs: Sequence[int]) -> list[Run]:
        return await self._reader.get_runs(runs)

    async def list_runs(self, where: RunFilter) -> list[Run]:
        return await self._reader.list_runs(where)

    async def outcomes(self, runs: Sequence[int]) -> list[Outcome]:
        return await self._reader.outcomes(runs)

    async def get_thread(self, thread_id: str) -> Thread | None:
        return await self._reader.get_thread(thread_id)

    async def list_threads(
        self, *, agent: str | None = None, limit: int = 100, after: int | None = None
    ) -> list[Thread]:
        return await self._reader.list_threads(agent=agent, limit=limit, after=after)

    async def checkpoints(
        self,
        run: int,
        *,
        super_step: int | None = None,
        boundaries: bool = False,
        limit: int = 1000,
        after: tuple[int, int] | None = None,
    ) -> list[Checkpoint]:
        return await self._reader.checkpoints(
            run, super_step=super_step, boundaries=boundaries, limit=limit, after=after
        )

    async def thread_checkpoints(
        self, thread: int, *, limit: int = 100, after: tuple[int, int] | None = None
    ) -> list[Checkpoint]:
        return await self._reader.thread_checkpoints(thread, limit=limit, after=after)

    async def attempts(self, run: int) -> list[Attempt]:
        return await self._reader.attempts(run)

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        return await self._reader.blobs(thread, digests)

    async def diagnose(self) -> list[tuple[str, bool, str]]:
        return await self._reader.diagnose()

    # -- connections -----------------------------------------------------------------------------------------

    async def _claim_line(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._claims.fetch(statement.text, *statement.arguments(values))

    async def _client_line(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._clients.fetch(statement.text, *statement.arguments(values))

    async def _sent_on(self, name: str, run: int, /, **values: Any) -> Run | None:
        """What an operator does, and the run as that leaves it: one transaction, for a moment later a worker may have
        claimed it, and the operator would be told that it was not his to send on."""
        found = await self._act_and_get(name, {"run": run, **values}, "get_runs", {"runs": [run]})
        return rows.to_run(found[0]) if found else None

    async def _act_and_get(self, act: str, values: dict[str, Any], get: str, where: dict[str, Any]) -> list[Any]:
        """Write, and read in the same transaction."""
        writing, reading = self._statements[act], self._statements[get]

        async def work(connection: Any) -> list[Any]:
            async with connection.transaction():
                await connection.fetch(writing.text, *writing.arguments(values))
                found: list[Any] = await connection.fetch(reading.text, *reading.arguments(where))
                return found

        async with self._clients.line() as line:
            return await line.use(work)


def _by_run(found: Iterable[Any]) -> dict[int, list[Any]]:
    by_run: dict[int, list[Any]] = {}
    for row in found:
        by_run.setdefault(row["run"], []).append(row)
    return by_run
