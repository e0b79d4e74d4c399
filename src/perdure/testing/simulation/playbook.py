"""The agents of a simulated world, and what must come of each. Those that wait are in files of their own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import perdure
from perdure import Again, Retry
from perdure.runtime.frames import agent_frame
from perdure.testing.simulation.askers import ASKERS
from perdure.testing.simulation.buyers import BUYERS
from perdure.testing.simulation.correspondents import CORRESPONDENTS
from perdure.testing.simulation.couriers import COURIERS
from perdure.testing.simulation.families import FAMILIES
from perdure.testing.simulation.played import world_here
from perdure.testing.simulation.roles import Log, Role, Tally, agent_of, numbered
from perdure.testing.simulation.sleepers import SLEEPERS
from perdure.testing.simulation.spenders import SPENDERS
from perdure.testing.simulation.steps import (
    HEAVY,
    Token,
    big,
    broken,
    careful,
    computed,
    deadly,
    flaky,
    limited,
    pair,
    stumbling,
    work,
)

INSISTS: Final = Retry(attempts=10, delay_s=0.2, max_delay_s=1.0, retry_on=perdure.StepFailed)


async def line(length: int) -> list[Token]:
    """Steps one after the other."""
    return [await work(f"{n}") for n in range(length)]


async def fan(width: int) -> list[Token]:
    """Branches of two steps, beside each other, and one step after them."""

    async def branch(n: int) -> list[Token]:
        return [await work(f"{n} first"), await work(f"{n} second")]

    found = await asyncio.gather(*(branch(n) for n in range(width)))
    async with asyncio.TaskGroup() as group:
        more = [group.create_task(limited(f"group {n}")) for n in range(2)]
    return [*(token for pair in found for token in pair), *(task.result() for task in more), await work("last")]


async def tally(label: str, rounds: int, round: int = 0, *, state: Tally) -> list[str] | Again:
    """Super-steps that each add an entry to the thread's state."""
    token = await work(f"{label} {round}")
    state.entries.append(token.label)
    if round + 1 < rounds:
        return Again(label, rounds, round + 1)
    return list(state.entries)


async def ledger(label: str, rounds: int, round: int = 0, *, state: Tally) -> list[str] | Again:
    """The same, with a super-step that fails until an operator has sent the run on, if it still may be."""
    token = await (broken if round == 1 else work)(f"{label} {round}")
    state.entries.append(token.label)
    if round + 1 < rounds:
        return Again(label, rounds, round + 1)
    return list(state.entries)


async def strict(length: int) -> list[Token]:
    """Steps of which each is on disk before the next one begins; tells the world so."""
    tokens = []
    for n in range(length):
        tokens.append(await careful(f"{n}"))
        _tell_recorded("careful" if n == 0 else f"careful#{n + 1}")
    return tokens


async def patient(label: str) -> str:
    """Takes a step's final failure, and goes on without it."""
    try:
        await broken(label)
    except perdure.StepFailed:
        await work("after the failure")
        return "gave up"
    return "mended"


async def hopeless(label: str) -> str:
    """Fails with its step, until an operator has sent it on."""
    before = await work("before")
    await broken(label)
    return before.label


async def retried(label: str) -> str:
    """Fails as a whole now and then, and is tried again as a whole; what succeeded stays."""
    token = await work(label)
    if perdure.current().attempt < 2 + token.number % 2:
        raise ConnectionError("not this time")
    return "done"


async def heavy(label: str) -> int:
    """A large result in the log."""
    found = await big(label)
    await work("after the blob")
    return len(found)


async def recorded(label: str) -> list[str]:
    """The verbs that are recorded without being steps."""
    made = [str(perdure.random()), str(perdure.uuid4()), perdure.now().isoformat()]
    await work(label)
    return made


async def typed(label: str) -> list[Any]:
    """Returns of what type a step's result was: live as in a replay, that of the record."""
    found = await pair(label)
    await computed("after the pair")
    return [type(found).__name__, *found]


async def insistent(label: str) -> str:
    """Fails with its step, and is tried again as a whole: the step's failure is then forgotten."""
    return (await flaky(label)).label


async def stumbles(label: str) -> str:
    """Tries of one step, each on disk before it begins and after it has failed."""
    return (await stumbling(label)).label


async def stubborn(label: str) -> list[Token]:
    """Goes on when it is told to end, in its own code and in a task that it leaves behind; it must get nowhere."""
    left_behind = asyncio.create_task(_stubbornly(f"{label} beside"))
    found = await _stubbornly(label)
    del left_behind
    return [found, await work(f"{label} after it")]


async def _stubbornly(label: str) -> Token:
    try:
        return await work(label)
    except asyncio.CancelledError:
        await work(f"{label}, all the same")
        raise


async def poisonous(label: str) -> str:
    """Kills its workers with the second of its steps."""
    before = await work(label)
    await deadly(label)
    return before.label


def _tell_recorded(key: str) -> None:
    at = agent_frame("a check")
    world_here().witness.recorded(at.super_step.claimed.run, at.super_step.number, key)


def _of_line(args: tuple[Any, ...], log: Log) -> Any:
    return [log[key] for key in numbered("work", args[0])]


def _of_fan(args: tuple[Any, ...], log: Log) -> Any:
    width = args[0]
    branches = [log[f"{n}/{key}"] for n in range(1, width + 1) for key in ("work", "work#2")]
    return [*branches, *(log[f"{n}/limited"] for n in (width + 1, width + 2)), log["work"]]


def _of_strict(args: tuple[Any, ...], log: Log) -> Any:
    return [log[key] for key in numbered("careful", args[0])]


def _of_patient(args: tuple[Any, ...], log: Log) -> Any:
    return "mended" if "work" not in log else "gave up"


def _of_recorded(args: tuple[Any, ...], log: Log) -> Any:
    return [str(log["random"]), str(log["uuid4"]), log["now"].isoformat()]


POISON: Final = Role(agent_of(poisonous), lambda n: (f"{n}",), lambda args, log: args[0])

WORKING: Final[dict[str, Role]] = {
    role.agent.name: role
    for role in (
        POISON,
        Role(agent_of(line), lambda n: (1 + n % 5,), _of_line),
        Role(agent_of(fan), lambda n: (1 + n % 3,), _of_fan),
        Role(agent_of(tally), lambda n: (f"run {n}", 1 + n % 4), lambda args, log: None, tallies=True),
        Role(agent_of(ledger), lambda n: (f"run {n}", 1 + n % 4), lambda args, log: None, tallies=True),
        Role(agent_of(strict), lambda n: (1 + n % 4,), _of_strict),
        Role(agent_of(patient), lambda n: (f"{n}",), _of_patient),
        Role(agent_of(hopeless), lambda n: (f"{n}",), lambda args, log: log["work"]["label"]),
        Role(agent_of(retried, retry=Retry(attempts=3, delay_s=0.2)), lambda n: (f"{n}",), lambda args, log: "done"),
        Role(agent_of(heavy), lambda n: (f"{n}",), lambda args, log: HEAVY),
        Role(agent_of(recorded), lambda n: (f"{n}",), _of_recorded),
        Role(agent_of(typed), lambda n: (f"{n}",), lambda args, log: ["list", *log["pair"]]),
        Role(agent_of(insistent, retry=INSISTS), lambda n: (f"{n}",), lambda args, log: args[0], never_fails=True),
        Role(agent_of(stumbles), lambda n: (f"{n}",), lambda args, log: args[0]),
        Role(agent_of(stubborn), lambda n: (f"{n}",), lambda args, log: [log["work"], log["work#2"]], cleans_up=True),
    )
}

WAITING: Final[dict[str, Role]] = {role.agent.name: role for role in (*SLEEPERS, *ASKERS, *CORRESPONDENTS, *FAMILIES)}

ACTING: Final[dict[str, Role]] = {role.agent.name: role for role in BUYERS}

DELIVERING: Final[dict[str, Role]] = {role.agent.name: role for role in COURIERS}

SPENDING: Final[dict[str, Role]] = {role.agent.name: role for role in SPENDERS}

_CASTS: Final = (WORKING, WAITING, ACTING, DELIVERING, SPENDING)

ROLES: Final[dict[str, Role]] = {name: role for cast in _CASTS for name, role in cast.items()}
assert len(ROLES) == sum(map(len, _CASTS)), "two agents have one name"

_BOOKING: Final = WAITING["booking"]

CIRCLES: Final[tuple[tuple[Role, ...], ...]] = (
    SLEEPERS,
    ASKERS,
    CORRESPONDENTS,
    (WAITING["diary"], WAITING["diary"], WAITING["inquiry"]),
    (*CORRESPONDENTS, WAITING["writer"], _BOOKING, _BOOKING),
    tuple(role for role in FAMILIES if role.agent.name != "held"),
    (_BOOKING, _BOOKING, WAITING["stern"], WAITING["hurried"], WAITING["vital"]),
)
"""Agents that have to do with each other, or with the same thing."""
