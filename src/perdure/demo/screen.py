"""What the viewer sees while a scene plays: a live page on a terminal, plain lines anywhere else."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

WIDTH_MAX: Final = 100
NAME_CHARS: Final = 12
PLAIN_SHARE: Final = 0.2
"""Without a terminal, a line at each such share of the runs."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the page shows it."""

    name: str
    pid: int
    state: str
    runs: int
    in_flight: int
    begun: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the scene is."""

    answered: int
    asked: int
    bodies: int
    workers: tuple[WorkerView, ...]


class PlainScreen:
    """Lines, each with the seconds since the curtain rose."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.began = time.monotonic()
        self.shown = 0.0

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def facts(self, rows: Sequence[tuple[str, str]]) -> None:
        """What is about to be played."""
        for name, value in rows:
            self.console.print(fact_lines(name, value, self.console.width), soft_wrap=True)

    def tell(self, text: str, *, style: str = "") -> None:
        """Something happened."""
        at = f"{time.monotonic() - self.began:6.1f} s  "
        self.console.print(Text.assemble((at, "dim"), (text, style)), soft_wrap=True)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While this lasts, somebody else writes on the terminal."""
        yield

    def show(self, progress: Progress) -> None:
        """The state of things; called often."""
        share = progress.answered / progress.asked
        if share >= self.shown + PLAIN_SHARE or (share == 1 and self.shown < 1):
            self.shown = share if share == 1 else share // PLAIN_SHARE * PLAIN_SHARE
            self.tell(f"{progress.answered} of {progress.asked} answered, {progress.bodies:,} step bodies begun")


class LiveScreen(PlainScreen):
    """The same lines, and below them a page that moves."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        super().__enter__()
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.live.stop()
        yield
        self.live.start()

    def show(self, progress: Progress) -> None:
        self.live.update(page(progress, time.monotonic() - self.began))


def screen_for(console: Console) -> PlainScreen:
    """The screen that suits where the output goes."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


def fact_lines(name: str, value: str, width: int) -> Text:
    """A name and its value, wrapped beside it; what has no spaces stays whole, to be copied."""
    room = max(20, width - NAME_CHARS)
    lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) or [""]
    return Text.assemble((name.ljust(NAME_CHARS), "dim"), ("\n" + " " * NAME_CHARS).join(lines))


def page(progress: Progress, at_s: float) -> RenderableType:
    """Progress bar and workers."""
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        Text(f"{at_s:6.1f} s", style="dim"),
        ProgressBar(total=progress.asked, completed=progress.answered, width=40),
        Text(f"{progress.answered} of {progress.asked} answered, {progress.bodies:,} step bodies begun"),
    )
    workers = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("         worker", "pid", "", "runs in hand", "steps in flight", "begun so far"):
        workers.add_column(name, justify="left" if name in ("         worker", "") else "right")
    styles = {"working": "green", "killed": "bold red", "starting": "yellow"}
    for worker in progress.workers:
        style = styles.get(worker.state, "")
        shown = ("", "") if worker.state == "killed" else (str(worker.runs), str(worker.in_flight))
        workers.add_row(
            f"         {worker.name}", str(worker.pid), Text(worker.state, style=style), *shown, f"{worker.begun:,}"
        )
    return Group(Text(), bar, workers)
