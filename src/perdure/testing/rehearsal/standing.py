"""Where everything stands, in words: what a rehearsal says when something does not come to its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, assert_never

from perdure.core.records import Run, RunState, Wait, WaitKind, interrupt_id, run_id
from perdure.store.memory.tables import Tables
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.world import World

SHOWN_MAX: Final = 20
"""Runs that a message tells of."""

TURNS_FOR_NOTHING_MAX: Final = 1_000
"""Turns in which neither time passed nor anybody asked the store for anything; a turn is up to 50 rounds of a loop."""

TURNS_A_MINUTE_MAX: Final = 10_000
BODIES_A_MINUTE_MAX: Final = 20_000
"""What happens in a minute of virtual time; a thousand runs at once take a few hundred turns."""

UNITS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))


class NeverEnded(AssertionError):
    """In a rehearsal: what was waited for did not happen within the (virtual) time given, or time itself did not pass.
    The message says where every run stands, and what it needs."""


class Begun(Protocol):
    """A body that began."""

    @property
    def run_id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def at(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known on the stage at one moment."""

    tables: Tables
    agents: Mapping[str, Any]
    queues: Sequence[str]
    deployment: str
    executions: Sequence[Begun]

    def __str__(self) -> str:
        rows = [row for _, row in sorted(self.tables.runs.items()) if row.ended_at is None]
        if not rows:
            what = "every run has ended" if self.tables.runs else "no run was started"
            return f"{what}; the scene itself still waits"
        lines = [self._of(row) for row in rows[:SHOWN_MAX]]
        if len(rows) > SHOWN_MAX:
            lines.append(f"{len(rows) - SHOWN_MAX} more have not ended")
        return "\n  ".join(["", *lines]) if len(lines) > 1 else lines[0]

    def _of(self, row: Run) -> str:
        """Where an unfinished run stands, and what would send it on."""
        begun = f"{run_id(row.id)} of {row.agent} is {row.state}"
        if row.deployment is not None:
            begun += f", pinned to {plain(row.deployment)}"
        return f"{begun}: {self._why(row)}"

    def _why(self, row: Run) -> str:
        match row.state:
            case RunState.HELD:
                return f"{row.reason} ({row.detail}); mend the cause, then `await app.release({run_id(row.id)!r})`"
            case RunState.QUEUED:
                return self._waits_for(row)
            case RunState.WAITING:
                return self._parked(row)
            case _:
                return self._executes(row)

    def _waits_for(self, row: Run) -> str:
        wait_s = (row.ready_at - self.tables.now_us()) / 1e6
        if not row.ready:
            head = self.tables.threads[row.thread].head
            return f"its turn on thread {row.thread_id!r} comes after {'another run' if head is None else run_id(head)}"
        if row.queue not in self.queues:
            return f"no agent on the stage has queue {row.queue!r} (there is {', '.join(self.queues)})"
        if row.agent not in self.agents:
            return f"no worker has this agent (they have {', '.join(sorted(self.agents))}); deploy code that does"
        if row.deployment not in (None, self.deployment):
            wanted = plain(row.deployment or "")
            return (
                f"the worker is of {plain(self.deployment)}; let it end before you deploy, or deploy({wanted!r}, ...) "
                "again"
            )
        if wait_s > 0:
            return f"it is due in {lasting(wait_s)}; give a longer within=, or stage.advance(...)"
        return "it is about to be claimed"

    def _parked(self, row: Run) -> str:
        waits = sorted(self.tables.waits[row.id].values(), key=lambda wait: wait.key)
        return "it waits for " + " and for ".join(map(self._of_wait, waits))

    def _of_wait(self, wait: Wait) -> str:
        """What a run waits for, and how a test gives it."""
        left_s = None if wait.due_at is None else (wait.due_at - self.tables.now_us()) / 1e6
        until = "" if left_s is None else f", for {lasting(left_s)} more"
        target = wait.target or 0
        match wait.kind:
            case WaitKind.TIMER:
                return f"a time in {lasting(left_s or 0)}; give a longer within=, or stage.advance(...)"
            case WaitKind.ANSWER:
                name = self.tables.interrupts[target].name
                return f"an answer to {name!r} ({interrupt_id(target)}){until}; stage.answer({name!r}, ...)"
            case WaitKind.MESSAGE:
                wanted = f" of type {' or '.join(wait.labels)}" if wait.labels else ""
                thread_id = self.tables.runs[wait.run].thread_id
                return f"a message{wanted}{until}; stage.send({thread_id!r}, ...)"
            case WaitKind.RUN:
                return f"the end of {run_id(target)}"
            case WaitKind.ROOM:
                return f"room in the mailbox of thread {self.tables.threads[target].thread_id!r}"
            case _:
                assert_never(wait.kind)

    def _executes(self, row: Run) -> str:
        last = next((each for each in reversed(self.executions) if each.run_id == run_id(row.id)), None)
        if last is None:
            return "no body of a step has begun; its agent waits for something that is no step"
        ago_s = self.tables.now_us() / 1e6 - last.at.timestamp()
        return (
            f"the last body that began is {last.key!r}, try {last.attempt}, {lasting(ago_s)} ago; if it waits for what "
            "never comes, answer_step it, or give the step a timeout="
        )


class Circle:
    """Sees that somebody goes round and round, so that time never passes, or hardly."""

    def __init__(self, world: World, database: Database, executions: Sequence[object]) -> None:
        self._world = world
        self._database = database
        self._executions = executions
        self._at = (-1.0, -1)
        self._turns = 0
        self._began = (world.now, world.turns, len(executions))

    def look(self) -> None:
        """Once a turn. Raises `NeverEnded`."""
        self._look_at_this_moment()
        began_s, turns, executions = self._began
        if self._world.now - began_s > 60:
            self._began = (self._world.now, self._world.turns, len(self._executions))
            return
        bodies = len(self._executions) - executions
        if self._world.turns - turns > TURNS_A_MINUTE_MAX or bodies > BODIES_A_MINUTE_MAX:
            raise NeverEnded(
                f"{self.who()} goes round and round: {bodies} bodies of steps began in "
                f"{self._world.now - began_s:.3g} s of virtual time, and there is no end"
            )

    def _look_at_this_moment(self) -> None:
        at = (self._world.now, self._database.requests)
        if at != self._at:
            self._at, self._turns = at, 0
            return
        self._turns += 1
        if self._turns > TURNS_FOR_NOTHING_MAX:
            raise NeverEnded(f"time does not pass, because {self.who()} goes on and on without waiting for anything")

    def who(self) -> str:
        """Whoever is about to go on, by the code that it is in."""
        places = {_place(task) for loop in self._world.loops for task in _ready(loop.ready)}
        return " and ".join(sorted(places)) or "something"


def _ready(handles: Sequence[asyncio.Handle]) -> Iterator[asyncio.Task[Any]]:
    """The tasks that go on next."""
    for handle in handles:
        task = getattr(getattr(handle, "_callback", None), "__self__", None)
        if isinstance(task, asyncio.Task):
            yield task


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost code of the user's in a task, else the task."""
    found = f"task {task.get_name()!r}"
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        at = next((frame for kind in ("cr", "gi", "ag") if (frame := getattr(coroutine, f"{kind}_frame", None))), None)
        if at is not None and at.f_globals.get("__name__", "").partition(".")[0] not in {"perdure", "asyncio"}:
            found = f"{at.f_code.co_name} ({at.f_code.co_filename}:{at.f_lineno})"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found


def plain(deployment: str) -> str:
    """A deployment's name as it was given, without the version of Python."""
    return re.sub(r"\+py\d+\.\d+$", "", deployment)


def lasting(amount_s: float) -> str:
    """A duration for people: `30 days`, `1.5 hours`."""
    for unit_s, name in UNITS:
        amount = round(amount_s / unit_s, 1)
        if amount >= 1:
            return f"{amount:g} {name}{'' if amount == 1 else 's'}"
    return f"{amount_s:.3g} seconds"
