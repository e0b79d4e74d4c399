"""Agents of the crash tests of the outbox: each hands several things over to a receiver, meters what it does, and may
die, or have its worker killed by the receiver, at the point that it is told.

The points, in order: before the delivery is on disk (`before`); when it is (`committed`); when the receiver has it and
has not answered (`received`); when it has answered, and the relay may not have said so (`answered`).
"""

from __future__ import annotations

import os
from typing import Any

import perdure
from perdure import App, Retry
from perdure.integrations.webhook import Webhook
from tests.support.charging import die_at

POINTS = ("before", "committed", "received", "answered")

RECEIVER = "PERDURE_TEST_RECEIVER"
"""The environment's name for the receiver's address."""

PERSISTENT = Retry(attempts=10_000, delay_s=0.05, max_delay_s=0.2)


@perdure.step
async def think(number: int) -> int:
    perdure.meter("tokens", 10)
    return number


async def delivering(who: str, point: str = "") -> list[str]:
    """Three deliveries, with a step before each; the second is the one at which something dies."""
    keys = []
    for number in range(3):
        await think(number)
        here = point if number == 1 else ""
        die_at("before", who, here)
        payload: dict[str, Any] = {"who": who, "number": number}
        if here in ("received", "answered"):
            payload |= {"dies": here, "mark": who}
        keys.append(await perdure.deliver("hook", payload))
        die_at("committed", who, here)
    return keys


def app_on(store: str | None = None) -> App:
    """The app with its sinks, on a store."""
    made = App("delivering", store=store, billing="bills")
    url = os.environ[RECEIVER]
    for name in ("hook", "bills"):
        hook = Webhook(
            f"{url}/{name}", timeout=0.5, retry=PERSISTENT, allow_private=True, headers={"x-pid": str(os.getpid())}
        )
        made.sink(name, hook)
    made.agent(delivering)
    return made


if RECEIVER in os.environ:
    app = app_on()
