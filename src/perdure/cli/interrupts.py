"""`perdure interrupts`: the inbox, and one question."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from perdure.cli.options import json_option, page_options, store_option, thread_option
from perdure.cli.paging import is_more
from perdure.cli.stores import find_run, opened_app, parse_run, run_async
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import InterruptState, run_id
from perdure.core.requests import InterruptFilter

if TYPE_CHECKING:
    from perdure.client.inbox import InterruptInfo
    from perdure.store.protocol import Store

ALL = "all"
STATES = [*(state.value for state in InterruptState), ALL]


@click.group()
def interrupts() -> None:
    """List the questions that agents have asked, or show one."""


@interrupts.command("list")
@click.option("--state", type=click.Choice(STATES), default="open", show_default=True, help="Questions in this state.")
@click.option("--agent", help="Only questions of this agent.")
@thread_option("questions")
@click.option("--run", "run", metavar="RUN", help="Only questions of this run.")
@click.option("--assignee", help="Only questions for this person.")
@click.option("--tenant", help="Only questions of this tenant's runs.")
@page_options("question")
@store_option
@json_option
def list_interrupts(
    *, store: str, state: str, run: str | None, limit: int, as_json: bool, **where: str | None
) -> None:  # fmt: skip
    """List questions of all agents and their children, oldest first."""
    run_async(_list(store, state=state, run=run, limit=limit, as_json=as_json, where=where))


async def _list(
    url: str, *, state: str, run: str | None, limit: int, as_json: bool, where: dict[str, str | None]
) -> None:  # fmt: skip
    from perdure.cli.interrupt_pages import print_interrupts
    from perdure.cli.waiting_documents import interrupt_document
    from perdure.terminal.page import Page, print_json

    chosen = None if state == ALL else state
    of_run = None if run is None else run_id(parse_run(run))
    async with opened_app(url) as app:
        find = partial(
            app.interrupts, state=chosen, run_id=of_run, agent=where["agent"], thread_id=where["thread_id"],
            assignee=where["assignee"], tenant=where["tenant"],
        )  # fmt: skip
        infos = await find(limit=limit, after=where["after"])
        more = await is_more(infos, limit, lambda info: find(limit=1, after=info.id))
        store = (await app._client()).store
        if run is not None and not infos:
            await find_run(store, run)
        strange = await _strange(store, where) if not infos else None
        now_us = await store.now_us()
    if as_json:
        print_json([interrupt_document(info) for info in infos])
    elif strange is not None:
        click.echo(strange)
    else:
        print_interrupts(Page(), infos, state=chosen, now_us=now_us, more=more)


async def _strange(store: Store, where: dict[str, str | None]) -> str | None:
    """Why nothing is found, where that is a name that is not there."""
    from perdure.cli.nearest import none_of, none_of_runs

    if (said := await none_of_runs(store, agent=where["agent"], tenant=where["tenant"])) is not None:
        return said
    assignee = where["assignee"]
    if assignee is None or await store.interrupts(InterruptFilter(state=None, assignee=assignee, limit=1)):
        return None
    rows = await store.interrupts(InterruptFilter(state=None, limit=LIST_ROWS_MAX))
    return none_of("question for", assignee, (row.assignee for row in rows if row.assignee)) if rows else None


@interrupts.command("show", short_help="Show a question, and how to answer it.")
@click.argument("interrupt")
@store_option
@json_option
def show_interrupt(*, store: str, interrupt: str, as_json: bool) -> None:
    """Show INTERRUPT: what is asked, what an answer must be, how to give it, and who answered what."""
    run_async(_show(store, interrupt, as_json=as_json))


async def _show(url: str, name: str, *, as_json: bool) -> None:
    from perdure.cli.interrupt_pages import print_interrupt
    from perdure.cli.waiting_documents import interrupt_document
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        info = await app.interrupt_info(name)
        store = (await app._client()).store
        setting = await _setting(store, info) if info.state is InterruptState.WITHDRAWN else None
        now_us = await (await app._client()).store.now_us()
    if as_json:
        print_json(interrupt_document(info))
    else:
        print_interrupt(Page(), info, now_us=now_us, setting=setting)


async def _setting(store: Store, info: InterruptInfo) -> str | None:
    """Who has set the budget that a question was about, where that is why it is withdrawn."""
    from perdure.cli.budget_words import setting
    from perdure.cli.reading import read_budgets
    from perdure.core.records import parse_id

    rows = await store.get_interrupts([parse_id("i", info.id) or 0])
    budgets = await read_budgets(store, rows)
    runs = await store.get_runs([row.run for row in rows]) if budgets else []
    return setting(rows[0], budgets) if runs and runs[0].cancel is None else None
