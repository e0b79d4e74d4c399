"""`perdure workers`."""

from __future__ import annotations

import click

from perdure.cli.options import json_option, store_option
from perdure.cli.stores import opened, run_async


@click.group()
def workers() -> None:
    """List workers."""


@workers.command("list", short_help="List workers, and what they hold.")
@click.option("--all", "everyone", is_flag=True, help="The stopped and the dead ones too.")
@store_option
@json_option
def list_workers(*, store: str, everyone: bool, as_json: bool) -> None:
    """List workers, oldest first: where they are, what they hold, and whether they are heard of."""
    run_async(_list(store, everyone=everyone, as_json=as_json))


async def _list(url: str, *, everyone: bool, as_json: bool) -> None:
    from perdure.cli.documents import worker_document
    from perdure.cli.worker_pages import is_silent, print_workers
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        rows = await store.workers(alive=not everyone)
        silent = frozenset(await store.silent_workers())
        now_us = await store.now_us()
    if as_json:
        print_json([{**worker_document(row), "silent": is_silent(row, silent=silent, now_us=now_us)} for row in rows])
    else:
        print_workers(Page(), rows, silent=silent, now_us=now_us)
