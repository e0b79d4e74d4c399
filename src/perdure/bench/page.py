"""What a person sees: progress while it measures, then the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from perdure.bench.goals import Bound, Goal, Unit
from perdure.bench.plan import Item
from perdure.bench.report import Row, machine
from perdure.terminal.page import Marks, Page, table

WIDTH_MAX: Final = 100
SHORT: Final = {"steps/s": "/s", "runs/s": "/s", "ms": " ms", "times": "×"}
NUMBERS: Final = ("value", "raw limit", "ratio")


@contextmanager
def progress(items: Sequence[Item], repeat: int) -> Iterator[Callable[[Item, int], None]]:
    """A bar on stderr, on a terminal; the function given says what begins."""
    page = Page(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=page, transient=True,
        disable=not page.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=len(items) * repeat)
        begun = 0

        def tell(item: Item, turn: int) -> None:
            nonlocal begun
            what = " ".join(part for part in (item.measure, item.where) if part)
            bar.update(task, completed=begun, description=f"{what}, {turn + 1} of {repeat}")
            begun += 1

        yield tell


def show(found: Sequence[Row], *, repeat: int) -> None:
    """The table, what else was seen, and what it was measured on."""
    page = Page()
    page.width = min(page.width, WIDTH_MAX)
    rows = table("measure", "of", "on", *NUMBERS, "goal", "", "at last", "", right=NUMBERS, give=("of",))
    rows.padding = (0, 1, 0, 0)
    for row in found:
        rows.add_row(*cells(row, page.marks))
    page.print(rows)
    page.say()
    for row in found:
        if row.note:
            page.say(Text(f"{row.name.ljust(10)} {row.store.ljust(8)} {row.note}", "dim"))
    about = machine()
    facts = (
        f"{about['cores']} cores, load {about['load']}; Python {about['python']}, {about['loop']}; medians of {repeat}."
    )
    page.print(Text(f"\n{facts}\nThe ratio to the raw limit of the same run carries over to other machines.", "dim"))


def cells(row: Row, marks: Marks) -> list[str | Text]:
    """A line of the table."""
    goal = row.goal
    return [
        row.name,
        Text(goal.what, "dim"),
        row.store,
        Text(amount(goal.unit, row.value), "bold"),
        amount(goal.unit, row.raw),
        number(row.ratio) if row.ratio >= 1 else f"{row.ratio:.3f}",
        bound(goal, goal.now),
        mark(marks, row.meets(goal.now)),
        bound(goal, goal.final),
        mark(marks, row.meets(goal.final)),
    ]


def mark(marks: Marks, met: bool) -> Text:
    """Met or not."""
    return Text(marks.ok, "green") if met else Text(marks.bad, "bold red")


def amount(unit: Unit, value: float) -> str:
    """A value with its unit."""
    if unit == "KB":
        return f"{number(value)} KB"
    if unit == "bytes":
        return f"{value / 1e6:.3g} MB"
    if unit == "ms" and value < 0.1:
        return f"{number(value * 1e3)} µs"
    return number(value) + SHORT[unit]


def bound(goal: Goal, asked: Bound) -> str:
    """A goal, as short as can be."""
    sign = "≥" if goal.more_is_better else "≤"
    parts = [] if asked.value is None else [f"{sign} {amount(goal.unit, asked.value)}"]
    parts += [] if asked.ratio is None else [f"{sign} {number(asked.ratio)} raw"]
    return "\n".join(parts)


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
