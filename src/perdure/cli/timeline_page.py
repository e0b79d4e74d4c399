"""The timeline of a run, laid out by hand: its columns keep their places over all super-steps, and an error or a
take-over is a line of its own across them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import set_cell_size
from rich.text import Text

from perdure.cli.reading import RunLog
from perdure.cli.timeline import Handover, SuperStep, Try
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import Checkpoint, ErrorInfo, WorkerState, worker_id
from perdure.terminal.page import Page, shorten, value_lines
from perdure.terminal.text import clean, clean_block, clock, count, duration, first_line, short_type, size

WIDTH_MAX: Final = 120
"""On a wider terminal the columns would drift apart."""

LINES_MAX: Final = 300
"""Lines that are shown without `--all`."""

INDENT: Final = "    "
FIXED: Final = {"try": 3, "at": 12, "took": 11, "size": 10}
KEY_LEAST: Final = 14

_GONE: Final = {WorkerState.DEAD: "died", WorkerState.STOPPED: "stopped"}


def print_timeline(page: Page, log: RunLog, *, full: bool, everything: bool) -> None:
    """Every super-step; of a very long timeline its two ends."""
    lines = list(TimelinePage.of(page, log, full=full).lines())
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
    key: int
    worker: int

    @classmethod
    def of(cls, page: Page, log: RunLog, *, full: bool) -> TimelinePage:
        """Columns that fit the page; the key takes what the others leave."""
        width = min(page.width, WIDTH_MAX)
        worker = max([len(worker_id(step.worker)) for step in log.steps()] + [len("worker")])
        rest = len(INDENT) + worker + sum(FIXED.values()) + 2 * (len(FIXED) + 1)
        return cls(page, log, full, max(width - rest, KEY_LEAST), worker)

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
        for line in step.lines:
            match line:
                case Handover():
                    yield self._handover(line)
                case Try():
                    yield from self._try(line)
                case Checkpoint():
                    yield from self._step(line)

    def _step(self, row: Checkpoint) -> Iterator[Text]:
        marks = self.page.marks
        yield self._row(
            marks.bad if row.failed else marks.ok,
            row.key,
            str(row.attempt),
            worker_id(row.worker),
            clock(row.started_at),
            duration(row.ended_at - row.started_at),
            weight(self.log.size(row.payload)),
            style="red" if row.failed else "",
        )
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
        named = pad(clean(key), self.key)
        return Text(
            f"  {mark} {named}  {tries:>3}  {worker:<{self.worker}}  {at:<12}  {took:>11}  {weighs:>10}", style=style
        )


def weight(known: int | None) -> str:
    """A record's size; a large one lies in a blob, which only `--full` reads."""
    return f"> {size(INLINE_BYTES_MAX)}" if known is None else size(known)


def pad(text: str, width: int) -> str:
    """The text in exactly this many cells."""
    return set_cell_size(shorten(text, width), width)
