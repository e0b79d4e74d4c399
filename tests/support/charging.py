"""Agents of the crash tests of effects: each charges somebody at a provider, under one of the policies, and dies once
at the point that it is told.

The points, in order: before the `intent` is on disk; when it is (`intended`); when the provider has the request and
does not do it (`sent`); when it has, and does it afterwards (`working`); when it has done it and not answered
(`answered`); when the answer is there and not recorded (`received`); after the record (`recorded`).
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any

import perdure
from perdure import App, DidNotHappen, Happened, Retry, StillUnknown

POINTS = ("intent", "intended", "sent", "working", "answered", "received", "recorded")
POLICIES = ("retry", "verify", "ask", "fail")

PROVIDER = "PERDURE_TEST_PROVIDER"
"""The environment's name for the provider's address."""

QUICK = Retry(attempts=3, delay_s=0.05)
PATIENT = Retry(attempts=30, delay_s=0.05)

app = App("charging")


def post(path: str, **asked: Any) -> Any:
    """Ask the provider."""
    request = urllib.request.Request(os.environ[PROVIDER] + path, json.dumps(asked).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def die_at(here: str, who: str, point: str) -> None:
    """Die here, if this is the point, and nobody has died for this one before."""
    if here != point:
        return
    marker = Path(os.environ["PERDURE_TEST_LOG"]).parent / f"died-{who}"
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def charge(who: str, point: str) -> str:
    """The body of every effect here."""
    die_at("intended", who, point)
    receipt: str = post("/charge", key=perdure.effect_key(), who=who, point=point, pid=os.getpid())
    die_at("received", who, point)
    return receipt


def ask(key: str, args: dict[str, Any]) -> Happened | DidNotHappen | StillUnknown:
    """What the provider says became of it."""
    match post("/ask", key=key):
        case "done":
            return Happened(f"receipt of {key}")
        case "absent":
            return DidNotHappen()
        case _:
            return StillUnknown("it is at it")


EFFECTS = {
    "retry": perdure.effect(charge, name="charge", on_unknown="retry", retry=QUICK),
    "verify": perdure.effect(charge, name="charge", verify=ask, retry=QUICK),
    "ask": perdure.effect(charge, name="charge", on_unknown="ask", retry=QUICK),
    "fail": perdure.effect(charge, name="charge", on_unknown="fail", retry=QUICK),
}


@perdure.step
def after(who: str, point: str) -> str:
    die_at("recorded", who, point)
    return who


async def charging(policy: str, who: str, point: str) -> str:
    """One charge."""
    die_at("intent", who, point)
    receipt = str(await EFFECTS[policy](who, point))
    if point == "recorded":
        await perdure.sleep(0.001)  # what waits is on disk, and so is all before it
    await after(who, point)
    return receipt


def refund(receipt: str, who: str, point: str) -> None:
    """The undo of every booking."""
    die_at("undo", who, point)
    post("/charge", key=perdure.effect_key(), who=f"undo {who}", point="", pid=os.getpid())
    die_at("undone", who, point)


booking = perdure.effect(charge, name="book", on_unknown="retry", undo=refund)


async def regretting(who: str, point: str) -> None:
    """Three bookings, and a failure; it dies in the undo of the second."""
    for number in (1, 2, 3):
        await booking(f"{who}{number}", point if number == 2 else "")
    raise ValueError("sold out")


async def shopping(who: str) -> list[str]:
    """Three charges; however often a worker dies in one, it is tried again."""
    first = await EFFECTS["retry"].options(retry=PATIENT)(f"{who}-a", "")
    await after(who, "")
    second = await EFFECTS["verify"].options(retry=PATIENT)(f"{who}-b", "")
    third = await EFFECTS["retry"].options(retry=PATIENT)(f"{who}-c", "")
    return [first, second, third]


for fn in (charging, shopping, regretting):
    app.agent(fn)
