"""Agents of the crash tests of budgets: a parent whose many children share what it may spend."""

from __future__ import annotations

import asyncio
import os

import perdure
from perdure import App, Cost
from tests.support.sidelog import told

CENTS = 10
"""What a call costs, and what it is expected to cost at most."""


@perdure.step(estimate=Cost(usd=CENTS / 100))
async def call(number: int) -> int:
    with told(number=number):
        await asyncio.sleep(0.02)  # a model call
        perdure.meter("usd", CENTS / 100)
    return number


@perdure.step
async def call_unforeseen(number: int) -> int:
    """The same, of which nobody has said what it costs."""
    with told(number=number):
        await asyncio.sleep(0.02)  # a model call
        perdure.meter("usd", CENTS / 100)
    return number


async def spender(number: int, calls: int, foreseen: bool) -> int:
    """A child: so many calls, one after the other."""
    for _ in range(calls):
        await (call if foreseen else call_unforeseen)(number)
    return calls


async def spenders(children: int, calls: int, foreseen: bool) -> int:
    """Its parent."""
    made = [await perdure.start(app.agents["spender"], number, calls, foreseen) for number in range(children)]
    return sum(await asyncio.gather(*made))


def app_on(store: str | None = None) -> App:
    """The app, on a store."""
    made = App("capping", store=store)
    made.agent(spender)
    made.agent(spenders)
    return made


app = app_on(os.environ.get("PERDURE_STORE", "memory://"))
