"""The agents of chaos. Each is made of ordinary steps, and each step's body tells the recorder of itself.

What a run returns depends on its arguments alone (`orders` says what it must be); what a thread's state holds depends
on the order of its runs. `app` finds its store in `$PERDURE_STORE`, as any app does.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Final

import perdure
from perdure import Again, App, Retry, StepFailed
from perdure.testing.chaos.telling import body, body_in_thread, end_with_the_director

PATIENT: Final = Retry(attempts=8, delay_s=0.02)
"""More tries than a step fails by itself: a try that was cut short by a kill counts too."""

THINK_MS: Final = (5, 200)
THINK_LONG_MS: Final = 1_500
LONG_SHARE: Final = 0.02
"""Of the bodies, this share takes so long: there is always something in flight."""

BULKY: Final = 40_000
"""Characters of a result that does not fit into its row."""


def think_s() -> float:
    """How long a body takes, as if it waited for a model."""
    long = random.random() < LONG_SHARE
    return (THINK_LONG_MS if long else random.uniform(*THINK_MS)) / 1000


# -- steps -------------------------------------------------------------------------------------------------------------


@perdure.step(retry=PATIENT)
async def look(number: int, place: int) -> int:
    """A model call."""
    async with body():
        await asyncio.sleep(think_s())
    return number * 10 + place


@perdure.step(retry=PATIENT)
def weigh(value: int) -> int:
    """A plain function: it runs in a thread."""
    with body_in_thread():
        time.sleep(think_s())
    return value * 2


@perdure.step(retry=PATIENT)
async def write_out(number: int, chars: int) -> str:
    """A result of some size."""
    async with body():
        await asyncio.sleep(think_s())
    return (f"{number} " * chars)[:chars]


@perdure.step(retry=PATIENT, durability="sync")
async def stumble(number: int, falls: int) -> int:
    """Fails so many times before it succeeds."""
    async with body():
        await asyncio.sleep(think_s())
        if perdure.current().attempt <= falls:
            raise ConnectionError(f"{number} stumbles")
    return number + falls


@perdure.step(retry=Retry(attempts=2, delay_s=0.02))
async def despair(number: int) -> int:
    """Fails at each of its tries."""
    async with body():
        await asyncio.sleep(think_s())
        raise TimeoutError(f"nobody answers {number}")


@perdure.step
async def refuse(number: int) -> int:
    """Fails for good."""
    async with body():
        raise ValueError(f"{number} is refused")


@perdure.step(retry=PATIENT)
async def hog(number: int, ms: int) -> int:
    """Blocks the worker's event loop: rude, and ordinary."""
    async with body():
        time.sleep(ms / 1000)  # noqa: ASYNC251  # the rudeness is the point
    return number + ms


# -- agents ------------------------------------------------------------------------------------------------------------


async def rest() -> None:
    """Wait without a step, and record a value at once: a worker that was stopped meanwhile, and wakes, does not pass by
    the recorder before it writes."""
    await asyncio.sleep(2 * think_s())
    perdure.random()


async def sequence(number: int) -> int:
    """Steps one after the other: on the loop, in a thread, retried, large; and recorded values."""
    ticket = perdure.uuid4()
    seen = await look(number, 0)
    await rest()
    weighed = await weigh(seen)
    got_up = await stumble(number, number % 3)
    text = await write_out(number, BULKY if number % 10 == 0 else 10)
    return weighed + got_up + len(text) + (ticket.version or 0)


async def fan(number: int) -> int:
    """Parallel branches, by gather and by a task group."""
    found = await asyncio.gather(*(look(number, place) for place in range(4)))
    async with asyncio.TaskGroup() as group:
        branches = [group.create_task(_branch(number, place)) for place in (7, 8)]
    return sum(found) + sum(branch.result() for branch in branches)


async def _branch(number: int, place: int) -> int:
    return await weigh(await look(number, place))


@dataclass
class Ledger:
    """The state of a thread: who was here, in which round."""

    entries: list[tuple[int, int]] = field(default_factory=list)


async def ledger(number: int, rounds: int, fails: int, round: int = 1, *, state: Ledger) -> int | Again:
    """Signs the thread's state in each of its super-steps. One that is to fail signs in its first one, in vain."""
    seen = await look(number, round)
    await rest()
    state.entries.append((number, round))
    got_up = await stumble(number, round % 2)
    if fails:
        await refuse(number)
    if round < rounds:
        return Again(number, rounds, fails, round + 1)
    return seen + got_up


async def stumbling(number: int) -> str:
    """Catches the failure of one step; of every second run, another step's failure is its end."""
    try:
        await despair(number)
    except StepFailed as error:
        said = error.message
    if number % 2:
        await refuse(number)
    return f"{number}: {said}"


async def blocking(number: int, ms: int) -> int:
    """Blocks the event loop, while others have steps in flight beside it."""
    first = await hog(number, ms)
    return first + sum(await asyncio.gather(look(number, 1), look(number, 2)))


AGENTS: Final = (sequence, fan, ledger, stumbling, blocking)


def app_on(store: str | None = None) -> App:
    """The app on a store."""
    made = App("perdure-chaos", store=store)
    for agent in AGENTS:
        made.agent(agent)
    return made


app: Final = app_on()
end_with_the_director()
