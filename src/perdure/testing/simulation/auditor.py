"""Who looks after the ledger: finds out at the provider what nobody knows, and has undone what is left to be undone."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.app import App
from perdure.client.effects import EffectInfo
from perdure.core.records import RunState
from perdure.core.states import TERMINAL
from perdure.errors import Conflict
from perdure.testing.simulation.played import PlayedWorld
from perdure.testing.simulation.witness import Witness

BADLY = TERMINAL - {RunState.COMPLETED}


@dataclass(slots=True)
class Auditor:
    """A person with the ledger, and with a line to the provider."""

    world: PlayedWorld
    witness: Witness

    async def look_after(self, app: App) -> None:
        """Look at what is open."""
        for effect in await app.effects(state="unknown", limit=200):
            if self._run(effect).state in (*TERMINAL, RunState.HELD) and self._feels_like_it(0.7):
                await self._find_out(app, effect)
        for effect in await app.effects(state="undo_failed", limit=200):
            if self._run(effect).state in TERMINAL and self._feels_like_it(0.5):
                await self._undo(app, effect)
        for effect in await app.effects(state="done", undoable=True, limit=200):
            if self._run(effect).state in BADLY:
                self.witness.events["operator: undone later"] += 1
                await self._send_on(app, effect)
        for held in await app.runs(state="held"):
            if not self.calm and self._feels_like_it(0.2):
                await app.cancel(held.run_id, reason="it is held")

    @property
    def calm(self) -> bool:
        return self.witness.readiness.calm_since is not None

    def _feels_like_it(self, share: float) -> bool:
        return self.calm or self.world.provider.chance.random() < share

    def _run(self, effect: EffectInfo) -> Any:
        return self.witness.look.runs[int(effect.run_id[1:])]

    def _may_come(self, effect: EffectInfo) -> bool:
        """Whether a worker that was taken over early may still dispatch it: what is true now may not stay so."""
        look = self.witness.look
        row = look.effects[int(effect.id[1:])]
        return not look.alive(row.worker) and row.lease_until > self.witness.now_us()

    async def _find_out(self, app: App, effect: EffectInfo) -> None:
        provider, key = self.world.provider, effect.idempotency_key
        if provider.at_work(key) or self._may_come(effect):
            return
        receipt = provider.receipt(key)
        result = None if receipt is None else msgspec.to_builtins(receipt)
        with suppress(Conflict):
            await app.resolve_effect(
                effect.id, happened=receipt is not None, result=result, by="auditor", note="saw it"
            )

    async def _undo(self, app: App, effect: EffectInfo) -> None:
        """By hand, or by having its undo tried again."""
        if self.world.provider.chance.random() < 0.5:
            await self._send_on(app, effect)
            return
        self.world.provider.by_hand(f"{effect.idempotency_key}-undo")
        with suppress(Conflict):
            await app.resolve_effect(effect.id, undone=True, by="auditor")

    async def _send_on(self, app: App, effect: EffectInfo) -> None:
        with suppress(Conflict):
            await app.retry(effect.run_id, undo=True)
