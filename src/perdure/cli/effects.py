"""`perdure effects`: the ledger, one effect, and saying what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.given import parse_json_or_word
from perdure.cli.options import json_option, page_options, store_option
from perdure.cli.paging import is_more
from perdure.cli.resume import login_name
from perdure.cli.stores import find_run, opened_app, parse_run, run_async
from perdure.core.effects import EffectFilter, EffectState
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import run_id
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.cli.effect_pages import Standing
    from perdure.store.protocol import Store

STATES = [state.value for state in EffectState]


@click.group()
def effects() -> None:
    """List what agents did to the outside world, and say what became of it."""


@effects.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only effects in this state.")
@click.option("--run", "run", metavar="RUN", help="Only effects of this run.")
@click.option("--thread-id", "--thread", "thread_id", metavar="THREAD", help="Only effects of this thread.")
@click.option("--agent", help="Only effects of this agent.")
@click.option("--name", help="Only effects of this name.")
@click.option("--tenant", help="Only effects of this tenant's runs.")
@click.option("--undoable/--not-undoable", default=None, help="Only effects that have an undo, or that have none.")
@page_options("effect")
@store_option
@json_option
def list_effects(
    *, store: str, state: str | None, run: str | None, undoable: bool | None, limit: int, as_json: bool,
    **where: str | None,
) -> None:  # fmt: skip
    """List the effects of all agents, oldest first."""
    chosen = {**where, "state": state, "run_id": None if run is None else run_id(parse_run(run)), "undoable": undoable}
    run_async(_list(store, chosen, limit=limit, as_json=as_json))


async def _list(url: str, where: dict[str, Any], *, limit: int, as_json: bool) -> None:
    from perdure.cli.effect_documents import effect_document
    from perdure.cli.effect_pages import print_effects
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        infos = await app.effects(**where, limit=limit)
        more = await is_more(infos, limit, lambda info: app.effects(**where | {"after": info.id}, limit=1))
        store = (await app._client()).store
        strange = await _strange(store, where) if not infos else None
        now_us = await store.now_us()
    if as_json:
        print_json([effect_document(info) for info in infos])
    elif strange is not None:
        click.echo(strange)
    else:
        print_effects(Page(), infos, state=where["state"], now_us=now_us, more=more)


async def _strange(store: Store, where: dict[str, Any]) -> str | None:
    """Why nothing is found, where that is a name that is not there. Raises `NotFound` for a run."""
    from perdure.cli.nearest import none_of

    if where["run_id"] is not None:
        await find_run(store, where["run_id"])
    named = [name for name in ("agent", "name", "tenant") if where[name] is not None]
    rows = await store.effects(EffectFilter(limit=LIST_ROWS_MAX)) if named else ()
    for name in named:
        known = {value for row in rows if (value := getattr(row, name)) is not None}
        what = "effects of name" if name == "name" else f"effects of {name}"
        if known and (said := none_of(what, where[name], known)) is not None:
            return said
    return None


@effects.command("show")
@click.argument("effect")
@store_option
@json_option
def show_effect(*, store: str, effect: str, as_json: bool) -> None:
    """Show EFFECT: with what it was called, what became of it, who wrote so, and what to do."""
    run_async(_show(store, effect, as_json=as_json))


async def _show(url: str, name: str, *, as_json: bool) -> None:
    from perdure.cli.effect_documents import effect_document
    from perdure.cli.effect_pages import print_effect
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        standing = await _standing(app, name)
        now_us = await (await app._client()).store.now_us()
    if as_json:
        print_json(effect_document(standing.info))
    else:
        print_effect(Page(), standing, now_us=now_us)


@effects.command("resolve")
@click.argument("effect")
@click.option("--happened", is_flag=True, help="It happened, with the --result.")
@click.option("--did-not-happen", is_flag=True, help="It did not, and never will.")
@click.option("--undone", is_flag=True, help="Its undo failed, and somebody has undone it by hand.")
@click.option("--result", metavar="JSON", help="What it returned, with --happened; null if it is left out.")
@click.option("--by", metavar="NAME", help="Who found out.  [your login name]")
@click.option("--note", help="How, in a few words.")
@store_option
@json_option
def resolve_effect(
    *, store: str, effect: str, happened: bool, did_not_happen: bool, undone: bool, result: str | None, by: str | None,
    note: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say what became of EFFECT, where nobody knows.

    Where its run has asked, that is the answer, and it goes on. Where its run has ended or is held, the ledger is told,
    and `perdure retry` or `perdure release` sends the run on with that. The same again changes nothing; where something
    else is known by now, a worker is at it, or one that was taken over may still be (until its lease is over), nothing
    is changed and the exit code is 4.
    """
    flags = {"--happened": happened, "--did-not-happen": did_not_happen, "--undone": undone}
    said = [flag for flag, given in flags.items() if given]
    if len(said) != 1:
        given = f"{' and '.join(said)} were given" if said else "none was given"
        raise UsageError(f"say one of --happened, --did-not-happen and --undone; {given}")
    if result is not None and not happened:
        raise UsageError(f"--result goes with --happened; with {said[0]} there is none")
    value = None if result is None else parse_json_or_word("--result", result)[0]
    words = {"happened": None if undone else happened, "undone": undone, "result": value, "note": note}
    run_async(_resolve(store, effect, {**words, "by": by or login_name()}, as_json=as_json))


async def _resolve(url: str, name: str, words: dict[str, Any], *, as_json: bool) -> None:
    from perdure.cli.effect_documents import effect_document
    from perdure.cli.effect_pages import print_resolved
    from perdure.terminal.page import Page, print_json

    async with opened_app(url) as app:
        await app.resolve_effect(name, **words)
        standing = await _standing(app, name)
    if as_json:
        print_json(effect_document(standing.info))
    else:
        print_resolved(Page(), standing)


async def _standing(app: App, name: str) -> Standing:
    """An effect with its run, and the question about it."""
    from perdure.cli.effect_pages import Standing
    from perdure.client.effects import effect_number, open_question

    info = await app.effect_info(name)
    store = (await app._client()).store
    (row,) = await store.get_effects([effect_number(name)])
    return Standing(info, await find_run(store, info.run_id), await open_question(store, row))
