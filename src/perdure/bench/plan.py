"""What is measured, and where."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from perdure.bench import growth, imports, latency, parked, replay, throughput
from perdure.bench.goals import MEASURES, Reading
from perdure.bench.ground import Ground, ground_at, kind_of
from perdure.client.serving import run_loop
from perdure.errors import UsageError

Measure = Callable[[Ground], Awaitable[list[Reading]]]

ON_GROUND: Final[dict[str, Measure]] = {
    "P1": throughput.steps_per_s,
    "P2": throughput.steps_per_s,
    "P3": latency.step_ms,
    "P5": throughput.runs_per_s,
    "P6": parked.waiting,
    "P7": replay.replay_ms,
    "P9": growth.bytes_and_load,
}


@dataclass(frozen=True, slots=True)
class Item:
    """A measure and the URL of its ground; None for a temporary file, or for no store at all."""

    measure: str
    url: str | None

    @property
    def where(self) -> str:
        """The kind of store, for people."""
        return {"sqlite": "SQLite", "postgres": "Postgres"}[kind_of(self.url)] if self.measure in ON_GROUND else ""


def plan(only: Sequence[str], *, store: str | None, postgres: str | None) -> list[Item]:
    """The measures asked for (all, if none is named), each with its ground.

    P1 is about Postgres and P2 about SQLite; the others are taken where `store` says.
    """
    postgres = postgres if postgres is not None else store if kind_of(store) == "postgres" else None
    sqlite = store if kind_of(store) == "sqlite" else None
    places = {"P1": postgres, "P2": sqlite, "P10": None}
    if postgres is not None and kind_of(postgres) != "postgres":
        raise UsageError("--postgres takes a URL that begins with postgresql://; --store takes the others")
    if "P1" in only and postgres is None:
        raise UsageError("P1 is measured on Postgres; say where one is: --postgres postgresql://user@host/database")
    wanted = [each for each in MEASURES if each in only] if only else list(MEASURES)
    return [Item(each, places.get(each, store)) for each in wanted if each != "P1" or postgres is not None]


def measured(item: Item) -> list[Reading]:
    """Take one measure once, on a loop and a ground of its own."""
    gc.collect()
    if item.measure == "P10":
        return imports.start_up_ms()

    async def measure() -> list[Reading]:
        async with ground_at(item.url) as ground:
            return await ON_GROUND[item.measure](ground)

    return run_loop(measure())


def measured_all(
    items: Sequence[Item], *, repeat: int, on_begin: Callable[[Item, int], None]
) -> Iterator[tuple[Item, list[Reading]]]:
    """Take all of them so many times, in rounds: what disturbs the machine for a while disturbs all of them."""
    for turn in range(repeat):
        for item in items:
            on_begin(item, turn)
            yield item, measured(item)
