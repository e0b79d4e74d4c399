"""The verbs of the store in memory that have to do with effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from perdure.core.effects import Effect, EffectEvent, EffectFilter, Resolution
from perdure.core.records import Blob
from perdure.store.memory import effects
from perdure.store.memory.tables import Tables


class LedgerVerbs(ABC):
    """A part of the store in memory; `store.py` has the rest."""

    @abstractmethod
    async def _tables(self) -> Tables:
        """The tables of an open store."""

    async def effects(self, where: EffectFilter) -> list[Effect]:
        tables = await self._tables()
        with tables.lock:
            return effects.page(tables, where)

    async def get_effects(self, asked: Sequence[int]) -> list[Effect]:
        tables = await self._tables()
        with tables.lock:
            found = (tables.effects[each] for each in sorted(set(asked)) if each in tables.effects)
            return [effects.seen(tables, entry.row) for entry in found]

    async def effect_events(self, effect: int) -> list[EffectEvent]:
        tables = await self._tables()
        with tables.lock:
            entry = tables.effects.get(effect)
            return [] if entry is None else list(entry.events)

    async def resolve(self, resolution: Resolution, blobs: Sequence[Blob] = ()) -> Effect | None:
        tables = await self._tables()
        with tables.writing() as now:
            return effects.resolve(tables, resolution, blobs, now=now)
