"""The agents of the crash-point scenarios, one for each kind of write there is.

What differs from try to try (a step that fails the first time, an operator who mends something) leaves a mark in the
folder of the side log, or is decided by what is on record: so a run comes to the same end in whatever processes it is
executed. The steps witness what they do in the side log.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import perdure
from perdure import Again, App, Retry, StepFailed
from perdure.core.records import Kind
from perdure.runtime.worker import Worker
from tests.support.agents import QUICK, Tally, note, scripted, stumble
from tests.support.sidelog import VARIABLE, say, told

app = App("lives")


def mark(name: str) -> Path:
    """A file of this thread that outlives every process."""
    return Path(os.environ[VARIABLE]).parent / f"{perdure.current().thread_id.replace('/', '-')}-{name}"


# -- steps and fan-outs ---------------------------------------------------------------------------------------


@app.agent
async def single(word: str) -> str:
    """One step."""
    return await note(word)


async def in_a_row(word: str) -> str:
    """Four steps, each of which needs the one before."""
    for letter in "abcd":
        word = await note(word + letter)
    return word


app.agent(in_a_row)
app.agent(name="in_a_row_sync", durability="sync")(in_a_row)


async def branch(word: str) -> str:
    """Two steps in a row, in a task of its own."""
    return await note(await note(word) + "b")


@app.agent
async def fan_out(word: str) -> list[str]:
    """Branches side by side."""
    return list(await asyncio.gather(*(branch(f"{word}{place}") for place in range(3))))


async def team(word: str) -> str:
    """A task group of two branches, with a step before and after."""
    first = await note(word)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(f"{first}{place}")) for place in range(2)]
    return await note("".join(task.result() for task in tasks))


@app.agent(durability="sync")
async def nested(word: str) -> str:
    """Task groups inside of task groups: scopes three deep."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(team(f"{word}{place}")) for place in range(2)]
    return await note("+".join(task.result() for task in tasks))


@perdure.step(retry=QUICK)
def shout(word: str) -> str:
    with told():
        return word.upper()


@app.agent
async def in_threads(word: str) -> list[str]:
    """Plain functions, in threads."""
    return list(await asyncio.gather(*(shout(f"{word}{place}") for place in range(3))))


@perdure.step(cpu="process")
def factor(number: int) -> list[int]:
    say("factors", number=number)
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


@app.agent
async def in_processes(number: int) -> list[int]:
    """A function that computes, in a process."""
    return await factor(number) + await factor(number + 1)


@app.agent
async def by_chance(word: str) -> str:
    """Recorded time and chance, between steps."""
    before = perdure.now()
    first = await note(word)
    assert 0 <= perdure.random() < 1 and perdure.uuid4().version == 4
    second = await note(first + "b")
    assert perdure.now() >= before and perdure.random() < 1
    return second


# -- states, super-steps, large values ------------------------------------------------------------------------


@dataclass
class Diary:
    """A state that grows."""

    pages: list[str] = field(default_factory=list)
    title: str = ""


@app.agent(durability="sync")
async def growing(word: str, round: int = 1, *, state: Diary) -> int | Again:
    """Four super-steps, each of which adds to the state."""
    state.title = await note(f"{word}{round}")
    state.pages.append(state.title * 300)
    if round < 4:
        return Again(word, round + 1)
    return len(state.pages)


@perdure.step(retry=QUICK)
async def make(size: int) -> bytes:
    with told():
        return b"\x5a" * size


@app.agent(durability="sync")
async def bulky(text: str, round: int = 1, *, state: Diary) -> str | Again:
    """Arguments, records, a state and a result too large for their rows."""
    made = await make(100_000 + round)
    state.title = text[: len(made) // 2]
    if round < 2:
        return Again(text + "more", round + 1)
    return text + str(len(made))


# -- what fails -----------------------------------------------------------------------------------------------


@app.agent
async def stumbling(word: str) -> str:
    """A step that fails at the first try, between two others."""
    return await note(await stumble(await note(word)) + "c")


@perdure.step(retry=Retry(attempts=2, delay_s=0.001))
async def refuse(word: str) -> str:
    with told():
        raise ConnectionError(f"the line is dead for {word}")


@app.agent
async def giving_up(word: str) -> str:
    """A step whose last try fails too, which the agent expects."""
    try:
        return await refuse(word)
    except StepFailed as error:
        return await note(f"{word} without: {error.attempts} tries")


@perdure.step(retry=Retry(attempts=2, delay_s=0.001))
async def fumble(word: str) -> str:
    with told():
        if perdure.current().attempt == 1:
            raise ConnectionError("the line was busy")
    return word


@app.agent
async def brittle(word: str) -> str:
    """A step that succeeds at its last try, if nobody dies in it."""
    return await note(await fumble(word))


@app.agent
async def failing(word: str) -> str:
    """Fails when all is done."""
    raise ValueError(f"no use for {await note(word)}")


@perdure.step(retry=1)
async def sulk(word: str) -> str:
    with told():
        if not (seen := mark("sulked")).exists():
            seen.touch()
            raise ConnectionError("not now")
    return word


@app.agent(retry=Retry(attempts=5, delay_s=0.001, retry_on=StepFailed))
async def moody(word: str) -> str:
    """Fails as a whole the first time, and keeps what has succeeded."""
    first = await note(word)
    return await note(first + await sulk("b"))


@perdure.step(retry=1)
async def rely(word: str) -> str:
    with told():
        if not mark("mended").exists():
            raise ValueError("out of order")
    return word


@app.agent
async def relying(word: str) -> str:
    """Fails until somebody mends what it relies on."""
    return await note(await note(word) + await rely("b"))


@app.agent(retry=Retry(attempts=9, delay_s=0.001))
async def drifting(word: str) -> str:
    """Calls its recorded step with other arguments when it comes back, until somebody mends the code."""
    recorded = [row for row in await app.handle(perdure.current().run_id).history() if row.kind is Kind.STEP]
    mended = mark("mended").exists()
    first = await note(word if mended or not recorded else f"another {word}")
    if not mended:
        raise ConnectionError("the line is down, and a deploy comes in between")
    return await note(first + "b")


# -- threads, queues, workers ---------------------------------------------------------------------------------

gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""By thread: opened when every run has been started."""


@app.agent
async def adding(number: int, *, state: Tally) -> int:
    """One of several runs of a thread, which build upon each other."""
    await gates[perdure.current().thread_id].wait()
    state.total += len(await note("x" * number))
    state.rounds.append(number)
    return state.total


draining: dict[str, Worker] = {}
"""By thread: the worker that is to be stopped in the middle."""


@app.agent
async def stopping(word: str) -> str:
    """Stops its worker between two steps, as SIGTERM would."""
    first = await note(word)
    if (worker := draining.pop(perdure.current().thread_id, None)) is not None:
        worker.stop()
    return await note(first + "b")


app.agent(durability="sync")(scripted)
