"""What a person sees of chaos: a line that moves, then the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from perdure.store import open_url
from perdure.terminal.page import Page, header
from perdure.terminal.text import clean, count

if TYPE_CHECKING:
    from perdure.testing.chaos.case import Violation
    from perdure.testing.chaos.report import Report
    from perdure.testing.chaos.script import Progress, Script

WIDTH_MAX: Final = 100
PLAIN_S: Final = 10.0
"""Between two lines of progress where stderr is no terminal."""

SHOWN_MAX: Final = 20
"""Violations on the page; the report file has all of them."""

ROWS_MAX: Final = 12
"""Rows of one of them."""


def introduce(script: Script) -> None:
    """What is about to happen."""
    page = _page()
    page.print(
        header(
            [
                ("name", script.name),
                ("store", open_url(script.store).url),
                ("seed", str(script.seed)),
                ("processes", f"{count(script.workers, 'worker')}, {count(script.clients, 'client')}, a recorder"),
            ]
        )
    )
    page.say()


@contextmanager
def shown_progress() -> Iterator[Callable[[Progress], None]]:
    """Show how far it is: on a terminal on one line that is written over, else a line now and then."""
    moves = sys.stderr.isatty()
    shown_at, shown_part = 0.0, ""

    def show(progress: Progress) -> None:
        nonlocal shown_at, shown_part
        text = line_of(progress)
        if moves:
            sys.stderr.write("\r" + text.ljust(WIDTH_MAX - 1)[: WIDTH_MAX - 1])
        elif time.monotonic() - shown_at >= PLAIN_S or progress.part != shown_part:
            shown_at, shown_part = time.monotonic(), progress.part
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    try:
        yield show
    finally:
        if moves:
            sys.stderr.write("\r" + " " * (WIDTH_MAX - 1) + "\r")
            sys.stderr.flush()


def line_of(progress: Progress) -> str:
    """How far it is."""
    return (
        f"{progress.part} {progress.seconds:5.0f} s: {count(progress.faults, 'fault')}, "
        f"{progress.told:,} runs seen to their end; alive: {count(progress.workers, 'worker')}, "
        f"{count(progress.clients, 'client')}"
    )


def print_report(report: Report, violations: Sequence[Violation]) -> None:
    """The numbers, and what was violated."""
    page = _page()
    page.print(header(facts(report)))
    page.say()
    if not violations:
        page.say(Text(f"{page.marks.ok} all rules hold", "green"))
        return
    for violation in violations[:SHOWN_MAX]:
        page.say(Text(f"{page.marks.bad} {violation.rule}: {clean(violation.where)}", "bold red"))
        for row in violation.rows[:ROWS_MAX]:
            page.print(Padding(Text(clean(row)), (0, 0, 0, 4)))
        if len(violation.rows) > ROWS_MAX:
            page.say(f"    and {len(violation.rows) - ROWS_MAX} more rows")
    page.say(Text(f"{count(len(violations), 'violation')}; seed {report.seed}", "bold red"))


def facts(report: Report) -> list[tuple[str, str | Text]]:
    """The report's numbers, in words."""
    runs = ", ".join(f"{number:,} {state}" for state, number in report.runs.items())
    held = ", ".join(f"{number} {reason}" for reason, number in report.held.items())
    resumed = "" if report.resume_s is None else f"; at worst {report.resume_s:.2f} s until one went on"
    return [
        ("faults", f"{sum(report.faults.values())} in {report.seconds:.0f} s\n" + listed(report.faults)),
        (
            "starts",
            f"{report.asked:,} keys asked for, {report.acknowledged:,} acknowledged ({report.joined:,} of them joined "
            f"another's run), {report.refused:,} refused because the thread was busy",
        ),
        ("runs", runs + (f"; held and sent on: {held}" if held else "")),
        (
            "steps",
            f"{report.steps:,} recorded, by {report.bodies:,} bodies, of which {report.failed_tries:,} failed; besides "
            f"{report.values:,} recorded values (random, uuid4), which have no body",
        ),
        (
            "repeats",
            f"{report.repeated:,} bodies ran again, of {report.in_flight:,} in flight at a loss",
        ),
        ("recoveries", f"{report.recoveries:,} runs taken over{resumed}"),
        ("the end", f"{report.settled_s:.1f} s until everything was terminal" if report.over else "interrupted"),
    ]


def listed(faults: dict[str, int]) -> str:
    """The faults, a line each."""
    return "\n".join(f"{number:5} {fault}" for fault, number in faults.items())


def _page() -> Page:
    page = Page()
    page.width = min(page.width, WIDTH_MAX)
    return page
