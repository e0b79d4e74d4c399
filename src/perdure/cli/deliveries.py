"""`perdure deliveries`: the outbox, one delivery, and sending dead ones on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from perdure.cli.options import json_option, page_options, store_option, thread_option
from perdure.cli.paging import is_more
from perdure.cli.stores import find_run, opened_app, parse_run, run_async
from perdure.core.deliveries import DeliveryFilter, DeliveryState
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import run_id
from perdure.errors import UsageError
from perdure.terminal.text import clean, count

if TYPE_CHECKING:
    from perdure.store.protocol import Store

STATES = [state.value for state in DeliveryState]


@click.group()
def deliveries() -> None:
    """List what runs have handed over to sinks, and send on what was given up."""


@deliveries.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only deliveries in this state.")
@click.option("--sink", help="Only deliveries to this sink.")
@click.option("--partition", help="Only deliveries of this partition.")
@click.option("--key", help="Only those that their sinks know by this key.")
@click.option("--run", "run", metavar="RUN", help="Only deliveries of this run.")
@thread_option("deliveries")
@click.option("--tenant", help="Only deliveries of this tenant's runs.")
@click.option("--bills/--no-bills", "bill", default=None, help="Only bills, or only others.")
@page_options("delivery", many="deliveries")
@store_option
@json_option
def list_deliveries(
    *, store: str, state: str | None, run: str | None, bill: bool | None, limit: int, after: str | None, as_json: bool,
    **where: str | None,
) -> None:  # fmt: skip
    """List what runs have handed over, oldest first."""
    from perdure.client.deliveries import delivery_filter

    chosen = delivery_filter(state=state, run_id=_run(run), bill=bill, limit=limit, after=after, **_all(where))
    run_async(_list(store, chosen, as_json=as_json))


def _run(name: str | None) -> str | None:
    return None if name is None else run_id(parse_run(name))


def _all(where: dict[str, str | None]) -> Any:
    """Options by name, with None for those that a command does not have."""
    return {"sink": None, "partition": None, "key": None, "thread_id": None, "tenant": None} | where


async def _list(url: str, where: DeliveryFilter, *, as_json: bool) -> None:
    from perdure.cli.delivery_documents import delivery_document
    from perdure.cli.delivery_pages import print_deliveries
    from perdure.client.deliveries import delivery_number, listed
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        client = await app._client()
        infos = await listed(client, where)
        more = await is_more(
            infos,
            where.limit,
            lambda info: client.store.deliveries(replace(where, limit=1, after=delivery_number(info.id))),
        )
        now_us = await client.store.now_us()
        strange = await _strange(client.store, where) if not infos else None
        further = await _further(client.store, where, infos[-1].id) if more and where.state is None else {}
    if as_json:
        print_json([delivery_document(info) for info in infos])
    elif strange is not None:
        click.echo(strange)
    else:
        print_deliveries(Page(), infos, state=where.state, now_us=now_us, more=more, further=further)


async def _strange(store: Store, where: DeliveryFilter) -> str | None:
    """Why nothing is found, where that is a name that is not there. Raises `NotFound` for a run."""
    from perdure.cli.nearest import none_of, none_of_runs

    if where.run is not None:
        await find_run(store, run_id(where.run))
    if (said := await none_of_runs(store, tenant=where.tenant)) is not None:
        return said
    if where.sink is None or await store.deliveries(DeliveryFilter(sink=where.sink, limit=1)):
        return None
    rows = await store.deliveries(DeliveryFilter(limit=LIST_ROWS_MAX))
    return none_of("deliveries to sink", where.sink, (row.sink for row in rows)) if rows else None


async def _further(store: Store, where: DeliveryFilter, last: str) -> dict[DeliveryState, int]:
    """How many of those that come after a page wait for somebody, or are dead."""
    from perdure.client.deliveries import delivery_number

    rest = replace(where, after=delivery_number(last), limit=LIST_ROWS_MAX)
    states = (DeliveryState.DEAD, DeliveryState.QUEUED)
    return {each: len(await store.deliveries(replace(rest, state=each))) for each in states}


@deliveries.command("show", short_help="Show one delivery, and what to do about it.")
@click.argument("delivery")
@store_option
@json_option
def show_delivery(*, store: str, delivery: str, as_json: bool) -> None:
    """Show DELIVERY: what it holds, where it goes, what came of it, and what to do."""
    run_async(_show(store, delivery, as_json=as_json))


async def _show(url: str, name: str, *, as_json: bool) -> None:
    from perdure.cli.delivery_documents import delivery_document
    from perdure.cli.delivery_pages import print_delivery
    from perdure.cli.worker_pages import is_anybody_alive
    from perdure.client.deliveries import delivery_number, due_since
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        info = await app.delivery_info(name)
        store = (await app._client()).store
        rows = await store.get_deliveries([delivery_number(info.id)])
        since, served = await due_since(store, rows[0]), await is_anybody_alive(store)
        now_us = await store.now_us()
    if as_json:
        print_json(delivery_document(info))
    else:
        print_delivery(Page(), info, now_us=now_us, since=since, alive=served)


@deliveries.command("redeliver", short_help="Send dead deliveries on.")
@click.argument("names", metavar="[DELIVERY]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead delivery, or every one that these options leave.")
@click.option("--sink", help="With --all: only those to this sink.")
@click.option("--partition", help="With --all: only those of this partition.")
@click.option("--run", "run", metavar="RUN", help="With --all: only those of this run.")
@click.option("--tenant", help="With --all: only those of this tenant's runs.")
@store_option
@json_option
def redeliver_deliveries(
    *, store: str, names: tuple[str, ...], everything: bool, run: str | None, as_json: bool, **where: str | None
) -> None:
    """Send dead deliveries on, under their keys, each to the end of its lane.

    They are named, or --all of them. Of those that are named none is sent on where one is not dead; that exits with 4.
    """
    from perdure.client.deliveries import delivery_filter

    if bool(names) == everything:
        raise UsageError("name dead deliveries (`perdure deliveries list --state dead` shows them), or say --all")
    if names and (narrowing := [option for option, value in {**where, "run": run}.items() if value is not None]):
        raise UsageError(f"--{narrowing[0]} goes with --all; deliveries that are named need nothing else")
    if names:
        run_async(_redeliver(store, names, as_json=as_json))
        return
    chosen = delivery_filter(state="dead", run_id=_run(run), bill=None, limit=1, after=None, **_all(where))
    run_async(_redeliver_all(store, chosen, as_json=as_json))


async def _redeliver(url: str, names: tuple[str, ...], *, as_json: bool) -> None:
    from perdure.cli.delivery_documents import delivery_document
    from perdure.client.deliveries import redeliver
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        infos = await redeliver(await app._client(), names)
    if as_json:
        print_json([delivery_document(info) for info in infos])
        return
    for info in infos:
        lane = f"sink {clean(info.sink)}, partition {clean(info.partition)}"
        click.echo(f"{info.id} is {info.state.value} again, as number {info.seq} of its lane ({lane})")


async def _redeliver_all(url: str, where: DeliveryFilter, *, as_json: bool) -> None:
    from perdure.client.deliveries import redeliver_all
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        client = await app._client()
        number = await redeliver_all(client, where)
        strange = await _strange(client.store, where) if not number else None
    if as_json:
        print_json({"redelivered": number})
    elif number:
        click.echo(f"{count(number, 'dead delivery', 'dead deliveries')} sent on")
    else:
        click.echo(strange or "no dead deliveries")
