"""Agents that ask people."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure.testing.simulation.roles import Log, Role, agent_of, failed, numbered
from perdure.testing.simulation.steps import undo, work

PATIENCE_S: Final = (0.05, 0.6, 3.0, 9.0)
BESIDE_S: Final = (1.0, 5.0, 40.0)
NOBODY: Final = "nobody answered"


async def asker(label: str) -> Any:
    """One question."""
    return await perdure.interrupt({"asks": label})


async def panel(label: str, width: int) -> list[Any]:
    """Several questions at once, and a step in each branch."""

    async def ask(n: int) -> list[Any]:
        answer = await perdure.interrupt({"asks": label, "n": n}, assignee=f"expert {n}")
        return [answer, (await work(f"{label} {n} {answer}")).label]

    found = await asyncio.gather(*(ask(n) for n in range(width)))
    return [each for pair in found for each in pair]


async def inquiry(label: str, rounds: int, round: int = 0) -> list[Any] | perdure.Again:
    """Questions in a loop, in several super-steps: each needs an answer of its own."""
    found = []
    for n in range(2):
        found.append(await perdure.interrupt({"asks": label, "round": round, "n": n}))
        await work(f"{label} {round} {n} {found[-1]}")
    return perdure.Again(label, rounds, round + 1) if round + 1 < rounds else found


async def expiring(label: str, seconds: float) -> Any:
    """A question that stands for a while only."""
    try:
        answer = await perdure.interrupt({"asks": label}, timeout=seconds)
    except perdure.TimedOut:
        answer = NOBODY
    await work(f"{label}: {answer}")
    return answer


async def defaulting(label: str, seconds: float) -> Any:
    """A question with an answer that stands where nobody gives one."""
    answer = await perdure.interrupt(label, timeout=seconds, on_timeout=perdure.Default(NOBODY), schema=str)
    await work(f"{label}: {answer}")
    return answer


async def vital(label: str, seconds: float) -> Any:
    """A question without whose answer the run is cancelled."""
    try:
        return await perdure.interrupt({"asks": label}, timeout=seconds, on_timeout="cancel")
    except asyncio.CancelledError:
        await undo(label, [])
        raise


async def clinging(label: str) -> list[Any]:
    """Acts in a `finally`: when its run is parked, and its code unwound, that must get nowhere."""
    try:
        answer = await perdure.interrupt({"asks": label})
    finally:
        last = await work(f"{label} in the end")
    return [answer, last.label]


async def either(label: str) -> list[Any]:
    """Two questions of which one is enough: the other one is withdrawn."""
    first = asyncio.create_task(_ask(label, 1))
    second = asyncio.create_task(_ask(label, 2))
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    answered = first if first.done() else second
    for each in (first, second):
        each.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    return [answered.result(), (await work(label)).label]


async def distracted(label: str, seconds: float) -> Any:
    """A question, and something beside it that nobody knows: it is not parked, and sees the answer all the same."""
    _, answer = await asyncio.gather(asyncio.sleep(seconds), perdure.interrupt({"asks": label}))  # raw, on purpose
    return answer


async def _ask(label: str, n: int) -> Any:
    return await perdure.interrupt({"asks": label, "n": n})


def _of_panel(args: tuple[Any, ...], log: Log) -> Any:
    branches = [f"{n}/" for n in range(1, args[1] + 1)]
    return [each for branch in branches for each in (log[f"{branch}interrupt"], log[f"{branch}work"]["label"])]


def _of_expiring(args: tuple[Any, ...], log: Log) -> Any:
    answer = NOBODY if failed(log, "interrupt") == "TimedOut" else log["interrupt"]
    assert log["work"]["label"] == f"{args[0]}: {answer}"
    return answer


def _of_either(args: tuple[Any, ...], log: Log) -> Any:
    """Live, the first to be seen counts, and both may be on record; the first one does where it is."""
    return None if len(log) > 2 else [log.get("1/interrupt", log.get("2/interrupt")), log["work"]["label"]]


def _the_answer(args: tuple[Any, ...], log: Log) -> Any:
    return log["interrupt"]


ASKERS: Final = (
    Role(agent_of(asker), lambda n: (f"{n}",), _the_answer),
    Role(agent_of(panel), lambda n: (f"{n}", 2 + n % 3), _of_panel),
    Role(
        agent_of(inquiry), lambda n: (f"{n}", 1 + n % 3), lambda args, log: [log[k] for k in numbered("interrupt", 2)]
    ),
    Role(agent_of(expiring), lambda n: (f"{n}", PATIENCE_S[n % 4]), _of_expiring),
    Role(agent_of(defaulting), lambda n: (f"{n}", PATIENCE_S[n % 4]), _the_answer),
    Role(agent_of(vital), lambda n: (f"{n}", PATIENCE_S[n % 4]), _the_answer, cleans_up=True),
    Role(agent_of(clinging), lambda n: (f"{n}",), lambda args, log: [log["interrupt"], log["work"]["label"]]),
    Role(agent_of(distracted), lambda n: (f"{n}", BESIDE_S[n % 3]), lambda args, log: log["2/interrupt"], raw=True),
    Role(agent_of(either), lambda n: (f"{n}",), _of_either, withdraws=True),
)
