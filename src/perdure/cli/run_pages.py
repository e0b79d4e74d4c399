"""The pages of `perdure runs`: the list, and one run around its timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.text import Text

from perdure.cli.facts import Fact, Facts
from perdure.cli.reading import RunLog
from perdure.cli.remedies import command, told
from perdure.cli.timeline_page import print_timeline
from perdure.core.records import RunState, Worker, run_id, worker_id
from perdure.terminal.page import Middle, Page, Tail, header, state, table, value_lines
from perdure.terminal.text import (
    ago,
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


def print_runs(page: Page, facts: Facts, *, limit: int) -> None:
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
    if len(facts.items) == limit:
        last = run_id(facts.items[-1].run.id)
        page.say(Text(f"older ones: --after {last}", style="dim"))


def took(fact: Fact, *, now_us: int) -> str:
    """From the first claim to the end, or to now."""
    run = fact.run
    if run.started_at is None or run.state is RunState.QUEUED:
        return ""
    return duration((run.ended_at or now_us) - run.started_at)


def note(fact: Fact) -> Tail:
    """What is worth knowing at a glance."""
    run = fact.run
    if fact.error is not None:
        return Tail(f"{short_type(fact.error.type)}: {first_line(fact.error.message)}", "red")
    if fact.why is not None:
        return Tail(fact.why.short, "yellow" if run.state is RunState.HELD else "")
    words = [f"on {worker_id(run.worker)}"] if run.worker is not None else []
    words += [f"recovered {run.recoveries}×"] if run.recoveries else []
    return Tail(", ".join(words), "dim")


def print_run(page: Page, fact: Fact, log: RunLog, *, now_us: int, full: bool, everything: bool) -> None:
    """One run: what it is, what happened to it, how it ended, and why it waits."""
    print_header(page, fact, log, now_us=now_us)
    print_timeline(page, log, full=full, everything=everything)
    print_end(page, fact, log, full=full)


def print_header(page: Page, fact: Fact, log: RunLog, *, now_us: int) -> None:
    """The run's own row."""
    run = fact.run
    page.say(
        Text(run_id(run.id), style="bold"), "  ", Text(clean(run.agent), style="bold"), "  ", state(run.state.value)
    )
    page.print(header([*_header_rows(fact, now_us=now_us), *_worker_rows(fact, log)]))


def _header_rows(fact: Fact, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    run = fact.run
    yield "thread", f"{clean(run.thread_id)}  (run {run.ordinal} of it)"
    yield "created", f"{moment(run.created_at)}, {ago(run.created_at, now_us=now_us)}"
    if run.started_at is not None:
        yield "started", f"{moment(run.started_at)}, after {duration(run.started_at - run.created_at)} in the queue"
    if run.ended_at is not None:
        yield "ended", f"{moment(run.ended_at)}, {took(fact, now_us=now_us)} after the start"
    if run.attempt:
        yield "attempts", _attempts(fact)
    if run.deployment is not None:
        yield "deployment", clean(run.deployment)
    labels = [f"queue {clean(run.queue)}"] if run.queue != "default" else []
    labels += [f"priority {run.priority}"] if run.priority else []
    labels += [f"key {clean(run.key)}"] if run.key else []
    labels += [f"tenant {clean(run.tenant)}"] if run.tenant else []
    labels += [f"tags {clean(', '.join(run.tags))}"] if run.tags else []
    if labels:
        yield "labels", ", ".join(labels)


def _attempts(fact: Fact) -> str:
    run = fact.run
    died = f"; its worker died {run.recoveries}×" if run.recoveries else ""
    strikes = f", {run.strikes}× in a row without progress" if run.strikes > 1 else ""
    return f"claimed {run.attempt}×{died}{strikes}"


def _worker_rows(fact: Fact, log: RunLog) -> Iterator[tuple[str, str | Text]]:
    """Everybody who had a hand in it, in the order they came, and what became of them."""
    numbers = list(dict.fromkeys([step.worker for step in log.steps()]))
    if fact.run.worker is not None and fact.run.worker not in numbers:
        numbers.append(fact.run.worker)
    for number in numbers:
        row = log.workers.get(number)
        where = f"{place(row)}  " if row else "its row is gone"
        became = state(row.state.value) if row else Text()
        yield "worker" if number == numbers[0] else "", Text(f"{worker_id(number)}  {where}").append_text(became)


def place(worker: Worker) -> str:
    """Where a worker runs, and its name if somebody gave it one."""
    named = "" if worker.name == f"{worker.host}:{worker.pid}" else f"{clean(worker.name)}, "
    return f"{named}pid {worker.pid} on {clean(worker.host)}"


def print_end(page: Page, fact: Fact, log: RunLog, *, full: bool) -> None:
    """The result or the error of a run that ended; of another one, what it does or what it waits for."""
    run = fact.run
    page.say()
    if fact.error is not None:
        page.say(Text(f"{page.marks.bad} {run.state.value}: ", style="bold red"), f"{short_type(fact.error.type)}")
        page.print(Text(clean_block(fact.error.traceback if full else fact.error.message), overflow="fold"))
        page.say(Text("to try again: ", style="bold"), command(f"perdure retry {run_id(run.id)}"))
    elif run.state is RunState.COMPLETED:
        weight = Text(f"  result, {size(fact.result_size or 0)}:", style="dim")
        page.say(Text(f"{page.marks.ok} completed", style="bold green"), weight)
        print_value(page, fact.result, full=full)
    elif run.state is RunState.CANCELLED:
        page.say(Text(f"{page.marks.bad} cancelled: ", style="bold"), clean(run.reason or "no reason given"))
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
