"""What an app's programs hand over, use and may use: the agents that do so, their sinks, and how all of it is compared.

Whoever runs at once reserves ids in an order that is chance, so deliveries and questions are compared in the order of
their runs. What is random by right (keys that nobody gave) and what is time (how long bodies took) is left out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import perdure
from perdure import App, Cost, Outgoing, Retry, Sink, Undeliverable
from perdure.client.budgets import BudgetInfo
from perdure.client.deliveries import DeliveryInfo
from perdure.core.deliveries import OPEN
from perdure.core.limits import LIST_ROWS_MAX

BILLS: Final = "bills"
MADE_UP: Final = re.compile(r"[0-9a-f]{32}")
"""What a key has in it that was drawn."""


class Keeper(Sink):
    """Takes what it gets and keeps it; one that is strict refuses every delivery the first time."""

    retry = Retry(attempts=1)

    def __init__(self, *, strict: bool = False) -> None:
        self.got: list[Outgoing] = []
        self._strict = strict
        self._refused: set[str] = set()

    async def deliver(self, item: Outgoing) -> None:
        if self._strict and item.key not in self._refused:
            self._refused.add(item.key)
            raise Undeliverable("not like this")
        self.got.append(item)


def register_sinks(app: App) -> None:
    """Where the app's deliveries and its bills go."""
    for name in ("bus", "strict", BILLS):
        app.sink(name, Keeper(strict=name == "strict"))


def register_trading(app: App) -> None:
    """Agents that hand over, and that have budgets."""

    @perdure.step(estimate=Cost(tokens=5))
    async def think(number: int) -> int:
        perdure.meter("tokens", 7)
        perdure.meter("usd", 0.25, model="small")
        return number

    @app.agent
    async def handing(name: str, count: int) -> int:
        """Deliveries under keys of their own, one under a key that is given twice, one that is refused."""
        for number in range(count):
            await perdure.deliver("bus", {"from": name, "number": number})
        for text in ("first", "second"):
            await perdure.deliver("bus", text, key=f"once of {perdure.current().run_id}", partition=name)
        perdure.meter("handed", count, by="handing")
        await perdure.deliver("strict", await think(count))
        return count

    @app.agent
    async def spending(name: str, count: int) -> list[int | str]:
        """Steps that cost more than they said; whoever may not go on says so."""
        found: list[int | str] = []
        for number in range(count):
            try:
                found.append(await think(number))
            except perdure.StepFailed as error:
                found.append(error.type)
        return found


async def open_deliveries(app: App) -> int:
    """How many are neither delivered nor given up."""
    return sum([len(await app.deliveries(state=state, limit=LIST_ROWS_MAX)) for state in OPEN])


async def traded(app: App) -> dict[str, Any]:
    """All that the app shows of it, and what its sinks have got."""
    return {
        "handed over": await handed_over(app),
        "got": {name: [_got(item) for item in _in_order(sink)] for name, sink in sorted(app.sinks.items())},
        "used": {by: await app.usage(by) for by in ("agent", "tenant", "run")},
        "budgets": sorted(
            [without_time(row) for row in await app.budgets(limit=LIST_ROWS_MAX)], key=lambda row: number_in(row.name)
        ),
    }


async def handed_over(app: App, **filters: Any) -> list[DeliveryInfo]:
    """The deliveries, in the order of their runs."""
    rows = await app.deliveries(limit=LIST_ROWS_MAX, **filters)
    return [undrawn(row) for row in sorted(rows, key=lambda row: (number_in(row.run_id), row.sink, row.seq))]


def number_in(id: str) -> tuple[int, str]:
    """What orders ids as they were made: the number, else the text."""
    found = re.search(r"\d+$", id)
    return (int(found[0]), "") if found else (0, id)


def undrawn(row: DeliveryInfo) -> DeliveryInfo:
    """A delivery without what was drawn for its key."""
    return replace(row, key=MADE_UP.sub("…", row.key))


def _in_order(sink: Sink) -> list[Outgoing]:
    assert isinstance(sink, Keeper)
    return sorted(sink.got, key=lambda item: (number_in(item.run_id), number_in(item.id)))


def _got(item: Outgoing) -> tuple[Any, ...]:
    """What a sink saw of it: of a bill, all but its times."""
    payload = item.payload
    if item.sink == BILLS:
        payload = {name: value for name, value in payload.items() if not name.endswith("_at")}
    return MADE_UP.sub("…", item.key), item.id, item.run_id, item.agent, item.tenant, item.attempt, payload


def without_time(row: BudgetInfo) -> BudgetInfo:
    """A budget without how long bodies took."""
    return replace(row, spent=row.spent | {"seconds": 0}, reserved=row.reserved | {"seconds": 0})
