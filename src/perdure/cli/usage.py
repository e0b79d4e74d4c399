"""`perdure usage`: what runs have used, summed."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from perdure.cli.amounts import day_or_time
from perdure.cli.options import json_option, store_option
from perdure.cli.paging import is_more
from perdure.cli.stores import find_run, opened, parse_run, run_async
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.meters import UsageBy, UsageFilter
from perdure.core.records import run_id
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.store.protocol import Store

GROUPS = [by.value for by in UsageBy]

ROWS: Final = 100
"""Of a page, unless somebody says so."""


@click.command()
@click.option("--by", type=click.Choice(GROUPS), required=True, help="What to sum it by; days are those of UTC.")
@click.option("--name", help="Only what was metered under this name.")
@click.option("--tenant", help="Only of this tenant's runs.")
@click.option("--agent", help="Only of this agent's runs.")
@click.option("--run", "run", metavar="RUN", help="Only of this run.")
@click.option("--since", metavar="TIME", help="From then on: 2026-11-01 (in UTC), or 2026-11-01T09:00+01:00.")
@click.option("--until", metavar="TIME", help="Up to then, which is not part of it.")
@click.option("--limit", type=click.IntRange(1, LIST_ROWS_MAX),
              help=f"At most this many rows.  [{ROWS}; with --csv, all]")  # fmt: skip
@click.option("--after", nargs=2, metavar="GROUP NAME", help="Go on after this row, the last of a page.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, with a row of names first.")
@store_option
@json_option
def usage(
    *, store: str, by: str, run: str | None, limit: int | None, as_csv: bool, as_json: bool, **where: Any
) -> None:  # fmt: skip
    """Sum what runs have used, by tenant, agent, run or day.

    Quantities are exact: what `perdure.meter` was told, in the steps on record and in their failed tries.
    """
    from perdure.client.usage import usage_filter

    if as_csv and as_json:
        raise UsageError("--csv and --json are two formats; give one of them")
    named = None if run is None else run_id(parse_run(run))
    for option in ("since", "until"):
        where[option] = None if where[option] is None else day_or_time(f"--{option}", where[option])
    chosen = usage_filter(by=by, run_id=named, limit=limit or (LIST_ROWS_MAX if as_csv else ROWS), **where)
    if as_csv:
        run_async(_write(store, chosen, everything=limit is None))
    else:
        run_async(_show(store, chosen, as_json=as_json))


async def _show(url: str, where: UsageFilter, *, as_json: bool) -> None:
    from perdure.cli.usage_documents import usage_document
    from perdure.cli.usage_pages import print_usage
    from perdure.client.usage import info
    from perdure.terminal.page import Page, print_json

    async with opened(url) as store:
        rows = await store.usage(where)
        more = await is_more(
            rows, where.limit, lambda row: store.usage(replace(where, limit=1, after=(row.group, row.name)))
        )
        strange = await _strange(store, where) if not rows else None
    infos = [info(where.by, row) for row in rows]
    if as_json:
        print_json([usage_document(info) for info in infos])
    elif strange is not None:
        click.echo(strange)
    else:
        print_usage(Page(), infos, by=where.by, more=more)


async def _strange(store: Store, where: UsageFilter) -> str | None:
    """Why nothing is summed, where that is a name that is not there. Raises `NotFound` for a run."""
    from perdure.cli.nearest import none_of

    if where.run is not None:
        await find_run(store, run_id(where.run))
    for what, by, name in (("tenant", UsageBy.TENANT, where.tenant), ("agent", UsageBy.AGENT, where.agent)):
        groups = await store.usage(UsageFilter(by, limit=LIST_ROWS_MAX)) if name is not None else ()
        known = [str(row.group) for row in groups if row.group]
        if known and (said := none_of(f"usage of {what}", name or "", known)) is not None:
            return said
    names = await store.usage(UsageFilter(UsageBy.AGENT, limit=LIST_ROWS_MAX)) if where.name is not None else ()
    return none_of("usage of", where.name or "", (row.name for row in names)) if names else None


async def _write(url: str, where: UsageFilter, *, everything: bool) -> None:
    async with opened(url) as store:
        await _write_rows(store, where, everything=everything)


async def _write_rows(store: Store, where: UsageFilter, *, everything: bool) -> None:
    """Page after page, as spreadsheets read it."""
    from perdure.client.usage import info

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([where.by.value, "name", "quantity", "entries"])
    while rows := await store.usage(where):
        for each in (info(where.by, row) for row in rows):
            out.writerow([each.group, each.name, f"{each.quantity:f}", each.entries])
        if not everything or len(rows) < where.limit:
            break
        where = replace(where, after=(rows[-1].group, rows[-1].name))
