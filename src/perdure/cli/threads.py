"""`perdure threads`: list them, show one."""

from __future__ import annotations

import click

from perdure.cli.facts import gather_facts
from perdure.cli.options import json_option, page_options, store_option
from perdure.cli.paging import is_more
from perdure.cli.stores import find_thread, opened, run_async
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.requests import RunFilter
from perdure.runtime.settings import check_name

SHOWN = 20
"""Newest runs and boundaries on a thread's page."""


@click.group()
def threads() -> None:
    """List threads, or show one with its queue and its state."""


@threads.command("list")
@click.option("--agent", help="Only threads of this agent.")
@page_options("thread")
@store_option
@json_option
def list_threads(*, store: str, agent: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List threads, newest first."""
    if agent is not None:
        check_name("an agent's name", agent)
    run_async(_list(store, agent=agent, limit=limit, after=after, as_json=as_json))


async def _list(url: str, *, agent: str | None, limit: int, after: str | None, as_json: bool) -> None:
    from perdure.cli.documents import thread_document
    from perdure.cli.nearest import none_of
    from perdure.cli.thread_pages import print_threads
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        last = None if after is None else (await find_thread(store, after)).id
        rows = await store.list_threads(agent=agent, limit=limit, after=last)
        more = await is_more(rows, limit, lambda row: store.list_threads(agent=agent, limit=1, after=row.id))
        heads = {run.id: run for run in await store.get_runs([row.head for row in rows if row.head is not None])}
        now_us = await store.now_us()
        others = await store.list_threads(limit=LIST_ROWS_MAX) if agent is not None and not rows else ()
    strange = none_of("thread of agent", agent or "", (row.agent for row in others)) if others else None
    pairs = [(row, heads.get(row.head) if row.head is not None else None) for row in rows]
    if as_json:
        print_json([thread_document(row, head=head) for row, head in pairs])
    elif strange is not None:
        click.echo(strange)
    else:
        print_threads(Page(), pairs, now_us=now_us, more=more)


@threads.command("show", short_help="Show a thread: its runs, and what waits in it.")
@click.argument("thread")
@click.option("--state", "with_state", is_flag=True, help="With the thread's state, decoded.")
@store_option
@json_option
def show_thread(*, store: str, thread: str, with_state: bool, as_json: bool) -> None:
    """Show THREAD: what it does, its newest runs and what waits in its queue, and its super-steps."""
    run_async(_show(store, thread, with_state=with_state, as_json=as_json))


async def _show(url: str, name: str, *, with_state: bool, as_json: bool) -> None:
    from perdure.cli.documents import thread_page_document
    from perdure.cli.reading import read_mail, read_state
    from perdure.cli.thread_pages import print_state, print_thread
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        thread = await find_thread(store, name)
        runs = await store.list_runs(RunFilter(thread_id=name, limit=SHOWN))
        head = next(iter(await store.get_runs([thread.head])), None) if thread.head is not None else None
        facts = await gather_facts(store, runs)
        boundaries = await store.thread_checkpoints(thread.id, limit=SHOWN)
        state = await read_state(store, thread) if with_state else None
        mail = await read_mail(store, thread)
    if as_json:
        document = thread_page_document(thread, head=head, facts=facts, boundaries=boundaries, mail=mail)
        print_json({**document, "value": state} if with_state else document)
    else:
        page = Page()
        print_thread(page, thread, head=head, facts=facts, boundaries=boundaries, mail=mail)
        if with_state:
            print_state(page, state)
