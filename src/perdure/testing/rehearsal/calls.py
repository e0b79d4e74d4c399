"""Calls of agents, as they show in the store, and the faults that strike there.

A step's body is seen as it begins. A sleep, a question, a message or a child has none; it shows in what is written:
what opens a wait, starts a child, files a record. Its name is the one in its key: `sleep`, `approve`, `receive`,
`send`, `start:parcel`, `result:parcel`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from perdure.core.changes import Change, CommitOutcome, Deliver, OpenWait, Place, place_of, record_of
from perdure.core.records import run_id
from perdure.core.requests import StartRun
from perdure.runtime.info import moment
from perdure.runtime.starting import CHILD_KEY
from perdure.testing.rehearsal.beside import Beside
from perdure.testing.rehearsal.faults import Fault, Moment, striking
from perdure.testing.simulation.wire import Request
from perdure.testing.simulation.world import World

_ASKED: Final = re.compile(r"~\d+\?$")
"""The end of the place where an effect waits for somebody to say what became of it."""

_ABOUT_BUDGET: Final = re.compile(r"~\d+\$\d+")
"""The place where a run asks whether a budget is raised."""

_BETWEEN_TRIES: Final = re.compile(r"~\d{1,9}$")
_CHILD: Final = re.compile(rf"{CHILD_KEY}r(\d+)/(\d+)/(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Waited:
    """A wait that began."""

    name: str
    """`sleep`, `receive`, `timeout`, a question's name, `result:` and a child's agent ..."""
    key: str
    kind: str
    """What for: `timer`, `answer`, `message`, `run` or `room`."""
    run_id: str
    super_step: int
    at: datetime
    due: datetime | None
    """When it is over in any case."""


class Calls:
    """Sees what processes ask of the database, before and after it is done."""

    def __init__(
        self, faults: Sequence[Fault], waits: list[Waited], world: World, on_question: Callable[[Place], None],
        beside: Beside,
    ) -> None:  # fmt: skip
        self.names: dict[Place, str] = {}
        """By run, super-step and key, the name of the step: a key need not show it."""
        self._faults = faults
        self._waits = waits
        self._world = world
        self._on_question = on_question
        self._beside = beside
        self._verbs: dict[tuple[Place, int], str] = {}
        """By place and fence, the names of the verbs that have begun."""

    def verbs(self) -> set[tuple[str, str]]:
        """The verbs that were called, by name and key."""
        return {(name, place[2]) for (place, _), name in self._verbs.items()}

    def coming(self, request: Request) -> bool:
        """A process asks for this; whether it dies before that is done."""
        dies = False
        for place, fence in _places(request):
            if place in self.names or (place, fence) in self._verbs:
                continue
            self._verbs[place, fence] = _name_in(place[2])
            struck = [self._strikes(moment, place) for moment in (Moment.BEFORE, *_at_once(request, place))]
            dies = dies or any(struck)
        return dies

    def written(self, request: Request, answer: Any) -> bool:
        """This was done; whether who asked for it dies, before it hears of it."""
        if isinstance(answer, Exception):
            return False
        struck: list[bool] = []
        if request.verb == "commit" and answer.alive:
            written = [change for change in request.args[1] if _holds(change, answer)]
            struck = [self._written(each) | self._beside.written(each) for each in written]
        elif request.verb == "start":
            begun = [place for place in map(_started_at, request.args[0]) if place is not None]
            struck = [self._strikes(Moment.IN, place) for place in begun]
        return any(struck)

    def _written(self, change: Change) -> bool:
        if (record := record_of(change)) is not None:
            return self._strikes(Moment.AFTER, (record.run, record.super_step, record.key))
        if not isinstance(change, OpenWait) or not _opens(change):
            return False
        place = change.run, change.super_step, change.key
        self._waits.append(_waited(change, self._world.wall_us()))
        if change.interrupt is not None:
            self._on_question(place)
        return self._strikes(Moment.IN, place)

    def _strikes(self, moment: Moment, place: Place) -> bool:
        name = self.names.get(place) or _name_in(place[2])
        return any(fault.crashes for fault in striking(self._faults, moment, name, place[2]))


def _name_in(key: str) -> str:
    if _ABOUT_BUDGET.fullmatch(key):
        return "budget"
    return _ASKED.sub("", key.rpartition("/")[2]).partition("#")[0]


def _holds(change: Change, answer: CommitOutcome) -> bool:
    """Whether a commit has written this change."""
    return change.run not in answer.lost | answer.refused.keys() and place_of(change) not in answer.bounced


def _waited(change: OpenWait, now_us: int) -> Waited:
    times = [change.due_at, None if change.delay_us is None else now_us + change.delay_us]
    due_us = min((time for time in times if time is not None), default=None)
    return Waited(
        _name_in(change.key), change.key, change.kind.name.lower(), run_id(change.run), change.super_step,
        moment(now_us), None if due_us is None else moment(due_us),
    )  # fmt: skip


def _opens(change: Any) -> bool:
    """Whether it opens a wait of a verb. (A step that waits for its next try is still the step.)"""
    return isinstance(change, OpenWait) and not _BETWEEN_TRIES.search(change.key)


def _at_once(request: Request, place: Place) -> Iterator[Moment]:
    """The moments between the beginning of a verb and its record, where it is done with its record: what is handed over
    has no wait to die in."""
    changes = request.args[1] if request.verb == "commit" else ()
    if any(isinstance(each, Deliver) and place_of(each) == place for each in changes):
        yield Moment.IN


def _places(request: Request) -> Iterator[tuple[Place, int]]:
    """The places of steps and verbs that a request writes at, and the fences of their runs."""
    if request.verb == "commit":
        for change in request.args[1]:
            at = record_of(change) or (change if _opens(change) else None)
            if at is not None:
                yield (at.run, at.super_step, at.key), change.fence
    elif request.verb == "start":
        for asked in request.args[0]:
            if (place := _started_at(asked)) is not None:
                yield place, asked.parent.fence


def _started_at(asked: StartRun) -> Place | None:
    """Where in its parent's code a child is started; None for a start from outside, or under a key of its own."""
    found = None if asked.parent is None or asked.key is None else _CHILD.match(asked.key)
    return None if found is None else (int(found[1]), int(found[2]), found[3])
