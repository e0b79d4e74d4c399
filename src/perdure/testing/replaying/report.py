"""What a replay found: differences, and what they mean for a run like the recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final


class Finding(StrEnum):
    """How code and record part."""

    DIVERGED = "diverged"
    """A step on record is called with other arguments: the run is held."""
    UNREADABLE = "does not load"
    """Recorded arguments, a state or a result do not fit what the code declares now: the run is held."""
    RAISES = "raises now"
    """The code raises where the record goes on: the run fails."""
    STUCK = "does not end"
    """The code waits for something that is neither a step nor on record; the replay gave up."""
    NEW = "would run now"
    """A step that is not on record: it would be executed."""
    OUTSIDE = "asks its app"
    """The agent starts or awaits other runs, of which its record knows nothing."""
    UNUSED = "not asked for"
    """A record that the code has no use for any more."""
    RESULT = "other result"
    ARGUMENTS = "other arguments"
    """Of the next super-step."""
    STATE = "other state"
    ENDING = "ends otherwise"
    """It returns where it went on with another super-step, or the other way round, or where it failed."""
    ERROR = "fails otherwise"


BREAKING: Final = frozenset({Finding.DIVERGED, Finding.UNREADABLE, Finding.RAISES, Finding.STUCK})
"""What holds or fails a run that this code goes on with; the rest is change, and may be meant."""

WHERE_CHARS: Final = 32
RECORDED_CHARS: Final = 40
NOW_CHARS: Final = 60
DETAILS_MAX: Final = 3
"""Whole stories on a page."""

HEADINGS: Final = ("super-step", "where", "finding", "recorded", "now")


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where code and record part."""

    finding: Finding
    super_step: int
    where: str
    """A step's key; or `result`, `arguments`, `state`, with a path inside it; or `end`."""
    recorded: str = ""
    now: str = ""
    detail: str = ""
    """The whole story, where there is one: what to do, or a traceback."""

    @property
    def breaks(self) -> bool:
        """Whether it holds or fails a run like this one."""
        return self.finding in BREAKING


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay's outcome. `str()` of it is a page for people."""

    run_id: str
    agent: str
    app: str
    state: str
    """The run's, when it was recorded."""
    deployment: str | None
    super_steps: int
    records: int
    """Recorded steps that the code asked for."""
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        """Whether this code can go on with runs like this one: none is held, or fails where this one did not."""
        return not any(difference.breaks for difference in self.differences)

    @property
    def same(self) -> bool:
        """Whether the code did exactly what is on record."""
        return not self.differences

    @property
    def diverged(self) -> tuple[Difference, ...]:
        """The steps that would hold a run as diverged."""
        return tuple(each for each in self.differences if each.finding is Finding.DIVERGED)

    def assert_ok(self) -> None:
        """Raise an `AssertionError` with the page unless `ok`: a gate before a deploy."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def assert_same(self) -> None:
        """Raise an `AssertionError` with the page unless `same`: a gate for a refactoring."""
        if not self.same:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        by = f" by {self.deployment}" if self.deployment else ""
        yield f"{self.run_id}, a run of agent {self.agent}, recorded{by} and {self.state}: {self._verdict()}"
        yield f"{_count(self.super_steps, 'super-step')}, {_count(self.records, 'recorded step')} taken from the record"
        if self.differences:
            yield ""
            yield from _table(self.differences)
        details = list(dict.fromkeys(each.detail.rstrip() for each in self.differences if each.detail))
        for detail in details[:DETAILS_MAX]:
            yield ""
            yield detail
        if len(details) > DETAILS_MAX:
            yield f"\n... and {len(details) - DETAILS_MAX} more like these"

    def _verdict(self) -> str:
        if self.same:
            return f"the code of app {self.app} does the same"
        if self.ok:
            return f"the code of app {self.app} can go on with it, and does not do the same"
        return f"the code of app {self.app} CANNOT go on with it"


def _table(differences: Sequence[Difference]) -> Iterator[str]:
    rows = [
        (
            str(each.super_step), _clip(each.where, WHERE_CHARS), each.finding.upper() if each.breaks else each.finding,
            _clip(each.recorded, RECORDED_CHARS), _clip(each.now, NOW_CHARS),
        )
        for each in differences
    ]  # fmt: skip
    widths = [max(len(cell) for cell in column) for column in zip(HEADINGS, *rows, strict=True)]
    for row in chain([HEADINGS], rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _clip(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
