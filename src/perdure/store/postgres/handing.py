"""The verbs of the store on Postgres that have to do with the outbox, with meters and with budgets.

What a worker's relay asks goes over the line of the worker's other verbs; all else over the clients'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.budgets import UNITS, BudgetFilter, BudgetRow, NewBudget
from perdure.core.deliveries import ClaimDeliveries, Delivery, DeliveryFilter, Settlement
from perdure.core.meters import MeterRow, UsageBy, UsageFilter, UsageRow
from perdure.errors import NotSerializable
from perdure.store.pages import page_size
from perdure.store.postgres import failures, rows, schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Line, Pool

BY_NAME: Final = frozenset({UsageBy.TENANT, UsageBy.AGENT})
"""What is grouped by a name; the others are by a number."""


class Handing:
    """Deliveries, and what was used."""

    def __init__(self, address: Address, line: Line, pool: Pool) -> None:
        self._line = line
        self._pool = pool
        self._statements = schema.statements(address.prefix)

    # -- a relay's -------------------------------------------------------------------------------------------

    async def claim_deliveries(self, request: ClaimDeliveries) -> list[Delivery]:
        sinks = [(sink, most) for sink, most in request.sinks if most > 0]
        found = await self._line_fetch(
            "claim_deliveries",
            worker=request.worker,
            sinks=[sink for sink, _ in sinks],
            limits=[most for _, most in sinks],
            keep=list(request.keep),
            suspects=max(0, request.suspects),
        )
        return [rows.to_delivery(row) for row in found]

    async def settle_deliveries(self, worker: int, settlements: Sequence[Settlement]) -> None:
        """Of two about one try the first counts."""
        first: dict[tuple[int, int], Settlement] = {}
        for settlement in settlements:
            first.setdefault((settlement.delivery, settlement.attempt), settlement)
        said = list(first.values())
        names = ("delivery", "attempt", "delay_us", "error")
        values: dict[str, Any] = {name: [getattr(each, name) for each in said] for name in names}
        await self._line_fetch("settle_deliveries", worker=worker, state=[each.state.value for each in said], **values)

    async def next_delivery(self, sinks: Sequence[str], *, suspects: bool = True) -> int | None:
        left_us: int | None = await self._line.fetchval(self._statements["next_delivery"].text, list(sinks), suspects)
        return left_us

    # -- the outbox ------------------------------------------------------------------------------------------

    async def overdue_deliveries(self, before: int, *, limit: int) -> list[Delivery]:
        found = await self._fetch("overdue_deliveries", before=before, limit=page_size(limit))
        return [rows.to_delivery(row) for row in found]

    async def deliveries(self, where: DeliveryFilter) -> list[Delivery]:
        values: dict[str, Any] = {
            "after": -1 if where.after is None else where.after,
            "before": where.before,
            "state": where.state and where.state.value,
            "sink": where.sink,
            "partition": where.partition,
            "tenant": where.tenant,
            "bill": where.bill,
            "limit": page_size(where.limit),
        }
        mine = {"run": where.run, "thread_id": where.thread_id, "key": where.key}
        if any(each is not None for each in mine.values()):
            found = await self._fetch("deliveries_of", **mine, **values)
        else:
            found = await self._fetch("deliveries", **values)
        return [rows.to_delivery(row) for row in found]

    async def get_deliveries(self, deliveries: Sequence[int]) -> list[Delivery]:
        return [rows.to_delivery(row) for row in await self._fetch("get_deliveries", deliveries=list(deliveries))]

    async def redeliver(self, deliveries: Sequence[int]) -> list[Delivery]:
        return [rows.to_delivery(row) for row in await self._fetch("redeliver", deliveries=list(deliveries))]

    # -- meters and budgets ----------------------------------------------------------------------------------

    async def meters(self, run: int, *, limit: int, offset: int) -> list[MeterRow]:
        found = await self._fetch("meters", run=run, limit=page_size(limit), offset=max(0, offset))
        return [rows.to_meter(row) for row in found]

    async def usage(self, where: UsageFilter) -> list[UsageRow]:
        names = ("name", "tenant", "agent", "run", "since", "until", "after_fence", "fence")
        values: dict[str, Any] = {name: getattr(where, name) for name in names}
        values["after_group"], values["after_name"] = where.after or (None, None)
        statement = "usage_by_name" if where.by in BY_NAME else "usage_by_number"
        found = await self._fetch(statement, by=where.by.value, limit=page_size(where.limit), **values)
        return [rows.to_usage(row) for row in found]

    async def set_budget(self, budget: NewBudget, by: str | None, *, if_rev: int | None) -> BudgetRow:
        act, get = self._statements["set_budget"], self._statements["get_budgets"]
        limits = [getattr(budget.limits, unit) for unit in UNITS]

        async def work(connection: Any) -> BudgetRow:
            async with connection.transaction():
                id = await connection.fetchval(act.text, budget.id, budget.name, limits, by, if_rev)
                return rows.to_budget(await connection.fetchrow(get.text, [id]))

        try:
            async with self._pool.line() as line:
                return await line.use(work)
        except failures.REFUSED as error:
            raise NotSerializable(f"a value of the budget cannot be stored: {error}") from error

    async def budgets(self, where: BudgetFilter) -> list[BudgetRow]:
        after = "" if where.after is None else where.after
        found = await self._fetch("budgets", prefix=where.prefix, after=after, limit=page_size(where.limit))
        return [rows.to_budget(row) for row in found]

    async def get_budgets(self, budgets: Sequence[int]) -> list[BudgetRow]:
        return [rows.to_budget(row) for row in await self._fetch("get_budgets", budgets=list(budgets))]

    # -- connections -----------------------------------------------------------------------------------------

    async def _line_fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._line.fetch(statement.text, *statement.arguments(values))

    async def _fetch(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await self._pool.fetch(statement.text, *statement.arguments(values))
