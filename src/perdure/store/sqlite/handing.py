"""The verbs of the SQLite store that have to do with the outbox, with meters and with budgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from perdure.core.budgets import BudgetFilter, BudgetRow, NewBudget
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, Settlement
from perdure.core.meters import MeterRow, UsageFilter, UsageRow
from perdure.store.sqlite import budgets, meters, outbox
from perdure.store.sqlite.connection import Database
from perdure.store.sqlite.transaction import Reader, Transaction

T = TypeVar("T")


class HandingVerbs(ABC):
    """A part of the SQLite store; `store.py` has the rest."""

    _database: Database

    @abstractmethod
    async def _write(self, operation: Callable[[Transaction], T]) -> T:
        """Do this on the writer's thread."""

    @abstractmethod
    async def _read(self, operation: Callable[[Reader], T]) -> T:
        """Do this on the reader's."""

    # -- the outbox ------------------------------------------------------------------------------------------

    async def claim_deliveries(self, request: ClaimDeliveries) -> list[Delivery]:
        return await self._write(partial(outbox.claim_deliveries, request=request))

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        if settlements:
            await self._write(partial(outbox.settle_deliveries, worker=worker, settlements=settlements))

    async def next_delivery(self, sinks: Sequence[str], *, suspects: bool = True) -> int | None:
        look = partial(outbox.next_delivery, sinks=sinks, suspects=suspects, clock=self._database.clock)
        return await self._read(look)

    async def overdue_deliveries(self, before: int, *, limit: int = 100) -> list[Delivery]:
        return await self._read(partial(outbox.overdue_deliveries, before=before, limit=limit))

    async def deliveries(self, where: DeliveryFilter) -> list[Delivery]:
        return await self._read(partial(outbox.deliveries, where=where))

    async def get_deliveries(self, deliveries: Sequence[int]) -> list[Delivery]:
        return await self._read(partial(outbox.get_deliveries, deliveries=deliveries))

    async def redeliver(self, deliveries: Sequence[int]) -> list[Delivery]:
        return await self._write(partial(outbox.redeliver, deliveries=deliveries))

    # -- meters and budgets ----------------------------------------------------------------------------------

    async def meters(self, run: int, *, limit: int = 1000, offset: int = 0) -> list[MeterRow]:
        return await self._read(partial(meters.meters, run=run, limit=limit, offset=offset))

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        return await self._read(partial(meters.usage, where=where))

    async def set_budget(self, budget: NewBudget, by: str | None, *, if_rev: int | None = None) -> BudgetRow:
        return await self._write(partial(budgets.set_budget, budget=budget, by=by, if_rev=if_rev))

    async def budgets(self, where: BudgetFilter) -> list[BudgetRow]:
        return await self._read(partial(budgets.budgets, where=where))

    async def get_budgets(self, asked: Sequence[int]) -> list[BudgetRow]:
        return await self._read(partial(budgets.get_budgets, budgets=asked))
