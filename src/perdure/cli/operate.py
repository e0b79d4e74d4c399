"""`perdure retry` and `perdure release`: what a person does to a run that stopped."""

from __future__ import annotations

from typing import Literal

import click

from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import told
from perdure.cli.stores import find_run, opened, parse_run, require_there, run_async
from perdure.terminal.text import moment


@click.command()
@click.argument("run")
@click.option("--undo", is_flag=True, help="Only undo what it did: undos that failed, and what was found out since.")
@store_option
@json_option
def retry(*, store: str, run: str, undo: bool, as_json: bool) -> None:
    """Send a failed or cancelled RUN on.

    The steps whose failure ended it run again; what is recorded stays and is not done again. Its deadline, if it had
    one, is dropped. With --undo none of its code runs: its effects are undone, and it ends as it had ended.
    """
    run_async(_send_on(store, run, verb="undo" if undo else "retry", as_json=as_json))


@click.command()
@click.argument("run")
@store_option
@json_option
def release(*, store: str, run: str, as_json: bool) -> None:
    """Send a held RUN on.

    `perdure runs show RUN` says what it is held for, and what to do before.
    """
    run_async(_send_on(store, run, verb="release", as_json=as_json))


async def _send_on(url: str, name: str, *, verb: Literal["retry", "undo", "release"], as_json: bool) -> None:
    from perdure.app import App

    parse_run(name)
    require_there(url)
    app = App("perdure", store=url)
    async with app:
        before = await find_run((await app._client()).store, name)
        await (app.release(name) if verb == "release" else app.retry(name, undo=verb == "undo"))
    async with opened(url) as store:
        from perdure.cli.facts import gather_facts

        facts = await gather_facts(store, [await find_run(store, name)])
    fact = facts.items[0]
    if as_json:
        from perdure.cli.documents import run_document
        from perdure.terminal.page import print_json

        print_json(run_document(fact))
        return
    where = "to undo what is left to be undone" if verb == "undo" else f"at super-step {fact.run.super_step}"
    click.echo(f"{name} is {fact.run.state.value} again, {where}")
    if before.deadline_at is not None and fact.run.deadline_at is None:
        click.echo(f"its deadline, {moment(before.deadline_at)}, is dropped: it may take as long as it needs")
    if fact.why:
        click.echo(f"it waits for {fact.why.what}" + (f"; {told(fact.why.remedy)}" if fact.why.remedy else ""))
