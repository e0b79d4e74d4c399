"""The agents of a simulated world, and what must come of each.

A body returns a fresh token, which no other execution in this world has returned. So a result tells which executions
it was made of, and the log must tell the same: what an agent saw live is what is on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import perdure
from perdure import Again, Retry
from perdure.core.codec import codec_for
from perdure.core.records import Kind, Run, RunState
from perdure.runtime.agent import Agent, AgentOptions
from perdure.runtime.frames import agent_frame
from perdure.testing.simulation.invariants import Log
from perdure.testing.simulation.loop import VirtualLoop

TRIES: Final = Retry(attempts=3, delay_s=0.2, max_delay_s=1.0)


class Token(msgspec.Struct, frozen=True):
    """What a body returns: which execution it was, and for which call."""

    number: int
    label: str
    deployment: str


def _token(label: str) -> Token:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    owner: Any = loop.owner
    return Token(owner.world.next_token(), label, perdure.current().deployment)


@perdure.step(retry=TRIES)
async def work(label: str) -> Token:
    """A repeatable step."""
    return _token(label)


@perdure.step(retry=TRIES, timeout=2.0)
async def limited(label: str) -> Token:
    """A step with a time limit; bodies that are slow run into it."""
    return _token(label)


@perdure.step(retry=TRIES, durability="sync")
async def careful(label: str) -> Token:
    """A step after which nothing goes on before it is on disk."""
    return _token(label)


@perdure.step(retry=Retry(attempts=2, delay_s=0.1))
async def broken(label: str) -> Token:
    """A step that fails until its run is sent on by an operator, and works then."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    owner: Any = loop.owner
    if not owner.world.mended(perdure.current().run_id):
        raise ConnectionError("out of order")
    return _token(label)


@perdure.step(retry=TRIES)
async def big(label: str) -> list[str]:
    """A result that becomes a blob."""
    return [_token(label).label] * 8_000


STEPS: Final = (work, limited, careful, broken, big)


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


class Tally(msgspec.Struct):
    """The state of a thread: what each super-step of each run has added."""

    entries: list[str] = msgspec.field(default_factory=list)


async def tally(label: str, rounds: int, round: int = 0, *, state: Tally) -> list[str] | Again:
    """Super-steps that each add an entry to the thread's state."""
    token = await work(f"{label} {round}")
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


def _tell_recorded(key: str) -> None:
    at = agent_frame("a check")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    owner: Any = loop.owner
    owner.world.witness.recorded(at.super_step.claimed.run, at.super_step.number, key)


@dataclass(frozen=True, slots=True)
class Role:
    """An agent, and what its runs are started with."""

    agent: Agent[..., Any]
    arguments: Callable[[int], tuple[Any, ...]]
    """Of a run's number."""
    expected: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    """Of its arguments and the values on record in its last super-step, by key: what it must have returned."""


def _agent(fn: Callable[..., Any], **options: Any) -> Agent[..., Any]:
    return Agent(fn, AgentOptions(name=fn.__name__, retry=options.pop("retry", Retry(attempts=1)), **options))


def _numbered(name: str, count: int) -> list[str]:
    return [name if n == 0 else f"{name}#{n + 1}" for n in range(count)]


def _of_line(args: tuple[Any, ...], log: dict[str, Any]) -> Any:
    return [log[key] for key in _numbered("work", args[0])]


def _of_fan(args: tuple[Any, ...], log: dict[str, Any]) -> Any:
    width = args[0]
    branches = [log[f"{n}/{key}"] for n in range(1, width + 1) for key in ("work", "work#2")]
    return [*branches, *(log[f"{n}/limited"] for n in (width + 1, width + 2)), log["work"]]


def _of_strict(args: tuple[Any, ...], log: dict[str, Any]) -> Any:
    return [log[key] for key in _numbered("careful", args[0])]


def _of_patient(args: tuple[Any, ...], log: dict[str, Any]) -> Any:
    return "mended" if "work" not in log else "gave up"


def _of_recorded(args: tuple[Any, ...], log: dict[str, Any]) -> Any:
    return [str(log["random"]), str(log["uuid4"]), log["now"].isoformat()]


ROLES: Final[dict[str, Role]] = {
    role.agent.name: role
    for role in (
        Role(_agent(line), lambda n: (1 + n % 5,), _of_line),
        Role(_agent(fan), lambda n: (1 + n % 3,), _of_fan),
        Role(_agent(tally), lambda n: (f"run {n}", 1 + n % 4), lambda args, log: None),
        Role(_agent(strict), lambda n: (1 + n % 4,), _of_strict),
        Role(_agent(patient), lambda n: (f"{n}",), _of_patient),
        Role(_agent(hopeless), lambda n: (f"{n}",), lambda args, log: log["work"]["label"]),
        Role(_agent(retried, retry=Retry(attempts=3, delay_s=0.2)), lambda n: (f"{n}",), lambda args, log: "done"),
        Role(_agent(heavy), lambda n: (f"{n}",), lambda args, log: 8_000),
        Role(_agent(recorded), lambda n: (f"{n}",), _of_recorded),
    )
}


def complaint(run: Run, args: tuple[Any, ...], log: Log, result: Any) -> str | None:
    """What is wrong with a completed run, if anything is."""
    if run.state is not RunState.COMPLETED:
        return f"run r{run.id} of {run.agent} is {run.state}"
    values = {
        row.key: None if row.failed else codec_for(Any).decode(row.payload)
        for row in log.values()
        if row.kind is Kind.STEP and row.super_step == run.super_step and run.agent != "heavy"
    }
    for key, value in values.items():
        if isinstance(value, dict) and value.get("deployment", run.deployment) != run.deployment:
            return f"run r{run.id} is pinned to {run.deployment}, and {key!r} was executed by {value['deployment']}"
    expected = ROLES[run.agent].expected(args, values)
    if expected is not None and result != expected:
        return f"run r{run.id} of {run.agent}{args} returned {result!r}; its log makes {expected!r}"
    return None
