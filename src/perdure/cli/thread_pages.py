"""The pages of `perdure threads`: the list, and one thread."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.text import Text

from perdure.cli.facts import Facts
from perdure.cli.paging import print_more
from perdure.cli.reading import Mail
from perdure.cli.remedies import command
from perdure.cli.run_pages import note, took
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Checkpoint, Kind, Run, Thread, interrupt_id, run_id
from perdure.runtime.info import agent_state
from perdure.terminal.page import Middle, Page, header, state, table, value_lines
from perdure.terminal.text import ago, clean, clock, count, moment

QUESTIONS_SHOWN: Final = 5
"""Open questions on a thread's page."""


def print_threads(page: Page, pairs: Sequence[tuple[Thread, Run | None]], *, now_us: int, more: bool) -> None:
    """The list. Ids are whole: `threads show` needs them."""
    if not pairs:
        page.say(Text("no threads", style="dim"))
        return
    rows = table(
        "thread",
        "agent",
        "state",
        "head",
        "unfinished",
        "runs",
        "created",
        right=("unfinished", "runs"),
        give=("agent",),
    )
    rows.columns[0].no_wrap = False
    rows.columns[0].overflow = "fold"
    for thread, head in pairs:
        rows.add_row(
            Text(clean(thread.thread_id)),
            Middle(thread.agent),
            state(agent_state(head).value),
            "" if head is None else Text(f"{run_id(head.id)} ").append_text(state(head.state.value)),
            str(thread.depth) if thread.depth else "",
            str(thread.last_ordinal),
            ago(thread.created_at, now_us=now_us),
        )
    page.print(rows)
    if more:
        print_more(page, shlex.quote(pairs[-1][0].thread_id))


def print_thread(
    page: Page,
    thread: Thread,
    *,
    head: Run | None,
    facts: Facts,
    boundaries: Sequence[Checkpoint],
    mail: Mail,
) -> None:
    """One thread."""
    page.print(
        Text.assemble(
            (clean(thread.thread_id), "bold"), "  ", (clean(thread.agent), "bold"), "  ", state(agent_state(head).value)
        ),
        overflow="fold",
    )
    rows = [*_header_rows(thread, now_us=facts.now_us), *_mail_rows(thread, mail, now_us=facts.now_us)]
    page.print(header(rows))
    _print_runs(page, thread, facts)
    _print_boundaries(page, boundaries)


def _header_rows(thread: Thread, *, now_us: int) -> list[tuple[str, str | Text]]:
    where = (
        f"as of {run_id(thread.snapshot_run)}, super-step {thread.snapshot_step}; --state shows it"
        if thread.snapshot_run is not None
        else "none yet"
    )
    return [
        ("created", f"{moment(thread.created_at)}, {ago(thread.created_at, now_us=now_us)}"),
        ("runs", f"{count(thread.last_ordinal, 'run')} so far, {thread.depth} unfinished"),
        ("state", where),
    ]


def _mail_rows(thread: Thread, mail: Mail, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    """What waits there for its agent, and for people."""
    name = shlex.quote(clean(thread.thread_id))
    if mail.waiting:
        shown = command(f"perdure messages list {name}")
        yield "mailbox", f"{number_of(mail.waiting, 'message')}: {shown}"
    if mail.dead:
        shown = command(f"perdure messages dead --thread-id {name}")
        yield "dead letters", Text(f"{number_of(mail.dead, 'dead letter')}: {shown}", "yellow")
    for n, row in enumerate(mail.questions[:QUESTIONS_SHOWN]):
        whom = f" of {clean(row.assignee)}" if row.assignee else ""
        asked = f"{interrupt_id(row.id)} {clean(row.name)}, asked{whom} {ago(row.created_at, now_us=now_us)}"
        shown = command(f"perdure interrupts show {interrupt_id(row.id)}")
        yield "questions" if n == 0 else "", Text(f"{asked}: {shown}", "magenta")
    if len(mail.questions) > QUESTIONS_SHOWN:
        shown = command(f"perdure interrupts list --thread-id {name}")
        yield "", f"{number_of(len(mail.questions), 'open question')} in all: {shown}"


def number_of(found: int, noun: str) -> str:
    """How many there are, as far as they were counted."""
    return count(found, noun) + (" or more" if found >= LIST_ROWS_MAX else "")


def _print_runs(page: Page, thread: Thread, facts: Facts) -> None:
    page.say()
    rows = table("run", "state", "created", "took", "note", right=("took",), give=("note",))
    for fact in facts.items:
        run = fact.run
        rows.add_row(
            run_id(run.id),
            state(run.state.value),
            ago(run.created_at, now_us=facts.now_us),
            took(fact, now_us=facts.now_us),
            note(fact),
        )
    page.print(rows)
    if thread.last_ordinal > len(facts.items):
        listing = command(f"perdure runs list --thread-id {shlex.quote(clean(thread.thread_id))}")
        page.say(Text(f"newest {len(facts.items)}; all: {listing}", style="dim"))


def _print_boundaries(page: Page, boundaries: Sequence[Checkpoint]) -> None:
    if not boundaries:
        return
    page.say()
    rows = table("super-step", "of run", "at", "state", "", right=("super-step",))
    for row in boundaries:
        end = row.kind is Kind.ENDED
        rows.add_row(
            "end" if end else str(row.super_step),
            run_id(row.run),
            clock(row.ended_at),
            "as before" if row.state is None else "saved",
            Text("failed", style="red") if row.failed else "",
        )
    page.print(rows)


def print_state(page: Page, value: Any) -> None:
    """The thread's state, whole."""
    page.say(Text("\nstate", style="bold"))
    for line in value_lines(value, page.width):
        page.print(Text(line, overflow="fold"))
