"""One life of a process: bury the dead, work, play the scenario, and perhaps die on the way.

A life ends by its fault, by itself with what it has to say, or with a traceback. What it has to say goes into a file:
a killed process cannot speak, and whoever waits for many of them must not wait for each one's pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.client.serving import worker_of
from perdure.core.limits import RECOVERIES_MAX
from perdure.errors import UsageError
from perdure.runtime.settings import worker_settings
from perdure.store.protocol import Store
from perdure.testing.crashpoints.endings import End, read_ends
from perdure.testing.crashpoints.faults import Fault, FaultyStore

if TYPE_CHECKING:
    from perdure.app import App

Scenario = Callable[..., Awaitable[Any]]

WORKER: Final[Mapping[str, Any]] = {"lease_s": 30, "poll_s": 0.05}
"""The worker beside a scenario. Nobody waits for this lease: the dead are declared dead."""

LOOK_S: Final = 0.01
"""Between two looks whether the last transaction of a dead process has let go of its worker's row."""


@dataclass(frozen=True, slots=True)
class Play:
    """What is played, in a form that another process can find: the functions and the app are variables of modules."""

    app: tuple[str, str]
    scenario: Scenario
    worker: Mapping[str, Any] | None
    """Settings of the worker that works beside it; None where the scenario brings its own."""
    named: bool
    """The scenario takes its name, and keeps to it: it shares its store with others."""
    chance: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def move_in(self) -> None:
        """Be where the test is: the same folder, the same environment."""
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environ)


@dataclass(frozen=True, slots=True)
class Life:
    """A process to be: which scenarios it plays on which store, how it fails, and whom it buries first."""

    store_url: str
    names: tuple[str, ...]
    faults: tuple[Fault, ...] = ()
    dead: frozenset[int] = frozenset()
    reads: bool = False
    """Whether it reads how its scenarios have ended."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a life that has ended by itself leaves: its writes, and how its scenarios have ended."""

    writes: tuple[str, ...]
    ends: dict[str, End] = field(default_factory=dict)


def live(play: Play, life: Life, said: Path) -> None:
    """Be that process, to its end."""
    said.write_bytes(pickle.dumps(asyncio.run(_live(play, life))))


async def _live(play: Play, life: Life) -> Word:
    app = find_app(play.app)
    app.use_store(life.store_url)
    store = FaultyStore(app._store, *life.faults)
    app._store = cast(Store, store)
    async with app:
        client = await app._client()
        await _bury(client.store, life.dead)
        async with _working(app, play, life), asyncio.TaskGroup() as group:
            for name in life.names:
                group.create_task(_played(app, play, name))
        ends = await read_ends(client.store, names=_read(play, life), chance=play.chance) if life.reads else {}
    return Word(store.writes, ends)


async def _played(app: App, play: Play, name: str) -> None:
    await (play.scenario(app, name) if play.named else play.scenario(app))


@contextlib.asynccontextmanager
async def _working(app: App, play: Play, life: Life) -> AsyncIterator[None]:
    """A worker beside the scenario, where it brings none of its own."""
    if play.worker is None:
        yield
        return
    queues = life.names if play.named else sorted({agent.settings.queue for agent in app.agents.values()})
    async with worker_of(app, worker_settings(**{"queues": queues, **WORKER, **play.worker})):
        yield


def _read(play: Play, life: Life) -> tuple[str, ...]:
    return life.names if play.named else ("",)


async def _bury(store: Store, dead: frozenset[int]) -> None:
    """Declare the workers of dead processes dead, as a neighbour would a moment later."""
    while dead and (left := [worker.id for worker in await store.workers() if worker.pid in dead]):
        if not await store.take_over(left, recoveries_max=RECOVERIES_MAX):
            await asyncio.sleep(LOOK_S)


def where_is(app: App) -> tuple[str, str]:
    """The module and the variable that hold the app, as pickle finds a function."""
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0].startswith("__")):
        for variable, value in tuple(getattr(module, "__dict__", {}).items()):
            if value is app:
                return name, variable
    raise UsageError(
        f"{app!r} is in no module's variable, and so another process cannot find it; write `app = App(...)` at the "
        "top of a module, as `perdure worker MODULE:APP` wants it too"
    )


def find_app(place: tuple[str, str]) -> App:
    """The app again, in another process."""
    from perdure.app import App

    found = getattr(importlib.import_module(place[0]), place[1])
    assert isinstance(found, App), place
    return found


def check_scenario(scenario: Scenario) -> None:
    """Refuse what another process could not find, with the remedy."""
    if not inspect.iscoroutinefunction(scenario) or "<locals>" in scenario.__qualname__:
        raise UsageError(
            f"{scenario!r} must be an `async def` at the top of a module: each point plays it in a process"
        )
