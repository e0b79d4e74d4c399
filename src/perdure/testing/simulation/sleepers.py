"""Agents that wait for a time, or have one to keep."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, Final

import perdure
from perdure.testing.simulation.roles import Log, Role, Tally, agent_of, failed, numbered
from perdure.testing.simulation.steps import Token, careful, work
from perdure.testing.simulation.world import EPOCH_S

NAPS_S: Final = (0.01, 0.5, 3.0, 8.0)
LIMITS_S: Final = (0.05, 0.4, 2.0, 6.0)


async def sleeper(label: str, seconds: float) -> list[Token]:
    """Sleeps between two steps, and at once again."""
    before = await work(label)
    await perdure.sleep(seconds)
    await perdure.sleep(seconds / 2)
    return [before, await work(f"{label} awake")]


async def alarm(label: str, at_s: float) -> list[Token]:
    """Sleeps until a time of the world, which may have passed."""
    await perdure.sleep_until(datetime.fromtimestamp(EPOCH_S + at_s, UTC))
    return [await work(label)]


async def restless(label: str, rounds: int, round: int = 0) -> list[Token] | perdure.Again:
    """Sleeps in each of its super-steps, with a branch that does not beside it."""

    async def beside() -> Token:
        await asyncio.sleep(0.3)  # raw: while this runs, nothing is parked
        return await work(f"{label} {round} beside")

    other = asyncio.create_task(beside())
    await perdure.sleep(0.2 * round)
    found = [await work(f"{label} {round}"), await other]
    return perdure.Again(label, rounds, round + 1) if round + 1 < rounds else found


async def diary(label: str, rounds: int, round: int = 0, *, state: Tally) -> list[str] | perdure.Again:
    """Super-steps that each wait, and add an entry to the thread's state."""
    await perdure.sleep(0.4)
    token = await work(f"{label} {round}")
    state.entries.append(token.label)
    return perdure.Again(label, rounds, round + 1) if round + 1 < rounds else list(state.entries)


async def hurried(label: str, limit_s: float) -> list[Any]:
    """Steps and waits in a limited time; what it does when that is over depends on what it has seen."""
    seen: list[Any] = []
    try:
        async with perdure.timeout(limit_s):
            seen.append((await work(label)).label)
            await perdure.sleep(0.3)
            seen.append((await careful(label)).label)
            seen.append(await perdure.interrupt({"hurry": label}, name="hurry"))
    except perdure.TimedOut:
        seen.append((await work.options(name="limited")(f"{label} late after {len(seen)}")).label)
    return seen


async def nested(label: str, limit_s: float) -> list[Any]:
    """A limit in a limit, over branches."""
    seen: list[Any] = []

    async def nap(n: int) -> int:
        await perdure.sleep(0.2 * (n + 1))
        return n

    try:
        async with perdure.timeout(limit_s):
            try:
                async with perdure.timeout(0.3):
                    seen.append(await asyncio.gather(*(nap(n) for n in range(3))))
            except TimeoutError:
                seen.append("inner")
            seen.append(await nap(2))
    except TimeoutError:
        seen.append("outer")
    seen.append((await work(f"{label} after {seen}")).label)
    return seen


def _of_sleeper(args: tuple[Any, ...], log: Log) -> Any:
    assert "sleep" in log and "sleep#2" in log
    return [log[key] for key in numbered("work", 2)]


def _of_restless(args: tuple[Any, ...], log: Log) -> Any:
    assert "sleep" in log
    return [log["work"], log["1/work"]]


def _of_hurried(args: tuple[Any, ...], log: Log) -> Any:
    """In time, or at the very end of it, it has seen everything; else what is on record, and then its last step."""
    seen = [log[key]["label"] for key in ("work", "careful") if key in log and failed(log, key) is None]
    if not log["timeout"] or ("hurry" in log and "limited" not in log):
        return [*seen, log["hurry"]]
    answer = [log["hurry"]] if "hurry" in log else []
    return [*seen, *answer, log["limited"]["label"]]


SLEEPERS: Final = (
    Role(agent_of(sleeper), lambda n: (f"{n}", NAPS_S[n % 4]), _of_sleeper),
    Role(agent_of(alarm), lambda n: (f"{n}", n % 9 - 1.0), lambda args, log: [log["work"]]),
    Role(agent_of(restless), lambda n: (f"{n}", 1 + n % 3), _of_restless),
    Role(agent_of(diary), lambda n: (f"run {n}", 2 + n % 4), lambda args, log: None, tallies=True),
    Role(agent_of(hurried), lambda n: (f"{n}", LIMITS_S[n % 4]), _of_hurried, withdraws=True),
    Role(agent_of(nested), lambda n: (f"{n}", LIMITS_S[n % 4]), lambda args, log: None, withdraws=True),
)
