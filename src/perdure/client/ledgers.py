"""The verbs of an app about its ledgers: what agents have done, handed over and used, and what they may use."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from perdure.client import budgets, deliveries, effects, usage
from perdure.client.budgets import BudgetInfo
from perdure.client.connection import Connected
from perdure.client.deliveries import DeliveryInfo
from perdure.client.effects import EffectInfo
from perdure.client.usage import UsageInfo
from perdure.core.budgets import Budget
from perdure.runtime.agent import Agent


class Ledgers(Connected):
    """What an app can do about effects, deliveries, usage and budgets."""

    # -- effects ---------------------------------------------------------------------------------------------

    async def effects(
        self,
        *,
        state: str | None = None,
        run_id: str | None = None,
        thread_id: str | None = None,
        agent: Agent[..., Any] | str | None = None,
        name: str | None = None,
        tenant: str | None = None,
        undoable: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[EffectInfo]:
        """A page of what agents have done to the outside world, oldest first, without its audit; `after` is the last id
        of the page before."""
        where = effects.effect_filter(
            state=state, run_id=run_id, thread_id=thread_id, agent=agent, name=name, tenant=tenant, undoable=undoable,
            limit=limit, after=after,
        )  # fmt: skip
        return await effects.listed(await self._client(), where)

    async def effect_info(self, effect_id: str) -> EffectInfo:
        """One effect, with all that was written of it."""
        return await effects.shown(await self._client(), effect_id)

    async def resolve_effect(
        self,
        effect_id: str,
        *,
        happened: bool | None = None,
        undone: bool = False,
        result: Any = None,
        by: str | None = None,
        note: str | None = None,
    ) -> EffectInfo:
        """Say what became of an effect whose outcome is unknown: `happened=True` with its `result`, or
        `happened=False`; of one whose undo failed, `undone=True`, where somebody has undone it by hand.

        Where its run has asked, that is the answer, and the run goes on with it; the effect is `unknown` until then.
        Where its run has ended or is held, the ledger is told. `by`: who found out; `note`: how. The same again is a
        no-op. Raises `Conflict` with the effect's `state`, where something else is known of it, a worker is at it, or,
        `until` its lease is over, one that was taken over may be (then nobody says that it did not happen);
        `NotSerializable`, where the result is not what the effect declares (as far as this process has its code).
        """
        said = effects.finding(happened=happened, undone=undone, result=result, by=by, note=note)
        return await effects.resolve(await self._client(), effect_id, said)

    # -- the outbox ------------------------------------------------------------------------------------------

    async def deliveries(
        self,
        *,
        state: str | None = None,
        sink: str | None = None,
        partition: str | None = None,
        key: str | None = None,
        run_id: str | None = None,
        thread_id: str | None = None,
        tenant: str | None = None,
        bill: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[DeliveryInfo]:
        """A page of what runs have handed over, and of bills, oldest first; `after` is the last id of the page
        before."""
        where = deliveries.delivery_filter(
            state=state, sink=sink, partition=partition, key=key, run_id=run_id, thread_id=thread_id, tenant=tenant,
            bill=bill, limit=limit, after=after,
        )  # fmt: skip
        return await deliveries.listed(await self._client(), where)

    async def delivery_info(self, delivery_id: str) -> DeliveryInfo:
        """One delivery, whatever its state."""
        return await deliveries.found(await self._client(), delivery_id)

    async def redeliver(self, delivery_id: str) -> DeliveryInfo:
        """Send a dead delivery on, under its key: to the end of its lane, with its tries counted anew. `Conflict` with
        its `state` for one that is not dead."""
        (info,) = await deliveries.redeliver(await self._client(), [delivery_id])
        return info

    # -- usage and budgets -----------------------------------------------------------------------------------

    async def usage(
        self,
        by: str,
        *,
        name: str | None = None,
        tenant: str | None = None,
        agent: Agent[..., Any] | str | None = None,
        run_id: str | None = None,
        since: datetime | date | str | None = None,
        until: datetime | date | str | None = None,
        limit: int = 1000,
        after: tuple[str, str] | None = None,
    ) -> list[UsageInfo]:
        """Sums of what was used, `by` "tenant", "agent", "run" or "day" (in UTC), in the order of that and of what it
        was: exact.

        `since` and `until` (which is not part of it) bound when it was recorded: aware datetimes, text with an offset,
        or days, which begin in UTC. `after` is the `(group, name)` of the last row of the page before.
        """
        where = usage.usage_filter(
            by=by, name=name, tenant=tenant, agent=agent, run_id=run_id, since=since, until=until, limit=limit,
            after=after,
        )  # fmt: skip
        return await usage.summed(await self._client(), where)

    async def set_budget(
        self, name: str, budget: Budget | None, *, by: str | None = None, if_rev: int | None = None
    ) -> BudgetInfo:  # fmt: skip
        """Set all limits of `tenant:…` or `agent:…`, or of the budget that a run was started with (`run:r42`); None for
        no limit any more. What is spent stays. Runs that asked because of it look again. `by`: who sets it. `if_rev`:
        only where it has been set so often (`BudgetInfo.rev`), and not since; else `Conflict` (`rev`)."""
        return await budgets.set_budget(await self._client(), name, budget, by=by, if_rev=if_rev)

    async def budgets(
        self, prefix: str | None = None, *, limit: int = 100, after: str | None = None
    ) -> list[BudgetInfo]:  # fmt: skip
        """A page of budgets whose names begin so, by name; `after` is the last name of the page before."""
        return await budgets.listed(
            await self._client(), budgets.budget_filter(prefix=prefix, limit=limit, after=after)
        )

    async def budget_info(self, name: str) -> BudgetInfo:
        """One budget, with what is spent and reserved of it."""
        return await budgets.found(await self._client(), name)
