"""Rest: when no task of a run can go on unless something durable comes.

Which task waits on what is looked up, never guessed from time (`known.py`). A task that waits on anything else, a
socket, a sleep of the event loop, a lock that somebody else may hold, is *raw*: the run stays in memory. So it does
where a timer of the event loop hangs over a wait (`asyncio.timeout`): parked, the timer would be lost.

A look is cheap where something is raw, and is taken again when that has moved on: no polling, no time. What one look
finds, a second one confirms, when the loop has come round once: a future that is done tells who waits for it only then,
and one of asyncio's may pass it on to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from perdure.runtime.known import Durable, Known

BUSY_LOOKS: Final = 100
"""Looks in a row at a run with a task that is about to run, before the next one waits a moment."""

BUSY_PAUSE_S: Final = 0.01

CROWD: Final = 200
"""From so many tasks on, a look waits `CROWD_PAUSE_S` for each of them: it must not cost more than what it looks at."""

CROWD_PAUSE_S: Final = 20e-6

Future = asyncio.Future[Any]


class State(Enum):
    """What a task is doing."""

    READY = "ready"
    """About to run."""
    KNOWN = "known"
    """It waits on something of the run itself, or on something durable."""
    RAW = "raw"
    """It waits on something that nobody here knows."""


class Sight:
    """What a look has found: who waits on what."""

    def __init__(self, state: State, waiting: list[tuple[Future, Future]], pending: list[Future]) -> None:
        self.state = state
        self._waiting = waiting
        self._pending = pending

    def holds(self, tasks: list[Future]) -> bool:
        """Whether nothing has moved since, among the unfinished tasks of by now."""
        return (
            len(tasks) == len(self._waiting)
            and all(task is seen for task, (seen, _) in zip(tasks, self._waiting, strict=True))
            and all(_waits_on(task) is future for task, future in self._waiting)
            and not any(future.done() for future in self._pending)
        )


class Rest:
    """Looks at the tasks of one super-step, and says when they have come to rest."""

    def __init__(
        self, tasks: Callable[[], Iterable[Future]], waits: Callable[[], Iterable[Durable]], *,
        on_rest: Callable[[], None], on_raw: Callable[[], None],
    ) -> None:  # fmt: skip
        self._tasks = tasks
        self._waits = waits
        self._on_rest = on_rest
        """Called when all tasks are known to wait."""
        self._on_raw = on_raw
        """Called when they are not, for now."""
        self._loop = asyncio.get_running_loop()
        self._looking = False
        self._busy = 0
        self._count = 0
        self._sight: Sight | None = None
        """What is to be confirmed."""
        self._raw: Future | None = None
        """The task that was last found raw: looked at first, so that a busy branch costs the others nothing."""
        self._watched: Future | None = None
        """What keeps that task from being known. When it is done there is something new to be seen."""
        self.paused = 0
        """While this is not 0 nobody looks: a record is being loaded, and who waits for it is about to run; or the run
        is being parked."""
        self.settled: list[Callable[[], None]] = []
        """To be called once, when no task is about to run."""

    def look_soon(self) -> None:
        """Something has changed: look when the loop comes round."""
        if self._looking:
            return
        self._looking = True
        if self._count < CROWD or self._sight is not None:
            self._loop.call_soon(self._look)
        else:
            self._loop.call_later(self._count * CROWD_PAUSE_S, self._look)

    @contextmanager
    def nobody_looking(self) -> Iterator[None]:
        """A block in which nothing is seen, and so nothing is delivered."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1
            self.look_soon()

    def end(self) -> None:
        """Look no more, also where a look is already on its way."""
        self._watch(None)
        self.paused += 1
        self._raw = self._sight = None

    def _look(self) -> None:
        self._looking = False
        sight, self._sight = self._sight, None
        if self.paused:
            return
        tasks = [task for task in self._tasks() if not task.done()]
        if sight is not None and sight.holds(tasks):
            self._busy = 0
            if not self._settle() and sight.state is State.KNOWN:
                self._on_rest()
            return
        sight = self._see(tasks)
        if sight.state is State.RAW and not self.settled:
            self._busy = 0
            self._on_raw()
            return
        if sight.state is not State.READY:
            self._sight = sight
        self._come_again()

    def _settle(self) -> bool:
        settled, self.settled = self.settled, []
        for call in settled:
            call()
        return bool(settled)

    def _come_again(self) -> None:
        self._busy += 1
        if self._busy <= BUSY_LOOKS:
            self.look_soon()
            return
        self._settle()  # a task that never waits is as far as it gets
        self._on_raw()
        if not self._looking:
            self._looking = True
            self._loop.call_later(BUSY_PAUSE_S, self._look)

    def _see(self, tasks: list[Future]) -> Sight:
        """The state of the whole: ready if one task is, else raw if one is."""
        self._count = len(tasks)
        known = Known(tasks, self._waits())
        if not self.settled and self._raw is not None and not self._raw.done():
            state = self._of(self._raw, known)
            if state is not State.KNOWN:
                return Sight(state, [], [])
        found = State.KNOWN
        waiting: list[tuple[Future, Future]] = []
        for task in tasks:
            state = self._of(task, known)
            if state is State.READY:
                return Sight(state, [], [])
            found = state if state is State.RAW else found
            if found is State.RAW and not self.settled:
                return Sight(found, [], [])
            waiting.append((task, _waits_on(task) or task))
        return Sight(found, waiting, known.pending)

    def _of(self, task: Future, known: Known) -> State:
        waits_on = _waits_on(task)
        if waits_on is None or waits_on.done():
            return State.READY
        if task is self._raw and waits_on is self._watched:
            return State.RAW
        raw = known.keeps(task, waits_on) if isinstance(task, asyncio.Task) else task
        if raw is None:
            return State.KNOWN
        self._raw = task
        self._watch(raw)
        return State.RAW

    def _watch(self, future: Future | None) -> None:
        if future is self._watched:
            return
        if self._watched is not None:
            self._watched.remove_done_callback(self._moved)
        self._watched = future
        if future is not None:
            future.add_done_callback(self._moved)

    def _moved(self, future: Future) -> None:
        if future is self._watched:
            self._watched = None
        self.look_soon()


def _waits_on(task: Future) -> Future | None:
    """What a task waits on: None if it is about to run. Whatever else is started like a task waits on itself."""
    if not isinstance(task, asyncio.Task):
        return task
    waits_on: Future | None = task._fut_waiter  # type: ignore[attr-defined]
    return waits_on
