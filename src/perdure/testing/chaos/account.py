"""The account: the recorder's file, put in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from perdure.testing.chaos.testimony import (
    Asked,
    Began,
    Body,
    Ended,
    Fell,
    Held,
    Phase,
    Refused,
    Started,
    Struck,
    Tested,
    Testimony,
    Told,
)

BROKEN_OFF: Final = "CancelledError"
"""What a body is told whose run its worker had to let go of."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One time that a body ran."""

    began: Began
    ended: Ended | None
    """None if nothing more was heard of it."""

    @property
    def broken_off(self) -> bool:
        """It was told to stop."""
        return self.ended is not None and self.ended.error == BROKEN_OFF

    @property
    def failed(self) -> bool:
        """It raised an error of its own: the retry policy's business."""
        return self.ended is not None and self.ended.error not in (None, BROKEN_OFF)

    def __str__(self) -> str:
        at = self.began
        how = "not heard of again" if self.ended is None else self.ended.error or "ended"
        who = f"fence {at.fence}, w{at.worker}"
        return f"r{at.run} {at.super_step} {at.key} try {at.attempt}, {who}, {at.mono:.3f} s: {how}"


@dataclass(slots=True)
class Account:
    """Who said what. Lists are in the order of telling; a body's executions in the order of their fences and tries."""

    asked: dict[str, Asked] = field(default_factory=dict)
    started: dict[str, list[Started]] = field(default_factory=lambda: defaultdict(list))
    refused: list[Refused] = field(default_factory=list)
    tested: list[Tested] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    bodies: dict[Body, list[Execution]] = field(default_factory=lambda: defaultdict(list))
    struck: list[Struck] = field(default_factory=list)
    fell: list[Fell] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    phases: dict[str, Phase] = field(default_factory=dict)

    @property
    def executions(self) -> Iterable[Execution]:
        """Every time that any body ran."""
        return (execution for executions in self.bodies.values() for execution in executions)


def account_of(lines: Iterable[Testimony]) -> Account:
    """The account that these lines give."""
    made = Account()
    began: list[Began] = []
    ended: dict[tuple[Body, int, int], Ended] = {}
    for line in lines:
        match line:
            case Began():
                began.append(line)
            case Ended():
                ended[body_of(line), line.fence, line.attempt] = line
            case Asked():
                made.asked.setdefault(line.key, line)
            case Started():
                made.started[line.key].append(line)
            case Refused():
                made.refused.append(line)
            case Tested():
                made.tested.append(line)
            case Told():
                made.told.append(line)
            case Struck():
                made.struck.append(line)
            case Fell():
                made.fell.append(line)
            case Held():
                made.held.append(line)
            case Phase():
                made.phases.setdefault(line.name, line)
    for line in sorted(began, key=attrgetter("fence", "attempt")):
        body = body_of(line)
        made.bodies[body].append(Execution(line, ended.get((body, line.fence, line.attempt))))
    return made


def body_of(line: Began | Ended) -> Body:
    """The name of the body that a line is about."""
    return Body(line.run, line.super_step, line.key)
