"""The pages of `perdure threads`: the list, and one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from perdure.cli.facts import Facts
from perdure.cli.remedies import command
from perdure.cli.run_pages import note, took
from perdure.client.info import agent_state
from perdure.core.records import Checkpoint, Kind, Run, Thread, run_id
from perdure.terminal.page import Middle, Page, header, state, table, value_lines
from perdure.terminal.text import ago, clean, clock, count, moment


def print_threads(page: Page, pairs: Sequence[tuple[Thread, Run | None]], *, now_us: int, limit: int) -> None:
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
    if len(pairs) == limit:
        page.say(Text("older ones: --after THREAD, with the last one above", style="dim"))


def print_thread(
    page: Page,
    thread: Thread,
    *,
    head: Run | None,
    facts: Facts,
    boundaries: Sequence[Checkpoint],
) -> None:
    """One thread."""
    page.print(
        Text.assemble(
            (clean(thread.thread_id), "bold"), "  ", (clean(thread.agent), "bold"), "  ", state(agent_state(head).value)
        ),
        overflow="fold",
    )
    page.print(header(_header_rows(thread, now_us=facts.now_us)))
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
        listing = command(f"perdure runs list --thread {clean(thread.thread_id)}")
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
