"""Who looks after what runs may use, and after what could not be handed over.

The treasurer sets budgets, up and down, and answers when a run asks for more: he raises, or says to stop. The
dispatcher sends dead deliveries on. When the storm is over the treasurer raises whatever is asked about, and the
dispatcher sends on what was given up while the recipients were not themselves.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from perdure import Budget
from perdure.app import App
from perdure.client.inbox import InterruptInfo
from perdure.core.changes import OpenWait
from perdure.errors import AlreadyAnswered, Conflict, InterruptClosed, NotFound, StoreError
from perdure.testing.simulation.played import PlayedWorld
from perdure.testing.simulation.wire import Request
from perdure.testing.simulation.witness import Witness

SHARED: Final = ("tenant:acme", "tenant:zoo", "agent:crowd", "agent:spender", "agent:protege")
PLENTY: Final = {"usd": 1_000_000, "tokens": 10**9, "steps": 10**6, "seconds": 10**7}
SETS: Final = 0.15
"""How often, at each look, a budget is set that nobody has asked about."""
STOPS: Final = 0.5
RACES: Final = 0.3
REDELIVERS: Final = 0.3
STOPPED: Final = re.compile(r"budget (\S+) has not enough")


class Treasurer:
    """Sets budgets, and answers who asks for more."""

    def __init__(self, world: PlayedWorld, witness: Witness) -> None:
        self.world = world
        self.witness = witness
        self._here: tuple[asyncio.AbstractEventLoop, App] | None = None
        """Where he lives now."""

    def overhear(self, known: Callable[[Request], None], request: Request) -> None:
        """Some run is about to ask about a budget: who sets that now, races with it."""
        known(request)
        opened = [each for each in request.args[1] if isinstance(each, OpenWait)] if request.verb == "commit" else []
        if self.calm or self._here is None or not any(each.interrupt and each.interrupt.budget for each in opened):
            return
        if self.world.provider.chance.random() < RACES:
            loop, app = self._here
            loop.call_soon_threadsafe(loop.create_task, self._race(app, opened), context=contextvars.Context())

    async def _race(self, app: App, opened: list[OpenWait]) -> None:
        about = next(each.interrupt.budget[0] for each in opened if each.interrupt and each.interrupt.budget)
        with suppress(StoreError):
            await app.set_budget(self.witness.look.budgets[about].name, self._drawn(), by="treasurer in a hurry")

    @property
    def calm(self) -> bool:
        return self.witness.readiness.calm_since is not None

    async def look_after(self, app: App, name: str) -> None:
        """Look at what is asked, and at what there is."""
        self._here = asyncio.get_running_loop(), app
        chance = self.world.provider.chance
        for asked in await app.interrupts(limit=100):
            if asked.name == "budget" and (self.calm or chance.random() < 0.6):
                await self._answer(app, name, asked)
        for failed in await app.runs(state="failed") if self.calm else ():
            error = (await app.run_info(failed.run_id)).error
            if (about := STOPPED.search(str(error))) is not None:  # its question has its answer for good
                await app.set_budget(about[1], Budget(**PLENTY), by=name)
        if not self.calm and chance.random() < SETS:
            own = [budget.name for budget in await app.budgets(prefix="run:", limit=100)]
            called = chance.choice([*SHARED, *own])
            with suppress(NotFound):
                await app.set_budget(called, self._drawn(), by=name)

    async def _answer(self, app: App, name: str, asked: InterruptInfo) -> None:
        """Raise it, by an answer or by setting it; or say to stop. Not everybody says it once."""
        chance = self.world.provider.chance
        payload: Any = asked.payload
        if not self.calm and chance.random() < STOPS:
            answer: dict[str, Any] = {"stop": True}
        elif self.calm or chance.random() < 0.3:
            answer = {"raise_to": PLENTY}
        else:
            limits = payload["limit"].items()
            grown = {unit: n * 2 if unit in ("usd", "seconds") else int(n) + 3 for unit, n in limits if n}
            answer = {"raise_to": grown or PLENTY}
        try:
            if chance.random() < 0.3:
                more = PLENTY if self.calm else answer.get("raise_to", PLENTY)
                await app.set_budget(payload["budget"], Budget(**more), by=name)
            else:
                await app.resume(asked.id, answer, by=name)
        except (AlreadyAnswered, InterruptClosed, Conflict, NotFound):
            return

    def _drawn(self) -> Budget:
        chance = self.world.provider.chance
        return chance.choice(
            (
                Budget(usd=chance.choice((0.2, 1.0, 3.0))),
                Budget(usd=chance.choice((0.4, 5.0)), steps=chance.choice((2, 30))),
                Budget(tokens=chance.choice((150, 3000))),
                Budget(steps=chance.choice((1, 20)), seconds=chance.choice((0.05, 60.0))),
            )
        )


async def redeliver(app: App, world: PlayedWorld, witness: Witness) -> None:
    """Send dead deliveries on: some while the recipients are not themselves, and all of them after that."""
    calm = world.recipients.calm_since is not None
    for dead in await app.deliveries(state="dead", limit=100):
        if calm or world.recipients.chance.random() < REDELIVERS:
            witness.events["operator: redelivered"] += 1
            with suppress(Conflict, StoreError):
                await app.redeliver(dead.id)
