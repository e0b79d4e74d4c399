"""Agents that hand things over: under keys of their own and given ones, in several partitions, in branches and in
super-steps, before failures and beside waits."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure.testing.simulation.played import world_here
from perdure.testing.simulation.roles import Log, Role, agent_of, failed, numbered
from perdure.testing.simulation.steps import broken, undo, work

PLACES: Final = ("east", "west")
HEAVY: Final = 4_000
"""Words of a payload that becomes a blob."""
ENDS: Final = ("well", "badly", "asks", "sleeps", "well", "late")


async def courier(label: str, count: int, end: str) -> list[str]:
    """One after the other, on its own thread's lane."""
    keys = []
    for n in range(count):
        keys.append(await perdure.deliver("orders", {"from": label, "n": n}))
        await work(f"{label} {n}")
    match end:
        case "badly" if not world_here().mended(perdure.current().run_id):
            raise ValueError(f"{label} did not come to a good end")
        case "asks":
            await perdure.interrupt({"asks": label})
        case "sleeps":
            await perdure.sleep(1.5)
        case _:
            """Well."""
    return keys


async def herald(label: str, count: int) -> list[str]:
    """The same news as others have, under the news's own keys: a sink gets each once."""
    return [
        await perdure.deliver(
            "mails" if n % 2 else "orders", {"from": label, "n": n}, key=f"news {n}", partition=PLACES[n % 2]
        )
        for n in range(count)
    ]


async def fanning(label: str, width: int) -> list[str]:
    """Branches that share lanes."""

    async def branch(n: int) -> list[str]:
        first = await perdure.deliver("mails", {"from": label, "n": n}, partition=PLACES[n % 2])
        await work(f"{label} {n}")
        return [first, await perdure.deliver("mails", [label, n], partition=PLACES[0])]

    return [key for pair in await asyncio.gather(*(branch(n) for n in range(width))) for key in pair]


async def rounds(label: str, count: int, round: int = 0) -> list[str] | perdure.Again:
    """Super-steps that each hand something over; the bill counts over all of them."""
    perdure.meter("rounds", 1, round=round)
    key = await perdure.deliver("orders", {"from": label, "round": round}, partition=f"rounds of {label}")
    await work(f"{label} {round}")
    return perdure.Again(label, count, round + 1) if round + 1 < count else [key]


async def flooding(label: str, count: int) -> list[str]:
    """More than a lane may take, in some worlds: it says what became of each."""
    became = []
    for n in range(count):
        try:
            await perdure.deliver("orders", {"from": label, "n": n}, partition="flood")
            became.append("sent")
        except perdure.OutboxFull:
            became.append("OutboxFull")
    return became


async def weighty(label: str) -> str:
    """A large payload."""
    return await perdure.deliver("mails", {"from": label, "words": [f"{label:<7}"] * HEAVY})


async def doomed(label: str) -> str:
    """Hands over, and fails until an operator has sent it on; what it has handed over it does not again."""
    key = await perdure.deliver("orders", {"from": label})
    await broken(label)
    await perdure.deliver("orders", {"from": label, "at": "last"}, key=f"{label} at last")
    return key


async def master(label: str, count: int) -> list[Any]:
    """Has children that hand over: each has a bill of its own."""
    ends = await asyncio.gather(
        *(perdure.call("courier", f"{label}.{n}", 1, "well") for n in range(count)), return_exceptions=True
    )
    return ["none" if isinstance(end, BaseException) else end for end in ends]


async def conscientious(label: str) -> str:
    """Says so when it is cancelled."""
    try:
        await perdure.deliver("mails", {"from": label, "is": "begun"})
        await perdure.sleep(2.0)
        await perdure.interrupt({"asks": label})
    except asyncio.CancelledError:
        await undo(label, [])
        await perdure.deliver("mails", {"from": label, "is": "cancelled"}, key=f"{label} is cancelled")
        raise
    return await perdure.deliver("mails", {"from": label, "is": "done"})


def _of_fanning(args: tuple[Any, ...], log: Log) -> Any:
    return [log[f"{n}/{key}"] for n in range(1, args[1] + 1) for key in numbered("deliver:mails", 2)]


def _of_flooding(args: tuple[Any, ...], log: Log) -> Any:
    return [failed(log, key) or "sent" for key in numbered("deliver:orders", args[1])]


COURIERS: Final = (
    Role(
        agent_of(courier), lambda n: (f"{n}", 1 + n % 4, ENDS[n % 6]),
        lambda args, log: [log[key] for key in numbered("deliver:orders", args[1])],
    ),
    Role(agent_of(herald), lambda n: (f"{n}", 1 + n % 5), lambda args, log: [f"news {n}" for n in range(args[1])]),
    Role(agent_of(fanning), lambda n: (f"{n}", 1 + n % 4), _of_fanning),
    Role(agent_of(rounds), lambda n: (f"{n}", 1 + n % 4), lambda args, log: [log["deliver:orders"]]),
    Role(agent_of(flooding), lambda n: (f"{n}", 3 + n % 6), _of_flooding),
    Role(agent_of(weighty), lambda n: (f"{n}",), lambda args, log: log["deliver:mails"]),
    Role(agent_of(doomed), lambda n: (f"doomed {n}",), lambda args, log: log["deliver:orders"]),
    Role(agent_of(master), lambda n: (f"{n}", 1 + n % 3), lambda args, log: None),
    Role(
        agent_of(conscientious), lambda n: (f"kind {n}",), lambda args, log: log["deliver:mails#2"], cleans_up=True
    ),
)  # fmt: skip
