"""The pages of `perdure runs`: the list, and one run around its timeline."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from perdure.cli.delivery_pages import outbox_rows
from perdure.cli.effect_pages import print_open
from perdure.cli.facts import Fact, Facts
from perdure.cli.paging import print_more
from perdure.cli.reading import RunLog
from perdure.cli.remedies import command, told
from perdure.cli.timeline_page import print_timeline
from perdure.cli.timeline_words import tally
from perdure.cli.usage_pages import usage_rows
from perdure.cli.worker_pages import standing
from perdure.core.effects import EffectState
from perdure.core.failures import first_mended, not_done
from perdure.core.records import Run, RunState, Worker, run_id, worker_id
from perdure.core.states import TERMINAL
from perdure.runtime.starting import CHILD_KEY
from perdure.terminal.page import Marks, Middle, Page, Tail, header, state, table, value_lines
from perdure.terminal.text import (
    ago,
    away,
    clean,
    clean_block,
    count,
    duration,
    first_line,
    moment,
    short_type,
    size,
)

JUST_NOW_US: Final = 1_000_000

RESULT_LINES: Final = 12
"""Of a result, without `--full`."""

STRIP_CELLS: Final = 40
"""Of a run's time, from left to right."""

CHILDREN_SHOWN: Final = 20
"""Up to so many are listed."""

CHILDREN_OF_MANY: Final = 5
"""Of more than that so many are; the rest is in the tally, and in a list of its own."""

_WHERE: Final = re.compile(r"^step '[^']*' of run r\d+: ", re.ASCII)
"""Where an error of a step came from: its own page says so, and a column has room for the cause alone."""

_ORDER: Final = (
    RunState.HELD, RunState.FAILED, RunState.WAITING, RunState.RUNNING, RunState.QUEUED, RunState.CANCELLED,
    RunState.COMPLETED,
)  # fmt: skip


def print_runs(page: Page, facts: Facts, *, more: bool) -> None:
    """The list."""
    if not facts.items:
        page.say(Text("no runs", style="dim"))
        return
    rows = table(
        "run", "state", "agent", "thread", "created", "took", "note", right=("took",), give=("agent", "thread", "note")
    )
    for fact in facts.items:
        run = fact.run
        rows.add_row(
            run_id(run.id),
            state(run.state.value),
            Middle(run.agent, most=20),
            Middle(run.thread_id, most=32),
            ago(run.created_at, now_us=facts.now_us),
            took(fact, now_us=facts.now_us),
            note(fact),
        )
    page.print(rows)
    if more:
        print_more(page, run_id(facts.items[-1].run.id))


def took(fact: Fact, *, now_us: int) -> str:
    """From the first claim to the end, or to now."""
    run = fact.run
    if run.started_at is None or run.state is RunState.QUEUED:
        return ""
    return duration((run.ended_at or now_us) - run.started_at)


def note(fact: Fact) -> Tail:
    """What is worth knowing at a glance."""
    run = fact.run
    if run.state is RunState.CANCELLED:
        return Tail(first_line(reason_of(fact)), "dim")
    if fact.error is not None:
        said = first_line(_WHERE.sub("", fact.error.message))
        return Tail(f"{short_type(fact.error.type)}: {said}", "red")
    if run.cancel is not None:
        return Tail(f"to be cancelled: {run.cancel}", "yellow")
    if fact.why is not None:
        return Tail(fact.why.short, "yellow" if run.state is RunState.HELD else "")
    words = [f"on {worker_id(run.worker)}"] if run.worker is not None else []
    words += [f"recovered {run.recoveries}×"] if run.recoveries else []
    return Tail(", ".join(words), "dim")


def reason_of(fact: Fact) -> str:
    """Why a run was cancelled."""
    return fact.run.cancel or (fact.error.message if fact.error else None) or fact.run.reason or "no reason given"


def print_run(page: Page, fact: Fact, log: RunLog, *, now_us: int, full: bool, everything: bool) -> None:
    """One run: what it is, what happened to it, how it ended, and why it waits."""
    print_header(page, fact, log, now_us=now_us)
    print_children(page, log, now_us=now_us)
    print_timeline(page, log, full=full, everything=everything)
    if log.effects:
        page.say()
        print_open(page, log.effects)
    print_end(page, fact, log, full=full)


def print_header(page: Page, fact: Fact, log: RunLog, *, now_us: int) -> None:
    """The run's own row."""
    run = fact.run
    page.say(
        Text(run_id(run.id), style="bold"), "  ", Text(clean(run.agent), style="bold"), "  ", state(run.state.value)
    )
    rows = [*_header_rows(fact, now_us=now_us), *_time_rows(page, fact, log), *_worker_rows(fact, log)]
    rows += [*outbox_rows(log.deliveries), *usage_rows(log.usage)]
    page.print(header(rows))


def _header_rows(fact: Fact, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    run = fact.run
    yield "thread", f"{clean(run.thread_id)}  (run {run.ordinal} of it)"
    yield "created", f"{moment(run.created_at)}, {ago(run.created_at, now_us=now_us)}"
    if run.started_at is not None:
        yield "started", f"{moment(run.started_at)}, after {duration(run.started_at - run.created_at)} in the queue"
    if run.ended_at is not None:
        after = "before it began" if run.started_at is None else f"{took(fact, now_us=now_us)} after the start"
        yield "ended", f"{moment(run.ended_at)}, {after}"
    if run.deadline_at is not None and run.state not in TERMINAL:
        yield "deadline", f"{moment(run.deadline_at)}, {away(run.deadline_at, now_us=now_us)}"
    if run.cancel is not None and run.state not in TERMINAL:
        yield "cancelled", Text(f"it will be, when its code has cleaned up; why: {clean(run.cancel)}", "yellow")
    if run.undoing and run.state not in TERMINAL:
        yield "undoing", Text("its code is over; what it did is undone, and then it ends as it was decided", "yellow")
    if run.parent is not None:
        yield "started by", f"run {run_id(run.parent)}" + (", detached from it" if run.detached else "")
    if run.attempt:
        yield "attempts", _attempts(fact)
    if run.deployment is not None:
        yield "deployment", clean(run.deployment)
    options = [f"queue {clean(run.queue)}"] if run.queue != "default" else []
    options += [f"priority {run.priority}"] if run.priority else []
    options += [f"key {clean(run.key)}"] if run.key and not run.key.startswith(CHILD_KEY) else []
    options += [f"tenant {clean(run.tenant)}"] if run.tenant else []
    options += [f"tags {clean(', '.join(run.tags))}"] if run.tags else []
    if options:
        yield "options", ", ".join(options)


def _attempts(fact: Fact) -> str:
    run = fact.run
    died = f"; its worker died {run.recoveries}×" if run.recoveries else ""
    strikes = f", {run.strikes}× in a row without progress" if run.strikes > 1 else ""
    return f"claimed {run.attempt}×{died}{strikes}"


def _time_rows(page: Page, fact: Fact, log: RunLog) -> Iterator[tuple[str, str | Text]]:
    """How much of its life it was parked, for a run that was."""
    stretches = log.stretches()
    run = fact.run
    if not stretches or run.started_at is None:
        return
    began, ended = run.started_at, run.ended_at or log.now_us
    spans = [(line.from_at, ended if line.until_at is None else line.until_at) for line in stretches]
    parked = sum(max(end - start, 0) for start, end in spans)
    said = f"{duration(parked)} parked, {duration(max(ended - began - parked, 0))} not"
    if log.line.unsure:
        said = f"parked for {duration(parked)} at least; for how long it waited for its budget is not known"
    yield "time", Text.assemble((strip(spans, began, ended, marks=page.marks), "magenta"), f"  {said}")


def strip(parked: Sequence[tuple[int, int]], began: int, ended: int, *, marks: Marks) -> str:
    """The time of a run from left to right; a cell is dotted where it was parked for nearly all of it."""
    length = max(ended - began, 1)
    cells = ""
    for cell in range(STRIP_CELLS):
        left, right = began + length * cell // STRIP_CELLS, began + length * (cell + 1) // STRIP_CELLS
        within = sum(max(min(end, right) - max(start, left), 0) for start, end in parked)
        cells += marks.parked if within * 10 >= (right - left) * 9 else marks.active
    return cells


def print_children(page: Page, log: RunLog, *, now_us: int) -> None:
    """The runs that it has started."""
    children = list(log.children.values())
    if not children:
        return
    page.say()
    page.say(Text(tally(children), style="bold"))
    shown = children if len(children) <= CHILDREN_SHOWN else _first_to_look_at(children)
    rows = table("run", "state", "agent", "thread", "created", "", give=("agent", "thread"))
    for child in shown:
        rows.add_row(
            run_id(child.id),
            state(child.state.value),
            Middle(child.agent, most=30),
            Middle(child.thread_id, most=40),
            ago(child.created_at, now_us=now_us),
            Text("detached" if child.detached else "", style="dim"),
        )
    page.print(rows)
    if len(shown) < len(children) and children[0].parent is not None:
        listing = command(f"perdure runs list --parent {run_id(children[0].parent)}")
        page.say(Text(f"and {len(children) - len(shown)} more: {listing}", style="dim"))


def _first_to_look_at(children: Sequence[Run]) -> list[Run]:
    """A few of many: those that need somebody, then those that are not over."""
    return sorted(children, key=lambda child: (_ORDER.index(child.state), child.id))[:CHILDREN_OF_MANY]


def _worker_rows(fact: Fact, log: RunLog) -> Iterator[tuple[str, str | Text]]:
    """Everybody who had a hand in it, in the order they came, and what became of them."""
    numbers = list(dict.fromkeys([step.worker for step in log.steps()]))
    if fact.run.worker is not None and fact.run.worker not in numbers:
        numbers.append(fact.run.worker)
    for number in numbers:
        row = log.workers.get(number)
        where = f"{place(row)}  " if row else "its row is gone"
        became = standing(row, silent=log.silent, now_us=log.now_us) if row else Text()
        yield "worker" if number == numbers[0] else "", Text(f"{worker_id(number)}  {where}").append_text(became)


def place(worker: Worker) -> str:
    """Where a worker runs, and its name if somebody gave it one."""
    named = "" if worker.name == f"{worker.host}:{worker.pid}" else f"{clean(worker.name)}, "
    return f"{named}pid {worker.pid} on {clean(worker.host)}"


def print_end(page: Page, fact: Fact, log: RunLog, *, full: bool) -> None:
    """The result or the error of a run that ended; of another one, what it does or what it waits for."""
    run = fact.run
    page.say()
    if run.state is RunState.CANCELLED:
        said = fact.error.message if fact.error is not None and not full else reason_of(fact)
        page.print(Text.assemble((f"{page.marks.bad} cancelled: ", "bold"), clean_block(said)), overflow="fold")
        if (left := not_done(fact.error)) is not None:
            page.print(Text.assemble(("not done: ", "bold"), clean_block(left)), overflow="fold")
        if full and fact.error is not None:
            page.print(Text(clean_block(fact.error.traceback), overflow="fold"))
        _print_how(page, fact, log, "to send it on, after what it has recorded, its clean-up included: ")
    elif fact.error is not None:
        page.say(Text(f"{page.marks.bad} {run.state.value}: ", style="bold red"), f"{short_type(fact.error.type)}")
        page.print(Text(clean_block(fact.error.traceback if full else fact.error.message), overflow="fold"))
        _print_how(page, fact, log, "to try again: ")
    elif run.state is RunState.COMPLETED:
        weight = Text(f"  result, {size(fact.result_size or 0)}:", style="dim")
        page.say(Text(f"{page.marks.ok} completed", style="bold green"), weight)
        print_value(page, fact.result, full=full)
    elif fact.why is not None:
        if run.state is RunState.HELD:
            page.say(Text(fact.why.short, "bold yellow"))
            page.print(Text(clean_block(run.detail or "no detail is recorded")), overflow="fold")
        else:
            page.print(Text.assemble(("waits for ", "bold yellow"), fact.why.what), overflow="fold")
        if fact.why.remedy:
            page.print(Text.assemble(("what to do: ", "bold"), told(fact.why.remedy)), overflow="fold")
    elif run.worker is not None:
        silent = log.now_us - log.last_at(run)
        said = f"nothing new for {duration(silent)}" if silent >= JUST_NOW_US else "something new just now"
        page.say(Text(f"{page.marks.open} running ", "bold blue"), f"on {worker_id(run.worker)}; {said}")


def _print_how(page: Page, fact: Fact, log: RunLog, label: str) -> None:
    """How an ended run is sent on; what one had done that is undone is not done again, but its undos may be."""
    name = run_id(fact.run.id)
    failed = sum(row.state is EffectState.UNDO_FAILED for row in log.effects)
    if failed:
        text = f"{page.marks.bad} {failed} of what it had done could not be undone: "
        _tell(page, (text, "bold red"), command(f"perdure effects list --run {name} --state undo_failed"))
        _tell(page, ("to try that again: ", "bold"), command(f"perdure retry {name} --undo"))
    elif fact.run.undoing:
        _tell(page, ("what it had done was undone: ", ""), command(f"perdure effects list --run {name}"))
    elif fact.run.state is RunState.CANCELLED and fact.run.cancel is None:
        page.say("its own code has cancelled it, and would again: start a new run instead")
    else:
        if (first := first_mended(fact.error)) is not None:
            _tell(page, ("first, its child: ", "bold"), command(f"perdure {first}"))
        _tell(page, (label, "bold"), command(f"perdure retry {name}"))


def _tell(page: Page, said: tuple[str, str], command: str) -> None:
    """A command behind what it does: whole, for it is copied."""
    page.print(Text.assemble(said, command), overflow="fold")


def print_value(page: Page, value: Any, *, full: bool) -> None:
    """A decoded value: whole, or its first lines."""
    lines = value_lines(value, page.width)
    shown = lines if full or len(lines) <= RESULT_LINES + 1 else lines[:RESULT_LINES]
    for line in shown:
        if full:
            page.print(Text(line, overflow="fold"))
        else:
            page.say(line)
    if len(shown) < len(lines):
        page.say(Text(f"{page.marks.open} {count(len(lines) - len(shown), 'line')} more with --full", style="dim"))
