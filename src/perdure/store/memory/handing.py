"""The verbs of the store in memory that have to do with the outbox, with meters and with budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from perdure.core.budgets import BudgetFilter, BudgetRow, NewBudget
from perdure.core.changes import AppendCheckpoint, CommitOutcome, Place
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, Settlement
from perdure.core.meters import MeterRow, UsageFilter, UsageRow
from perdure.errors import UsageError
from perdure.store.memory import budgets, meters
from perdure.store.memory.tables import Tables
from perdure.store.protocol import Transaction


class HandingVerbs(ABC):
    """A part of the store in memory; `store.py` has the rest."""

    @abstractmethod
    async def _tables(self) -> Tables:
        """The tables of an open store."""

    # -- the outbox ------------------------------------------------------------------------------------------

    async def claim_deliveries(self, request: ClaimDeliveries) -> list[Delivery]:
        tables = await self._tables()
        with tables.writing() as now:
            return tables.outbox.claim(request, now=now) if tables.is_alive(request.worker) else []

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        tables = await self._tables()
        with tables.writing() as now:
            for settlement in settlements:
                tables.outbox.settle(worker, settlement, now=now)

    async def next_delivery(self, sinks: Sequence[str], *, suspects: bool = True) -> int | None:
        tables = await self._tables()
        with tables.lock:
            return tables.outbox.next_due(sinks, suspects=suspects, now=tables.now_us())

    async def overdue_deliveries(self, before: int, *, limit: int = 100) -> list[Delivery]:
        tables = await self._tables()
        with tables.lock:
            return tables.outbox.overdue(before, limit=limit)

    async def deliveries(self, where: DeliveryFilter) -> list[Delivery]:
        tables = await self._tables()
        with tables.lock:
            return tables.outbox.page(where)

    async def get_deliveries(self, deliveries: Sequence[int]) -> list[Delivery]:
        tables = await self._tables()
        with tables.lock:
            return tables.outbox.get(deliveries)

    async def redeliver(self, deliveries: Sequence[int]) -> list[Delivery]:
        tables = await self._tables()
        with tables.writing() as now:
            for delivery in deliveries:
                tables.outbox.redeliver(delivery, now=now)
            return tables.outbox.get(deliveries)

    # -- meters and budgets ----------------------------------------------------------------------------------

    async def meters(self, run: int, *, limit: int = 1000, offset: int = 0) -> list[MeterRow]:
        tables = await self._tables()
        with tables.lock:
            return meters.page(tables, run, limit=limit, offset=offset)

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        tables = await self._tables()
        with tables.lock:
            return meters.usage(tables, where)

    async def set_budget(self, budget: NewBudget, by: str | None, *, if_rev: int | None = None) -> BudgetRow:
        tables = await self._tables()
        with tables.writing() as now:
            return budgets.set_limits(tables, budget, by, if_rev=if_rev, now=now)

    async def budgets(self, where: BudgetFilter) -> list[BudgetRow]:
        tables = await self._tables()
        with tables.lock:
            return budgets.page(tables, where)

    async def get_budgets(self, asked: Sequence[int]) -> list[BudgetRow]:
        tables = await self._tables()
        with tables.lock:
            return budgets.get(tables, asked)

    # -- transactions ----------------------------------------------------------------------------------------

    async def transact(
        self, worker: int, place: Place, work: Callable[[Transaction], Awaitable[AppendCheckpoint]]
    ) -> CommitOutcome:  # fmt: skip
        await self._tables()
        raise UsageError("memory:// keeps no SQL, so a transaction of your own cannot be part of it; use sqlite:///...")
