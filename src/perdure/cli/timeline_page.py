"""The timeline of a run, laid out by hand: its columns keep their places over all super-steps, and an error, a
take-over or a time in which the run was parked is a line of its own across them.

Work and waiting differ at a glance: what was worked on has a tick, what was waited for a clock, and time in nobody's
hands is a dotted line.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.cells import set_cell_size
from rich.text import Text

from perdure.cli import budget_words
from perdure.cli.awaiting import sentence
from perdure.cli.reading import RunLog
from perdure.cli.timeline import Forked, Handover, Line, Parked, SuperStep, Try
from perdure.cli.timeline_words import answered_in_words, asked_in_words, notes, span
from perdure.cli.verbs import WAITS, Verb, shown_key
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import (
    Checkpoint,
    ErrorInfo,
    Interrupt,
    InterruptState,
    Wait,
    WaitKind,
    WorkerState,
    worker_id,
)
from perdure.terminal.page import Page, shorten, value_lines
from perdure.terminal.text import clean, clean_block, clock, count, duration, first_line, short_type, size

WIDTH_MAX: Final = 120
"""On a wider terminal the columns would drift apart."""

LINES_MAX: Final = 300
"""Lines that are shown without `--all`."""

ALIKE_MIN: Final = 8
ALIKE_SHOWN: Final = 3
"""Of so many lines in a row about children, so many are shown without `--all`."""

INDENT: Final = "    "
FIXED: Final = {"try": 3, "at": 12, "took": 11, "size": 10}
KEY_LEAST: Final = 14

_GONE: Final = {WorkerState.DEAD: "died", WorkerState.STOPPED: "stopped"}


def print_timeline(page: Page, log: RunLog, *, full: bool, everything: bool) -> None:
    """Every super-step; of a very long timeline its two ends."""
    lines = list(TimelinePage.of(page, log, full=full, whole=full or everything).lines())
    cut = len(lines) - LINES_MAX
    if cut > 0 and not everything:
        half = LINES_MAX // 2
        hidden = Text(f"{INDENT}{page.marks.open} {count(cut, 'line')} left out; --all shows them", style="dim")
        lines = [*lines[:half], Text(), hidden, Text(), *lines[half + cut :]]
    for line in lines:
        if line.overflow == "fold":
            page.print(line)
        else:
            page.say(line)


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """A timeline and where its columns stand."""

    page: Page
    log: RunLog
    full: bool
    whole: bool
    """Whether nothing is left out."""
    key: int
    worker: int

    @classmethod
    def of(cls, page: Page, log: RunLog, *, full: bool, whole: bool) -> TimelinePage:
        """Columns that fit the page; the key takes what the others leave."""
        width = min(page.width, WIDTH_MAX)
        worker = max([len(worker_id(step.worker)) for step in log.steps()] + [len("worker")])
        rest = len(INDENT) + worker + sum(FIXED.values()) + 2 * (len(FIXED) + 1)
        return cls(page, log, full, whole, max(width - rest, KEY_LEAST), worker)

    def lines(self) -> Iterator[Text]:
        """The whole timeline."""
        if len(self.log.line.super_steps) < 2 and not any(step.lines for step in self.log.line.super_steps):
            yield Text("\nno step is recorded yet" if self.log.line.ended is None else "\nno steps", style="dim")
            return
        yield Text()
        yield self._row(" ", "step", "try", "worker", "at", "took", "size", style="dim")
        for step in self.log.line.super_steps:
            yield from self._super_step(step)

    def _super_step(self, step: SuperStep) -> Iterator[Text]:
        steps = sum(isinstance(line, Checkpoint) for line in step.lines)
        began = f"  {clock(step.boundary.ended_at)}" if step.boundary else ""
        yield Text.assemble((f"super-step {step.number}", "bold"), (f"{began}  {count(steps, 'step')}", "dim"))
        if self.full and step.boundary is not None:
            yield from self._value("arguments", self.log.arguments(step.boundary))
        parked_at: int | None = None
        woken: int | None = None
        left_out = self._left_out(step.lines)
        for line in step.lines:
            if id(line) in left_out:
                if (said := left_out[id(line)]) is not None:
                    yield Text(f"{INDENT}{self.page.marks.open} {said}", style="dim")
                continue
            match line:
                case Handover():
                    yield self._handover(line)
                case Parked():
                    parked_at = None if line.for_budget else line.from_at
                    yield self._parked(line)
                    continue
                case Try():
                    yield from self._try(line)
                case Wait():
                    yield from self._wait(line)
                case Interrupt():
                    yield from self._unanswered(line)
                case Forked():
                    yield self._forked(line)
                case Checkpoint():
                    if self.log.verb(line) not in WAITS:
                        woken = None
                    yield from self._step(line, parked_at=parked_at, woken=woken == line.fence)
                    woken = line.fence if parked_at is not None else woken
            parked_at = None

    def _left_out(self, lines: Sequence[Line]) -> dict[int, str | None]:
        """Of many starts of children in a row, or of many that are waited for: the lines that are not shown, and what
        the last of them says instead."""
        left_out: dict[int, str | None] = {}
        for kind, group in itertools.groupby(lines, self._of_a_child):
            alike = list(group)
            if kind is None or self.whole or len(alike) < ALIKE_MIN:
                continue
            rest = alike[ALIKE_SHOWN:]
            left_out |= dict.fromkeys(map(id, rest))
            left_out[id(rest[-1])] = f"{len(rest)} more {kind}; --all shows them"
        return left_out

    def _of_a_child(self, line: Line) -> str | None:
        """What a line without trouble says of a child, in the plural."""
        match line:
            case Wait(kind=WaitKind.RUN):
                return "children that it waits for"
            case Checkpoint(failed=False) if self.log.verb(line) is Verb.START:
                return "children started"
            case Checkpoint(failed=False) if self.log.verb(line) is Verb.RESULT:
                return "results of children"
            case _:
                return None

    def _step(self, row: Checkpoint, *, parked_at: int | None, woken: bool) -> Iterator[Text]:
        marks = self.page.marks
        took = span(row, self.log, parked_at=parked_at, woken=woken)
        ok = marks.wait if self.log.verb(row) in WAITS else marks.ok
        yield self._row(
            marks.bad if row.failed else ok,
            row.key,
            str(row.attempt),
            worker_id(row.worker),
            clock(took.at),
            "with above" if took.with_above else "" if took.took is None else duration(took.took),
            weight(self.log.size(row.payload)),
            style="red" if row.failed else "",
        )
        yield from (Text(f"{INDENT}  {note}", style="cyan") for note in notes(row, self.log))
        if row.failed:
            yield from self._error(self.log.error(row.payload), "failed for good", style="red")
        elif self.full:
            yield from self._value("value", self.log.value(row.payload))

    def _try(self, line: Try) -> Iterator[Text]:
        row = line.row
        ended = row.ended_at if row.ended_at is not None else self.log.now_us if line.open else None
        yield self._row(
            self.page.marks.open if line.open else self.page.marks.bad,
            row.key,
            str(row.attempt),
            self.log.holder(row.fence),
            clock(row.started_at),
            "" if ended is None else duration(ended - row.started_at),
            "",
            style="" if line.open else "yellow",
        )
        if row.error is not None:
            yield from self._error(self.log.error(row.error), "try failed", style="yellow")
        else:
            said = "running now" if line.open else "cut off: its worker went away, and how it ended is not known"
            yield Text(f"{INDENT}  {said}", style="" if line.open else "yellow")

    def _wait(self, wait: Wait) -> Iterator[Text]:
        """Something that is waited for now."""
        now_us = self.log.now_us
        took = duration(now_us - wait.opened_at)
        around = self.log.around
        question = around.questions.get(wait.target or 0) if wait.kind is WaitKind.ANSWER else None
        of_budget = question is not None and budget_words.about(question) is not None
        key = budget_words.label(question) if question is not None and of_budget else wait.key
        yield self._row(self.page.marks.wait, key, "", "", clock(wait.opened_at), took, "", style="magenta")
        if question is not None:
            yield Text(f"{INDENT}  {asked_in_words(question, self.log)}", style="cyan")
            if question.state is not InterruptState.OPEN:
                yield Text(f"{INDENT}  {answered_in_words(question, None, self.log)}", style="cyan")
            around = replace(around, questions={})  # it has been shown
        yield Text(f"{INDENT}  waits for {sentence(wait, around, now_us=now_us)}", style="magenta")

    def _unanswered(self, asked: Interrupt) -> Iterator[Text]:
        """A question of which no record is left: nobody waited for its answer to the end."""
        of_budget = budget_words.about(asked) is not None
        closed = budget_words.closed_at(asked, self.log.budgets if self.log.cancelled is None else {})
        took = duration(closed - asked.created_at) if of_budget and closed is not None else ""
        key = budget_words.label(asked) if of_budget else asked.key
        yield self._row(self.page.marks.wait, key, "", "", clock(asked.created_at), took, "", style="dim")
        yield Text(f"{INDENT}  {asked_in_words(asked, self.log)}", style="cyan")
        yield Text(f"{INDENT}  {answered_in_words(asked, None, self.log)}", style="dim")

    def _forked(self, line: Forked) -> Text:
        said = f"forked at super-step {line.super_step}"
        if line.count:
            said += f": {count(line.count, 'record')} above {'was' if line.count == 1 else 'were'} made by another run"
        return Text(f"  {self.page.marks.moved} {said}", style="bold cyan")

    def _parked(self, line: Parked) -> Text:
        """Time in nobody's hands."""
        until = self.log.now_us if line.until_at is None else line.until_at
        took = duration(until - line.from_at)
        went_on = "" if line.worker is None else f", then {worker_id(line.worker)} went on"
        said = f" parked for {took} by now " if line.until_at is None else f" parked for {took}{went_on} "
        sign = self.page.marks.parked
        width = min(self.page.width, WIDTH_MAX) - len(INDENT)
        return Text(INDENT + (sign * 2 + said).ljust(width, sign), style="dim magenta")

    def _error(self, error: ErrorInfo, said: str, *, style: str) -> Iterator[Text]:
        yield Text(f"{INDENT}  {said}: {short_type(error.type)}: {first_line(error.message)}", style=style)
        if self.full:
            for text in clean_block(error.traceback).splitlines():
                yield Text(f"{INDENT}    {text}", style="dim", overflow="fold")

    def _value(self, label: str, value: Any) -> Iterator[Text]:
        lines = value_lines(value, self.page.width - len(INDENT) - len(label) - 4)
        yield Text.assemble(f"{INDENT}  ", (f"{label}  ", "dim"), lines[0], overflow="fold")
        yield from (Text(f"{INDENT}  {line}", overflow="fold") for line in lines[1:])

    def _handover(self, line: Handover) -> Text:
        before, after = worker_id(line.from_worker), worker_id(line.to_worker)
        gone = self.log.workers.get(line.from_worker)
        how = _GONE.get(gone.state, "gave it back") if gone else "went away"
        told = f"{after} took it up again" if before == after else f"{before} {how}, {after} went on"
        fences = f"  (fence {line.from_fence} to {line.to_fence})"
        return Text(f"  {self.page.marks.moved} {told}{fences}", style="bold yellow")

    def _row(self, mark: str, key: str, *cells: str, style: str) -> Text:
        tries, worker, at, took, weighs = cells
        named = pad(clean(shown_key(key)), self.key)
        return Text(
            f"  {mark} {named}  {tries:>3}  {worker:<{self.worker}}  {at:<12}  {took:>11}  {weighs:>10}", style=style
        )


def weight(known: int | None) -> str:
    """A record's size; a large one lies in a blob, which only `--full` reads."""
    return f"> {size(INLINE_BYTES_MAX)}" if known is None else size(known)


def pad(text: str, width: int) -> str:
    """The text in exactly this many cells."""
    return set_cell_size(shorten(text, width), width)
