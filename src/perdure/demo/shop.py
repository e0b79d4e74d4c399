"""The shop of `perdure demo outbox`: an agent whose model repeats its tool call, and a sink that charges.

The tool does not charge: it puts the charge into the outbox, under the order's key. So it makes no difference how often
the model calls it. What is charged is up to the relay and the sink.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import perdure
from perdure import App, Outgoing, Retry, Sink, Undeliverable
from perdure.demo import billing
from perdure.demo.billing import Declined
from perdure.demo.brief import read_brief

BILLING: Final = "billing"
"""The sink."""

CALLS: Final = 2
"""How often the model calls the tool."""

app = App("perdure-shop")


class BillingSink(Sink):
    """Charges at the billing service: a sink of one's own."""

    retry = Retry(attempts=20, delay_s=0.2, max_delay_s=10)

    def __init__(self, url: str) -> None:
        self.url = url

    async def deliver(self, item: Outgoing) -> None:
        """Charge. The same key again charges nothing."""
        account, cents = item.payload["account"], item.payload["cents"]
        try:
            await asyncio.to_thread(billing.charge, self.url, item.key, account, cents)
        except Declined as error:
            if error.status_code < 500:
                raise Undeliverable(str(error)) from error  # it would say the same again
            raise


if (url := read_brief().billing) is not None:
    app.sink(BILLING, BillingSink(url))


@dataclass(frozen=True)
class ToolCall:
    """What the model wants done."""

    id: str
    order: str
    account: str
    cents: int


@app.agent
async def sell(order: str, account: str, cents: int) -> list[str]:
    """Do what the model says; returns the key of each charge that it has asked for."""
    told: list[str] = []
    while (call := await model(order, account, cents, told)) is not None:
        told.append(await charge(call))
    return told


@perdure.step
async def model(order: str, account: str, cents: int, told: list[str]) -> ToolCall | None:
    """A model by script: it calls the tool, hears that this is done, and calls it again, as models do."""
    if len(told) == CALLS:
        return None
    return ToolCall(f"call_{len(told) + 1}", order, account, cents)


async def charge(call: ToolCall) -> str:
    """The tool. The key is the order's, and not the call's: whoever asks for it again asks for the same charge."""
    return await perdure.deliver(BILLING, {"account": call.account, "cents": call.cents}, key=f"charge:{call.order}")
