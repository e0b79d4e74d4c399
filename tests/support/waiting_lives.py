"""The agents of the crash-point scenarios that wait: for a time, a person, a message, a child.

Children and their threads are named after the thread of who starts them, and are on its queue: many scenarios share a
store.
"""

from __future__ import annotations

import asyncio

import perdure
from perdure import Again, Default, RunCancelled
from tests.support.agents import Tally, note
from tests.support.lives import app

MOMENT_S = 0.02
"""A time that comes soon."""


def here() -> str:
    return perdure.current().thread_id


@app.agent
async def pausing(word: str, round: int = 1, *, state: Tally) -> int | Again:
    """Sleeps and limits, over super-steps."""
    state.total += len(await note(word))
    if round == 1:
        await perdure.sleep(MOMENT_S)
        return Again(word, 2)
    async with perdure.timeout(60):
        await asyncio.gather(perdure.sleep(MOMENT_S), note(f"{word}{round}"))
    try:
        async with perdure.timeout(MOMENT_S):
            await perdure.receive()
    except TimeoutError:
        state.rounds.append(round)
    return state.total


@app.agent
async def racing(word: str) -> str:
    """What comes first wins, and the other wait is withdrawn."""
    tasks = [asyncio.ensure_future(perdure.sleep(MOMENT_S)), asyncio.ensure_future(perdure.receive())]
    done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    return await note(f"{word}{len(done)}{len(late)}")


@app.agent
async def asking(word: str) -> str:
    """Two questions, one after the other, and work between and after."""
    first = await perdure.interrupt({"word": word}, name="first", schema=str)
    then = await note(word + first)
    return await note(then + str(await perdure.interrupt(then, name="second")))


@app.agent
async def unanswered(word: str) -> str:
    """Questions that nobody answers: a default, an error, and the end."""
    found = str(await perdure.interrupt(word, name="which", timeout=MOMENT_S, on_timeout=Default("the first")))
    try:
        await perdure.interrupt(found, name="really", timeout=MOMENT_S)
    except TimeoutError:
        found = await note(found)
    try:
        await perdure.interrupt(found, name="at least", timeout=MOMENT_S, on_timeout="cancel")
    finally:
        await note("undone")
    return found


@app.agent
async def reading(count: int) -> list[str]:
    """Takes messages as they come, and sends the last one on to itself."""
    taken = [str(await perdure.receive()) for _ in range(count)]
    await perdure.send(here(), taken[-1])
    return [*taken, await perdure.receive(str)]


@app.agent
async def writing(to: str) -> str:
    """Messages to a neighbour, with work between."""
    for number in range(2):
        await perdure.send(f"{here().rpartition('/')[0]}/{to}", await note(f"m{number}"))
    return to


@app.agent
async def correspondence() -> list[str]:
    """Two children, one of which writes to the other."""
    name = here()
    reader = await perdure.start("reading", 2, thread_id=f"{name}/reader", queue=name)
    wrote = await perdure.call("writing", "reader", thread_id=f"{name}/writer", queue=name)
    return [wrote, *await reader]


@app.agent
async def leading(word: str) -> list[str]:
    """Children that end, that fail, and that are cancelled by their parent."""
    name = here()
    stopped = await perdure.start("tidy", word, thread_id=f"{name}/tidy", queue=name)
    found = [await perdure.call("single", word, thread_id=f"{name}/single", queue=name)]
    try:
        await perdure.call("failing", word, thread_id=f"{name}/failing", queue=name)
    except perdure.RunFailed as failed:
        found.append(await note(type(failed).__name__))
    await stopped.cancel("not needed")
    try:
        await stopped
    except RunCancelled:
        found.append("cancelled")
    return found


@app.agent
async def tidy(word: str) -> str:
    """Waits for ever, and undoes what it did when it is cancelled."""
    booked = await note(word)
    try:
        await perdure.sleep("1d")
    except asyncio.CancelledError:
        await note(f"undo {booked}")
        await perdure.sleep(MOMENT_S)
        await note(f"undone {booked}")
        raise
    return word


@app.agent
async def undoing(word: str) -> str:
    """The same, with a child below that a cancellation reaches, too."""
    name = here()
    booked = await note(word)
    try:
        await perdure.call("tidy", f"{word}b", thread_id=f"{name}/below", queue=name)
    finally:
        await note(f"undo {booked}")
    return word


@app.agent
async def belated(word: str) -> str:
    """Waits beyond its deadline."""
    await perdure.sleep("1d")
    return word
