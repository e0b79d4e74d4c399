"""The page: a console that knows its width and colours, tables that always fit, and JSON.

Imported only by commands that print something: rich costs more than the rest of the command line together.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from perdure.core.records import RunState
from perdure.terminal.text import clean

WIDTH_PIPED: Final = 100
"""Columns where stdout is no terminal and $COLUMNS says nothing."""

LABEL_WIDTH: Final = 12
"""Of the labels in a header."""

STATE_STYLES: Final[dict[str, str]] = {
    RunState.QUEUED: "cyan",
    RunState.RUNNING: "bold blue",
    RunState.WAITING: "magenta",
    RunState.HELD: "bold yellow",
    RunState.COMPLETED: "green",
    RunState.FAILED: "bold red",
    RunState.CANCELLED: "dim",
    "open": "bold magenta",
    "answered": "green",
    "expired": "yellow",
    "withdrawn": "dim",
    "intended": "bold blue",
    "unknown": "bold yellow",
    "absent": "dim",
    "done": "green",
    "undoing": "bold blue",
    "undone": "magenta",
    "undo_failed": "bold red",
    "delivering": "bold blue",
    "delivered": "green",
    "alive": "green",
    "dead": "bold red",
    "stopped": "dim",
    "idle": "dim",
    "processing": "bold blue",
    "response": "green",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """The few signs the pages use, or their stand-ins where the terminal's encoding has none."""

    ok: str = "✓"
    bad: str = "✗"
    person: str = "!"
    """Nothing is wrong, but it waits for somebody."""
    open: str = "…"
    moved: str = "↪"
    wait: str = "◷"
    """A durable wait: it took time, and nobody worked."""
    parked: str = "┄"
    active: str = "█"
    cut: str = "…"


ASCII_MARKS: Final = Marks(ok="+", bad="x", open=".", moved=">", wait="@", parked="-", active="#", cut="~")


class Page(Console):
    """Stdout or stderr. Styled only on a terminal and without NO_COLOR; at most as wide as it is there."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream: IO[str] = sys.stderr if stderr else sys.stdout
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        super().__init__(
            file=stream,
            width=None if stream.isatty() or os.environ.get("COLUMNS") else WIDTH_PIPED,
            color_system=None if plain else "auto",
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
            legacy_windows=False,
        )
        self.marks = Marks() if "utf" in self.encoding.lower() else ASCII_MARKS

    def on_broken_pipe(self) -> None:
        """Let the root command end quietly."""
        raise BrokenPipeError

    def say(self, *parts: str | Text, indent: int = 0) -> None:
        """One line, cut at the width."""
        text = Text(" " * indent).append_text(Text.assemble(*parts))
        text.truncate(self.width, overflow="ellipsis")
        self.print(text, no_wrap=True, overflow="crop", crop=True)


class Middle:
    """Text that gives way in its middle where its column is narrow: both ends of an id tell."""

    def __init__(self, text: str, style: str = "", *, most: int = 512) -> None:
        self.text = clean(text)
        self.style = style
        self.most = most

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(cell_len(self.text), self.most)
        return Measurement(min(width, 8), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten(self.text, options.max_width), style=self.style, no_wrap=True, end="")


class Tail(Middle):
    """Text that gives way at its end: a sentence."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(self.text, style=self.style, no_wrap=True, end="")
        text.truncate(options.max_width, overflow="ellipsis")
        yield text


def shorten(text: str, width: int) -> str:
    """The text in at most `width` cells, with an ellipsis in its middle if it is longer."""
    if cell_len(text) <= width:
        return text
    if width < 4:
        return set_cell_size(text, width)
    head = (width - 1) // 2
    tail = width - 1 - head
    start = len(text)
    while start > 0 and cell_len(text[start - 1 :]) <= tail:
        start -= 1
    return set_cell_size(text, head).rstrip() + "…" + text[start:]


def table(*columns: str, right: Sequence[str] = (), give: Sequence[str] = ()) -> Table:
    """A table without lines. `right` columns are aligned right; `give` columns may become narrower than their cells,
    which are then `Middle` or `Tail`, or fold."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name not in give, overflow="fold")
    return made


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def header(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Labels and their values; long values fold."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(width=LABEL_WIDTH, style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for label, value in rows:
        made.add_row(label, Text(value) if isinstance(value, str) else value)
    return made


def value_lines(value: Any, width: int) -> list[str]:
    """A decoded value as JSON: on one line if it fits, else indented."""
    line = json.dumps(value, ensure_ascii=False)
    if cell_len(line) <= width:
        return [clean(line)]
    return [clean(each) for each in json.dumps(value, ensure_ascii=False, indent=2).splitlines()]


def print_json(document: Any) -> None:
    """The one JSON document on stdout."""
    utf = "utf" in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(document, ensure_ascii=not utf, indent=2) + "\n")
