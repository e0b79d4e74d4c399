"""The agents of the crash tests. Their steps witness what they do in the side log.

`app` finds its store in `$PERDURE_STORE`, as any app does; `app_on(url)` is the same app for a test's own process. The
results depend on the arguments alone, so that each test knows what must come out however often something died.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import perdure
from perdure import Again, App, Retry
from perdure.runtime.agent import Agent
from tests.support.sidelog import say, told

QUICK = Retry(attempts=3, delay_s=0.01)
"""Retries as by default, without the wait."""


async def pause(seconds: float) -> None:
    """What a model call is here."""
    await asyncio.sleep(seconds)


async def opened(gate: str) -> None:
    """Wait until a file appears: how a test says when a body may go on."""
    while not Path(gate).exists():
        await pause(0.01)


# -- fan-out, super-steps, state -----------------------------------------------------------------------------


@dataclass
class Tally:
    """The state of a survey."""

    total: int = 0
    rounds: list[int] = field(default_factory=list)


@perdure.step(retry=QUICK)
async def look_up(number: int, place: int, ms: float) -> int:
    with told():
        await pause(random.random() * ms / 1000)
    return number * 10 + place


@perdure.step(retry=QUICK)
async def weigh(value: int, ms: float) -> int:
    with told():
        await pause(random.random() * ms / 1000)
    return value * 2


async def branch(number: int, place: int, ms: float) -> int:
    """Two steps in a row, in a task of its own."""
    return await weigh(await look_up(number, place, ms), ms)


async def survey(number: int, ms: float = 5, round: int = 1, *, state: Tally) -> int | Again:
    """Fan out by gather, then by a task group, in each of two super-steps."""
    found = await asyncio.gather(*(look_up(number, place, ms) for place in range(3)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(number, place, ms)) for place in (7, 8)]
    state.total += sum(found) + sum(task.result() for task in tasks)
    state.rounds.append(round)
    if round < 2:
        return Again(number, ms, round + 1)
    return state.total


def survey_result(number: int) -> int:
    """What a survey must answer."""
    return 2 * (sum(number * 10 + place for place in range(3)) + sum(2 * (number * 10 + place) for place in (7, 8)))


SURVEY_STEPS = 2 * (3 + 2 * 2)
"""Records of a survey."""


# -- bodies that a test holds open ---------------------------------------------------------------------------


@perdure.step
async def hold_open(gate: str) -> str:
    with told():
        await opened(gate)
    return "opened"


@perdure.step(retry=QUICK)
async def note(text: str) -> str:
    with told(text=text):
        await pause(0)
    return text.upper()


async def gated(gate: str, text: str = "after") -> str:
    """A step that waits for the gate, and one after it."""
    return await hold_open(gate) + " " + await note(text)


async def idling(gate: str, text: str = "idle") -> str:
    """A step; then the agent waits in its own code, with no body in flight; then another step."""
    before = await note(text + " before")
    await opened(gate)
    return before + " " + await note(text + " after")


async def single(text: str) -> str:
    """One step."""
    return await note(text)


async def patient(gate: str) -> str:
    """A step that may take as long as it likes."""
    return await hold_open.options(timeout=None)(gate)


async def impatient(gate: str) -> str:
    """The same step, with a limit."""
    return await hold_open.options(timeout=0.1, retry=QUICK)(gate)


# -- bodies that misbehave -----------------------------------------------------------------------------------


@perdure.step
async def hog(seconds: float) -> str:
    with told():
        time.sleep(seconds)  # THE BLOCKING LINE
    return "blocked"


async def blocking(seconds: float) -> str:
    """A step that blocks the event loop, and one after it."""
    return await hog(seconds) + " " + await note("after")


@perdure.step(retry=QUICK)
async def die() -> str:
    with told():
        os.kill(os.getpid(), signal.SIGKILL)
    return "never"


async def doomed() -> str:
    """Kills its worker, always."""
    return await die()


async def lethal() -> str:
    """Kills its worker in its own code, before anything is recorded."""
    say("begin", run=perdure.current().run_id, super_step=1, key="", attempt=perdure.current().attempt)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


class OddError(Exception):
    """Its constructor takes what no generic code could know."""

    def __init__(self, *, code: int, where: str) -> None:
        super().__init__(f"code {code} at {where}")
        self.code = code
        self.where = where


@perdure.step
async def break_oddly() -> str:
    with told():
        raise OddError(code=7, where="the gate")


async def odd() -> str:
    """Fails with an exception that cannot be rebuilt from its text."""
    return await break_oddly()


ODD_VALUES: dict[str, Any] = {
    "nul": "a\0b",
    "surrogate": "a\ud800b",
    "nan": float("nan"),
    "huge": 10**400,
    "nested nul": {"deep": [{"x": "a\0b"}]},
    "nul in a key": {"a\0b": 1},
    "surrogate in a key": {"a\ud800b": 1},
    "nan in a list": [1.0, float("nan"), float("-inf")],
    "huge in a key": {10**400: 1},
    "object": object(),
}


@perdure.step
async def give(what: str) -> Any:
    with told(value=what):
        return ODD_VALUES[what]


@perdure.step
async def complain(text: str) -> str:
    with told():
        raise ValueError(text)


async def giving(what: str, as_error: bool = False) -> Any:
    """A step that returns, or complains about, an odd value."""
    return await (complain(str(ODD_VALUES[what])) if as_error else give(what))


@perdure.step
async def make_bytes(mib: int) -> bytes:
    with told():
        return b"\x5a" * (mib * 1024 * 1024)


async def bulky(mib: int) -> int:
    """Records a large value."""
    return len(await make_bytes(mib))


async def wrong_again(number: int) -> int | Again:
    """Goes round with an argument that the agent does not take."""
    await note("before again")
    return Again("not a number")


# -- a tool, and a model that fails ---------------------------------------------------------------------------


@perdure.step
async def charge(customer: str) -> str:
    with told(customer=customer):
        return f"receipt of {customer}"


@perdure.step(retry=1)
async def complete(prompt: str, folder: str) -> str:
    """A model call that fails at its first two calls, in whatever processes they are."""
    with told():
        if len(list(Path(folder).iterdir())) < 2:
            tempfile.mkdtemp(dir=folder)
            raise ConnectionError("the model is away")
        await opened(f"{folder}.gate")
        return prompt.upper()


async def buying(customer: str, folder: str) -> str:
    """A tool that succeeds, then a model call."""
    return await complete(await charge(customer), folder)


# -- a provider that is busy ---------------------------------------------------------------------------------


class Busy(Exception):
    """What an HTTP client raises for a 429."""

    def __init__(self, retry_after: str) -> None:
        super().__init__("429 Too Many Requests")
        self.status_code = 429
        self.headers = {"Retry-After": retry_after}


def answer_when_free(opens: str, wait_s: int, as_date: bool) -> str:
    """A provider that refuses everybody until `wait_s` after its first call. The file keeps when that was, for
    providers outlive workers."""
    path, now = Path(opens), time.time()
    if not path.exists():
        path.write_text(str(now + wait_s))
    free_at = float(path.read_text())
    if now < free_at:
        raise Busy(format_datetime(datetime.fromtimestamp(free_at + 1, UTC), usegmt=True) if as_date else str(wait_s))
    return "answered"


@perdure.step(retry=Retry(attempts=2, delay_s=0.01))
async def ask_provider(opens: str, wait_s: int, as_date: bool) -> str:
    with told():
        return answer_when_free(opens, wait_s, as_date)


async def polite(opens: str, wait_s: int, as_date: bool = False) -> str:
    """A step of two tries: it succeeds if the second comes when the provider has said."""
    return await ask_provider(opens, wait_s, as_date)


async def polite_as_a_whole(opens: str, wait_s: int, as_date: bool = False) -> str:
    """The same, where the step has one try and the agent two."""
    return await ask_provider.options(retry=1)(opens, wait_s, as_date)


# -- usage ---------------------------------------------------------------------------------------------------


@dataclass
class Usage:
    """What the calls of a run used."""

    calls: int = 0
    tokens: int = 0


@perdure.step(retry=QUICK)
async def spend(tokens: int) -> Usage:
    with told():
        await pause(0)
    return Usage(calls=1, tokens=tokens)


async def spending(calls: int, round: int = 1, *, state: Usage) -> Usage | Again:
    """Each call's usage is in its record; the agent adds it up, in two super-steps."""
    for each in await asyncio.gather(*(spend(10 * round + call) for call in range(calls))):
        state.calls += each.calls
        state.tokens += each.tokens
    state.tokens += (await spend(1000)).tokens
    return Again(calls, round + 1) if round < 2 else state


# -- a script with every kind of write -----------------------------------------------------------------------


@perdure.step(retry=QUICK, durability="sync")
async def stumble(text: str) -> str:
    """Fails at the first try."""
    with told(text=text):
        if perdure.current().attempt == 1:
            raise ConnectionError("the line was busy")
    return text.upper()


async def scripted(word: str, round: int = 1, *, state: Tally) -> str | Again:
    """Steps one by one, a fan-out, a retried step, recorded values, state, and two super-steps."""
    ticket = perdure.uuid4()
    first = await note.options(durability="sync")(f"{word}{round}")
    pair = await asyncio.gather(note(first + "a"), note(first + "b"))
    again = await stumble(f"{ticket.version}{pair[1]}")
    state.total += len(again)
    state.rounds.append(round)
    if round < 2:
        return Again(word, round + 1)
    return f"{first} {pair[0]} {again} {state.total}"


def app_on(store: str | None = None, name: str = "crash") -> App:
    """The app with all agents, on a store."""
    made = App(name, store=store)
    for fn in (survey, gated, idling, single, patient, impatient, buying):
        made.agent(fn)
    made.agent(polite)
    made.agent(retry=Retry(attempts=2, delay_s=0.01, retry_on=perdure.StepFailed))(polite_as_a_whole)
    for fn in (blocking, doomed, lethal, odd, giving, bulky, wrong_again):
        made.agent(fn)
    made.agent(durability="sync")(scripted)
    made.agent(durability="sync")(spending)
    return made


app = app_on()


def agent(name: str) -> Agent[..., Any]:
    """An agent of this module by name."""
    return app.agents[name]


def witness(event: str, fields: dict[str, Any]) -> None:
    """A telemetry handler that writes every event into the side log."""
    say("event", event=event, fields={name: str(value) for name, value in fields.items()})
