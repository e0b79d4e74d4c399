"""The points of a scenario, and what becomes of it when a process dies at each of them.

Five stages: play it undisturbed, and count its writes; let a process die before, during and after each of them; bury
the dead and play it again in a fresh process; read how it has ended; compare.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from perdure.testing.crashpoints.endings import End
from perdure.testing.crashpoints.faults import MOMENTS, WRITES, Fault, Moment
from perdure.testing.crashpoints.lives import Life, Play, find_app
from perdure.testing.crashpoints.nursery import KILLED, Grave, Nursery

UNDISTURBED: Final = "undisturbed"
COUNTED: Final = "counted"

LIVES_A_CORE: Final = 4
"""Processes at a time: a life mostly waits for the disk."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be enumerated."""

    play: Play
    store_url: str | None
    """The store that all points share; None: each has a SQLite file of its own."""
    verbs: frozenset[str] = WRITES
    moments: tuple[Moment, ...] = MOMENTS
    first: Fault | None = None
    always: tuple[Fault, ...] = ()

    def life(self, folder: Path, *names: str) -> Life:
        """A life on the store of these names."""
        return Life(self.store_url or f"sqlite:///{folder.absolute() / names[0]}.db", names)


@dataclass(frozen=True, slots=True)
class Point:
    """The n-th write of a verb, and the moment around it."""

    verb: str
    nth: int
    moment: Moment

    @property
    def name(self) -> str:
        return f"{self.moment}-{self.verb}-{self.nth}"

    @property
    def fault(self) -> Fault:
        return Fault(self.nth, self.moment, verbs=frozenset({self.verb}))


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of the scenario whose process was to die at a point."""

    point: Point
    died: bool
    """False where this life was over before: how writes are grouped depends on the moment."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What an enumeration has found."""

    writes: tuple[str, ...]
    trials: tuple[Trial, ...]
    end: End
    killed: frozenset[int]
    """The ids of the processes that died by their faults."""
    seconds: float

    @property
    def failed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.problem]

    @property
    def died(self) -> int:
        return sum(trial.died for trial in self.trials)

    def check(self) -> None:
        """Raise `AssertionError` if a point came to another end, with the first of them in full."""
        if failed := self.failed:
            names = ", ".join(trial.point.name for trial in failed)
            raise AssertionError(f"{self}; other ends at: {names}\n\n{failed[0].point.name}:\n{failed[0].problem}")

    def __str__(self) -> str:
        same = len(self.trials) - len(self.failed)
        return f"{len(self.writes)} writes, {len(self.trials)} points: {self.died} died, {same} came to the same end"


class Stopped(Exception):
    """The enumeration cannot go on: the scenario itself does not work."""


def enumerate_points(plan: Plan) -> Report:
    """Try all of them. In a process without threads: it forks."""
    with tempfile.TemporaryDirectory(prefix="perdure-points-") as folder:
        return _Enumeration(plan, Path(folder)).report()


class _Enumeration:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._cores = os.cpu_count() or 1
        find_app(plan.play.app).use_store(plan.life(folder, UNDISTURBED).store_url)  # imports what every life needs
        self._nursery = Nursery(plan.play, folder, width=LIVES_A_CORE * self._cores)
        self._dead: dict[str, set[int]] = {}

    def report(self) -> Report:
        began = time.monotonic()
        end, writes = self._undisturbed()
        points = list(_points(writes, self._plan))
        names = [point.name for point in points]
        self._first(names)
        doomed = self._nursery.see([self._second(point.name, point.fault) for point in points])
        for point, grave in zip(points, doomed, strict=True):
            self._note(point.name, grave)
        ends = self._recover(names)
        trials = [_trial(point, grave, end, ends[point.name]) for point, grave in zip(points, doomed, strict=True)]
        killed = frozenset().union(*self._dead.values())
        return Report(tuple(writes), tuple(trials), end, killed, time.monotonic() - began)

    def _undisturbed(self) -> tuple[End, tuple[str, ...]]:
        """How it ends if nothing happens, and the writes of the life whose points are tried."""
        (grave,) = self._nursery.see([replace(self._plan.life(self._folder, UNDISTURBED), reads=True)])
        end, writes = _word(grave, UNDISTURBED)
        if self._plan.first is None and not self._plan.always:
            return end, writes
        self._first([COUNTED])
        (grave,) = self._nursery.see([replace(self._second(COUNTED), reads=True)])
        other, writes = _word(grave, COUNTED)
        if other != end:
            raise Stopped(f"it ends otherwise without any of the points:\n{end.differences(other)}")
        return end, writes

    def _first(self, names: list[str]) -> None:
        """The life before, which ends by the first fault."""
        if self._plan.first is None:
            return
        lives = [replace(self._plan.life(self._folder, name), faults=(self._plan.first,)) for name in names]
        for name, grave in zip(names, self._nursery.see(lives), strict=True):
            if grave.code != KILLED:
                raise Stopped(f"no process died by the first fault, {self._plan.first}:\n{grave.printed}")
            self._note(name, grave)

    def _second(self, name: str, *faults: Fault) -> Life:
        life = self._plan.life(self._folder, name)
        return replace(life, faults=(*self._plan.always, *faults), dead=frozenset(self._dead.get(name, ())))

    def _note(self, name: str, grave: Grave) -> None:
        if grave.code == KILLED:
            self._dead.setdefault(name, set()).add(grave.pid)

    def _recover(self, names: list[str]) -> dict[str, End | str]:
        """Play each again to its end in a fresh process; those that share a store also share a few processes."""
        shares = self._cores if self._plan.store_url else len(names)
        groups = [group for group in (tuple(names[at::shares]) for at in range(shares)) if group]
        lives = [
            replace(
                self._plan.life(self._folder, *group), reads=True,
                dead=frozenset().union(*(self._dead.get(name, ()) for name in group)),
            )
            for group in groups
        ]  # fmt: skip
        ends: dict[str, End | str] = {}
        for group, grave in zip(groups, self._nursery.see(lives), strict=True):
            for name in group:
                word = grave.word
                ends[name] = f"it did not recover:\n{grave.printed}" if word is None else _end_of(word.ends, name)
        return ends


def _points(writes: Iterable[str], plan: Plan) -> Iterator[Point]:
    counts: Counter[str] = Counter()
    for verb in writes:
        if verb in plan.verbs:
            counts[verb] += 1
            for moment in plan.moments:
                yield Point(verb, counts[verb], moment)


def _trial(point: Point, doomed: Grave, expected: End, end: End | str) -> Trial:
    died = doomed.code == KILLED
    if not died and doomed.code != 0:
        return Trial(point, died, f"it ended with {doomed.code} before its point:\n{doomed.printed}")
    if isinstance(end, str):
        return Trial(point, died, end)
    return Trial(point, died, "" if end == expected else expected.differences(end))


def _word(grave: Grave, name: str) -> tuple[End, tuple[str, ...]]:
    if grave.word is None:
        raise Stopped(f"the {name} life ended with {grave.code}:\n{grave.printed}")
    return _end_of(grave.word.ends, name), grave.word.writes


def _end_of(ends: dict[str, End], name: str) -> End:
    """One scenario's end; a store of its own holds only that."""
    return ends[name] if name in ends else ends[""]
