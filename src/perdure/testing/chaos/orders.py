"""Orders: what clients ask for, and what must come of it. Pure.

The n-th order of a lane follows from the seed, so that a client that was killed is succeeded by one that asks the same.
A client has a lane of its own; the lane `shared` is asked by all of them at about the same time, under the same keys.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.core.records import RunState

SHARED: Final = "shared"

LANE_NUMBERS: Final = 10_000_000
"""Orders of one lane have numbers of their own: what signs a thread's state is known by its number."""

THREADS: Final = 6
THREAD_ORDERS: Final = 80
"""Orders of one lane for a thread before there is another: a thread's state grows, but not for ever."""

AGENT_WEIGHTS: Final = {"sequence": 4, "fan": 3, "ledger": 6, "stumbling": 2, "blocking": 1}

BLOCK_MS: Final = (50, 300, 1_300)
"""How long `blocking` blocks."""


@dataclass(frozen=True, slots=True)
class Order:
    """A run that a client asks for."""

    key: str
    lane: str
    number: int
    agent: str
    args: tuple[int, ...]
    thread_id: str | None = None
    if_busy: str = "enqueue"
    delay_s: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run must end: with this result, or with an error of this message."""

    state: RunState
    value: Any


def order(seed: int, name: str, *, lane: str, nth: int) -> Order:
    """The n-th order (from 1) of a lane."""
    chance = random.Random(f"{seed} {lane} {nth}")
    number = lane_offset(lane) + nth
    agent = chance.choices(list(AGENT_WEIGHTS), list(AGENT_WEIGHTS.values()))[0]
    made = Order(
        f"{name}/{lane}/{nth}", lane, number, agent, _arguments(agent, number, chance),
        delay_s=round(chance.uniform(0.2, 2.0), 3) if chance.random() < 0.1 else 0.0,
        priority=chance.choice([-5, 5]) if chance.random() < 0.1 else 0,
    )  # fmt: skip
    if agent != "ledger":
        return made
    thread_id = f"{name}/{nth // THREAD_ORDERS}-{chance.randrange(THREADS)}"
    if_busy = chance.choices(["enqueue", "join", "reject"], [8, 1, 1])[0]
    return replace(made, thread_id=thread_id, if_busy=if_busy)


def _arguments(agent: str, number: int, chance: random.Random) -> tuple[int, ...]:
    match agent:
        case "ledger":
            return number, chance.randint(1, 3), int(chance.random() < 0.1)
        case "blocking":
            return number, chance.choice(BLOCK_MS)
        case _:
            return (number,)


def lane_offset(lane: str) -> int:
    """Where the numbers of a lane begin: lanes are `1`, `2`, …, and the shared one."""
    return 0 if lane == SHARED else int(lane) * LANE_NUMBERS


def outcome(agent: str, args: tuple[int, ...]) -> Outcome:
    """How a run of this agent with these arguments must end."""
    number = args[0]
    match agent:
        case "sequence":
            text = 40_000 if number % 10 == 0 else 10
            return _completed(2 * number * 10 + number + number % 3 + text + 4)
        case "fan":
            found = sum(number * 10 + place for place in range(4))
            return _completed(found + sum(2 * (number * 10 + place) for place in (7, 8)))
        case "ledger":
            rounds, fails = args[1:]
            if fails:
                return _refused(number)
            return _completed(number * 10 + rounds + number + rounds % 2)
        case "stumbling":
            return _refused(number) if number % 2 else _completed(f"{number}: nobody answers {number}")
        case "blocking":
            return _completed(number + args[1] + 2 * (number * 10) + 3)
        case _:
            raise ValueError(f"chaos has no agent {agent!r}")


def entries(agent: str, args: tuple[int, ...]) -> list[tuple[int, int]]:
    """What a run of this agent leaves in its thread's state."""
    if agent != "ledger" or args[2]:
        return []
    return [(args[0], round) for round in range(1, args[1] + 1)]


def _completed(value: Any) -> Outcome:
    return Outcome(RunState.COMPLETED, value)


def _refused(number: int) -> Outcome:
    return Outcome(RunState.FAILED, f"{number} is refused")
