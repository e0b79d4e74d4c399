"""A provider for effects to act on, and the ledger of what they did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import perdure
from perdure import App, DidNotHappen, Happened, Retry, StillUnknown
from perdure.core.effects import Effect, EffectFilter
from tests.runtime.world import working

QUICK = Retry(attempts=3, delay_s=0.01)


class Provider:
    """What the effects of a test act on: it does as its script says, then as it should."""

    def __init__(self, *script: str | Exception, honest: bool = True) -> None:
        self.script = list(script)
        self.calls: list[str] = []
        self.done: dict[str, str] = {}
        self.honest = honest

    async def charge(self, what: str) -> str:
        key = perdure.effect_key()
        self.calls.append(key)
        act = self.script.pop(0) if self.script else "well"
        if isinstance(act, Exception):
            raise act
        if act != "lost before":
            self.done.setdefault(key, f"receipt {len(self.done) + 1} for {what}")
        if act != "well":
            raise ConnectionResetError(act)
        return self.done[key]

    async def ask(self, key: str, args: dict[str, Any]) -> Any:
        if not self.honest:
            return StillUnknown("it is asleep")
        return Happened(self.done[key]) if key in self.done else DidNotHappen()


class RefusedError(Exception):
    """A provider's refusal, with its status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


async def ledger(app: App) -> list[Effect]:
    client = await app._client()
    return await client.store.effects(EffectFilter())


async def states(app: App) -> list[str]:
    return [row.state.value for row in await ledger(app)]


def run(app: App, main: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with working(app):
            await main()

    asyncio.run(whole())


def charging(app: App, provider: Provider, **options: Any) -> Any:
    charge = perdure.effect(provider.charge, name="charge", **{"retry": QUICK, **options})

    @app.agent
    async def agent() -> str:
        return str(await charge("tea"))

    return agent
