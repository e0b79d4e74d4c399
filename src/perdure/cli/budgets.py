"""`perdure budgets`: what may be used, how far that is, and setting it."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click

from perdure.cli import amounts
from perdure.cli.options import json_option, page_options, store_option
from perdure.cli.paging import is_more
from perdure.cli.resume import login_name
from perdure.cli.stores import opened_app, run_async
from perdure.core.limits import LIST_ROWS_MAX
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.store.protocol import Store

NO_LIMIT: Final = "none"
"""What drops a limit."""


@click.group()
def budgets() -> None:
    """List what tenants, agents and runs may use, and set it."""


@budgets.command("list", short_help="List budgets, and how far they are.")
@click.argument("prefix", required=False)
@page_options("budget")
@store_option
@json_option
def list_budgets(*, store: str, prefix: str | None, limit: int, after: str | None, as_json: bool) -> None:
    """List budgets by name, or those whose names begin with PREFIX: tenant:, agent:, run:."""
    run_async(_list(store, prefix, limit=limit, after=after, as_json=as_json))


async def _list(url: str, prefix: str | None, *, limit: int, after: str | None, as_json: bool) -> None:
    from perdure.cli.budget_pages import print_budgets
    from perdure.cli.nearest import none_of
    from perdure.cli.usage_documents import budget_document
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        infos = await app.budgets(prefix, limit=limit, after=after)
        more = await is_more(infos, limit, lambda info: app.budgets(prefix, limit=1, after=info.name))
        others = [info.name for info in await app.budgets(limit=LIST_ROWS_MAX)] if prefix and not infos else []
    if as_json:
        print_json([budget_document(info) for info in infos])
    elif others and after is None:
        click.echo(none_of("budget that begins with", prefix or "", others))
    else:
        print_budgets(Page(), infos, more=more)


@budgets.command("show", short_help="Show one budget.")
@click.argument("name")
@store_option
@json_option
def show_budget(*, store: str, name: str, as_json: bool) -> None:
    """Show the budget NAME: what is spent, in flight and left, and who set it."""
    run_async(_show(store, name, as_json=as_json))


async def _show(url: str, name: str, *, as_json: bool) -> None:
    async with opened_app(url) as app:
        await _print(app, name, as_json=as_json)


async def _print(app: App, name: str, *, as_json: bool) -> None:
    from perdure.cli.budget_pages import print_budget
    from perdure.cli.usage_documents import budget_document
    from perdure.terminal.page import Page, print_json

    info = await app.budget_info(name)
    if as_json:
        print_json(budget_document(info))
    else:
        print_budget(Page(), info, now_us=await (await app._client()).store.now_us())


@budgets.command("set", short_help="Set what a tenant, an agent or a run may use.")
@click.argument("name")
@click.option("--usd", metavar="AMOUNT", help="Dollars.")
@click.option("--tokens", metavar="COUNT", help="Tokens.")
@click.option("--steps", metavar="COUNT", help="Tries of steps.")
@click.option("--seconds", metavar="TIME", help="Time in steps: a number of seconds, or 90s, 2h.")
@click.option("--by", metavar="NAME", help="Who sets it.  [your login name]")
@store_option
@json_option
def set_budget(*, store: str, name: str, by: str | None, as_json: bool, **given: str | None) -> None:
    """Set the limits of the budget NAME: tenant:acme, agent:order, or run:r42 for a run that has one of its own.

    A limit that is not given stays as it is; "none" drops it. What is spent stays spent. Runs that asked because of it
    look again, and go on where there is enough now.
    """
    limits = {unit: _limit(unit, text) for unit, text in given.items() if text is not None}
    if not limits:
        raise UsageError("say what it limits: --usd, --tokens, --steps or --seconds")
    run_async(_set(store, name, limits, by=by or login_name(), as_json=as_json))


def _limit(unit: str, text: str) -> float | Decimal | None:
    """A limit as it was given: a number, a time, or none."""
    if text.strip().lower() == NO_LIMIT:
        return None
    try:
        return amounts.limit(f"--{unit}", unit, text)
    except UsageError as error:
        raise UsageError(f"{error}, or {NO_LIMIT} for no limit") from None


async def _set(url: str, name: str, limits: dict[str, Any], *, by: str | None, as_json: bool) -> None:
    from perdure.client.budgets import set_limits

    async with opened_app(url) as app:
        await set_limits(await app._client(), name, limits, by=by)
        await _print(app, name, as_json=as_json)
        strange = await _strange((await app._client()).store, name)
    if strange is not None:
        click.echo(f"{strange}. The budget is kept for when there is one", err=True)


async def _strange(store: Store, name: str) -> str | None:
    """That no run is known of the agent or tenant whose budget this is: its name may be misspelt."""
    from perdure.cli.nearest import none_of_runs

    kind, _, whose = name.partition(":")
    return await none_of_runs(store, **{kind: whose}) if kind in ("agent", "tenant") else None
