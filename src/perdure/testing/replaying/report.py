"""What a replay found: differences, and what they mean for a run like the recorded one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    """The code waits for something that is neither a step, nor on record, nor time; the replay gave up."""
    NEW = "would run now"
    """A step that is not on record: it would be executed."""
    OUTSIDE = "asks its app"
    """The agent starts or awaits other runs, of which its record knows nothing."""
    WORLD = "reaches out"
    """The agent's own code opens a connection or starts a process, outside of its steps."""
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

LEAVING: Final = frozenset({Finding.NEW, Finding.OUTSIDE, Finding.WORLD})
"""Behind these nothing is on record, and nothing is looked at without an answer."""

ONCE: Final = frozenset({Finding.DIVERGED, Finding.NEW, Finding.OUTSIDE, Finding.WORLD, Finding.UNUSED})
"""Said of a step once, whatever its arguments are in each super-step."""

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
    renamed: str = ""
    """Of a step that would run now: the key of a record with the same arguments that nobody asks for; perhaps its old
    name."""

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
    recorded: int = 0
    """Recorded steps that there are."""

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
            raise AssertionError(str(self))

    def assert_same(self) -> None:
        """Raise an `AssertionError` with the page unless `same`: a gate for a refactoring."""
        if not self.same:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        by = f" by {self.deployment}" if self.deployment else ""
        yield f"{self.run_id}, a run of agent {self.agent}, recorded{by} and {self.state}: {self._verdict()}"
        yield f"{_count(self.super_steps, 'super-step')}, {self._taken()}"
        yield from self._costs()
        if self.differences:
            yield ""
            yield from _table(self.differences)
        details = list(dict.fromkeys(self._details()))
        for detail in details[:DETAILS_MAX]:
            yield ""
            yield detail
        if len(details) > DETAILS_MAX:
            yield f"\n... and {len(details) - DETAILS_MAX} more like these"

    def _details(self) -> Iterator[str]:
        """The whole stories; of what does not load, one for each parameter."""
        told: set[str] = set()
        for each in self.differences:
            if each.finding is Finding.UNREADABLE and each.where.startswith("parameter"):
                if each.where in told:
                    continue
                told.add(each.where)
            if each.detail:
                yield each.detail.rstrip()

    def _verdict(self) -> str:
        if self.same:
            return f"the code of app {self.app} does the same"
        if self.ok and any(each.renamed for each in self.differences):
            return f"the code of app {self.app} can go on with it, and does again what is on record"
        if self.ok:
            return f"the code of app {self.app} can go on with it, and does not do the same"
        return f"the code of app {self.app} CANNOT go on with it"

    def _taken(self) -> str:
        """How much of the record is of use."""
        if self.records == self.recorded:
            return f"{_count(self.records, 'recorded step')} taken from the record"
        taken = f"{self.records} of {self.recorded} recorded steps are taken"
        if not any(each.renamed for each in self.differences):
            ends = any(each.finding in LEAVING for each in self.differences)
            return f"{taken}; where the code leaves the record, the replay of a super-step ends" if ends else taken
        if self.records == 0:
            return f"{taken}: all are done (and paid) again"
        return f"{taken}: what has another name or place now is done (and paid) again"

    def _costs(self) -> Iterator[str]:
        """What is done again because it has another name now, and how not to."""
        again: dict[tuple[str, str], list[int]] = {}
        for each in self.differences:
            if each.renamed:
                now, was = _name(each.where), _name(each.renamed)
                pair = (each.where, each.renamed) if now == was else (now, was)
                again.setdefault(pair, []).append(each.super_step)
        if not again:
            return
        parts = [
            f"{now} in super-step{'s' if len(set(at)) > 1 else ''} {_spans(at)}, on record as {was}"
            for (now, was), at in again.items()
        ]
        yield f"steps that would run again: {'; '.join(parts)}"
        yield 'to take them from the record, keep the name (@step(name="…")) and the task it is called in; or deploy'
        yield "under another version, so that old runs stay on the code that began them (docs/how-to.md)"


def _table(differences: Sequence[Difference]) -> Iterator[str]:
    """A row for each; the same in several super-steps is one."""
    same: dict[tuple[str, ...], list[Difference]] = {}
    for each in differences:
        more = () if each.finding in ONCE else (each.recorded, each.now)
        same.setdefault((each.finding, each.where, *more), []).append(each)
    rows = [
        (
            _spans(each.super_step for each in group), _clip(one.where, WHERE_CHARS),
            one.finding.upper() if one.breaks else one.finding,
            _clip(one.recorded, RECORDED_CHARS), _clip(one.now, NOW_CHARS),
        )
        for group in same.values() for one in group[:1]
    ]  # fmt: skip
    widths = [max(len(cell) for cell in column) for column in zip(HEADINGS, *rows, strict=True)]
    for row in chain([HEADINGS], rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _spans(numbers: Iterable[int]) -> str:
    """Numbers in a few characters: `1-3, 7`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _name(key: str) -> str:
    """The step's name in a key, for people."""
    return key.removeprefix("=") if key.startswith("=") else key.rpartition("/")[2].partition("#")[0]


def _clip(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
