"""`perdure migrate`."""

from __future__ import annotations

import click

from perdure.cli.options import json_option, store_option
from perdure.cli.stores import run_async


@click.command()
@store_option
@json_option
def migrate(*, store: str, as_json: bool) -> None:
    """Bring the store's schema up to date.

    Creates it where there is none. Safe to run at any time and from several places at once.
    """
    run_async(_migrate(store, as_json=as_json))


async def _migrate(url: str, *, as_json: bool) -> None:
    from perdure.store import open_url

    store = open_url(url)
    try:
        before, after = await store.migrate()
    finally:
        await store.close()
    if as_json:
        from perdure.terminal.page import print_json

        print_json({"store": store.url, "before": before, "after": after})
    elif before == after:
        click.echo(f"{store.url}: schema {after} is up to date")
    else:
        click.echo(f"{store.url}: schema {before} is now {after}")
