"""`perdure runs`: list them, show one."""

from __future__ import annotations

import click
from msgspec.structs import replace

from perdure.cli.facts import gather_facts
from perdure.cli.options import json_option, page_options, store_option, thread_option
from perdure.cli.paging import is_more
from perdure.cli.runs_history import export_run, replay_runs
from perdure.cli.stores import find_run, opened, parse_run, run_async
from perdure.core.records import RunState, run_id
from perdure.core.requests import RunFilter

STATES = [state.value for state in RunState]


@click.group()
def runs() -> None:
    """List runs, or show what happened to one."""


runs.add_command(export_run)
runs.add_command(replay_runs)


@runs.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only runs in this state.")
@click.option("--agent", help="Only runs of this agent.")
@thread_option("runs")
@click.option("--tenant", help="Only runs of this tenant.")
@click.option("--tag", "tags", multiple=True, help="Only runs with this tag; give it again to ask for several.")
@click.option("--parent", metavar="RUN", help="Only runs that this one has started.")
@page_options("run")
@store_option
@json_option
def list_runs(
    *,
    store: str,
    state: str | None,
    agent: str | None,
    thread_id: str | None,
    tenant: str | None,
    tags: tuple[str, ...],
    parent: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    from perdure.client.requests import run_filter

    last = None if after is None else run_id(parse_run(after))
    where = run_filter(state=state, agent=agent, thread_id=thread_id, tenant=tenant, tags=tags, limit=limit, after=last)
    if parent is not None:
        where = replace(where, parent=parse_run(parent))
    run_async(_list(store, where, as_json=as_json))


async def _list(url: str, where: RunFilter, *, as_json: bool) -> None:
    from perdure.cli.documents import run_document
    from perdure.cli.nearest import none_of_runs
    from perdure.cli.run_pages import print_runs
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        rows = await store.list_runs(where)
        if where.parent is not None and not rows:
            await find_run(store, run_id(where.parent))
        strange = (
            await none_of_runs(store, agent=where.agent, tenant=where.tenant, tags=where.tags) if not rows else None
        )
        facts = await gather_facts(store, rows)
        more = await is_more(rows, where.limit, lambda row: store.list_runs(replace(where, limit=1, after=row.id)))
    if as_json:
        print_json([run_document(fact) for fact in facts.items])
    elif strange is not None:
        click.echo(strange)
    else:
        print_runs(Page(), facts, more=more)


@runs.command("show", short_help="Show a run, its steps, and why it waits.")
@click.argument("run")
@click.option("--full", is_flag=True, help="With every recorded value, and whole errors.")
@click.option("--all", "everything", is_flag=True, help="With the middle of a very long timeline too.")
@store_option
@json_option
def show_run(*, store: str, run: str, full: bool, everything: bool, as_json: bool) -> None:
    """Show RUN: what it is, every step it took, and why it waits if it does."""
    run_async(_show(store, run, full=full, everything=everything, as_json=as_json))


async def _show(url: str, name: str, *, full: bool, everything: bool, as_json: bool) -> None:
    from perdure.cli.documents import run_page_document
    from perdure.cli.reading import read_run
    from perdure.cli.run_pages import print_run
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        run = await find_run(store, name)
        facts = await gather_facts(store, [run])
        log = await read_run(store, run, facts=facts, full=full)
    if as_json:
        print_json(run_page_document(facts.items[0], log, full=full))
    else:
        print_run(Page(), facts.items[0], log, now_us=facts.now_us, full=full, everything=everything)
