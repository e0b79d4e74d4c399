"""`perdure start`: put a run on disk, and wait for its end if asked to."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from perdure.cli import amounts
from perdure.cli.amounts import budget_of, duration
from perdure.cli.options import app_store_option, json_option
from perdure.cli.remedies import look_at, told
from perdure.cli.stores import find_run, run_async
from perdure.cli.target import load_app
from perdure.errors import RunEnded, RunHeld, ThreadBusy, UsageError
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.cli.facts import Fact
    from perdure.cli.waiting import Why
    from perdure.runtime.handle import Handle
    from perdure.store.protocol import Store

LOOK_S = 1.0
"""How often somebody at a terminal is told where the run stands."""

PATIENCE_S = 3.0
"""How long a script waits before it is told that the run needs somebody."""


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.argument("agent")
@click.option("--args", metavar="JSON", default="[]", help="Arguments by position: a JSON array.")
@click.option("--kwargs", metavar="JSON", default="{}", help="Arguments by name: a JSON object.")
@click.option("--thread-id", metavar="THREAD", help="The thread it belongs to.  [one of its own]")
@click.option("--key", help="The same key gives the same run, however often it is started.")
@click.option("--if-busy", type=click.Choice(["enqueue", "reject", "join", "interrupt", "rollback"]),
              help="On a thread that has an unfinished run.  [enqueue, unless that has an open question]")  # fmt: skip
@click.option("--queue", help="The queue it waits in.  [the agent's]")
@click.option("--priority", type=int, default=0, help="Higher is claimed first.  [0]")
@click.option("--delay", metavar="TIME", default="0s", help="Not before then, such as 90s or 2h.")
@click.option("--deadline", metavar="TIME", help="It fails if it has not ended by then: 2h, or 2026-12-01T09:00+01:00.")
@click.option("--budget", multiple=True, metavar="UNIT=LIMIT",
              help="What it may use: usd=5, or usd=5,tokens=1000,steps=20,seconds=2h.")  # fmt: skip
@click.option("--tenant", help="Whose run it is.")
@click.option("--tag", "tags", multiple=True, help="A word to find it by; give it again for several.")
@click.option("--wait", is_flag=True, help="Wait for its end and print its result.")
@app_store_option
@json_option
def start(
    *, target: str, agent: str, args: str, kwargs: str, wait: bool, store: str | None, as_json: bool, **options: Any
) -> None:
    """Start a run of AGENT of MODULE:APP.

    It is on disk when the command returns. With --wait the result is printed as JSON; a run that fails or is held exits
    with 1.
    """
    from perdure.cli.arguments import parse_args, parse_kwargs, typed

    given, named = parse_args(args), parse_kwargs(kwargs)
    if taken := sorted(named.keys() & (options.keys() | {"tags"})):
        raise UsageError(
            f"--kwargs names {', '.join(taken)}, which `start` itself takes: give it as --{taken[0].replace('_', '-')}"
        )
    app = load_app(target, store=store)
    look_at(app.store_name)
    if app.store_name.startswith("memory:"):
        raise UsageError("memory:// ends with this command, and the run with it; give --store URL")
    options["deadline"] = amounts.deadline(options["deadline"])
    options["budget"] = budget_of("--budget", options["budget"])
    options["delay"] = delay_before(options["deadline"], options["delay"])
    values, named = typed(app.find_agent(agent).signature, given, named)
    run_async(_start(app, agent, values, {**named, **options}, target=target, wait=wait, as_json=as_json))


def delay_before(deadline: float | datetime | None, delay: str) -> float:
    """The delay, in seconds. Refuses a run that may not begin before its deadline has come: it could only fail."""
    wait = duration("--delay", delay)
    if deadline is None:
        return wait
    left = (deadline - datetime.now(UTC)).total_seconds() if isinstance(deadline, datetime) else deadline
    if wait and left <= wait:
        raise UsageError(
            f"--deadline comes before --delay {delay} is over: the run could only fail; give it a later deadline or a "
            "shorter delay"
        )
    return wait


def question_met(error: ThreadBusy) -> ThreadBusy:
    """A refusal for an open question, with what can be done about it here."""
    return ThreadBusy(
        f"thread {clean(error.thread_id)} waits for an answer: run {error.run_id} has asked {error.interrupt_id}. "
        f"Answer it (`perdure interrupts show {error.interrupt_id}` says how), or say what becomes of it: --if-busy "
        "enqueue starts this after it, interrupt and rollback cancel what asked, join gives that run, reject refuses",
        **error.ids,
    )


async def _start(
    app: App, agent: str, args: list[Any], kwargs: dict[str, Any], *, target: str, wait: bool, as_json: bool
) -> None:
    async with app:
        store = (await app._client()).store
        try:
            handle = await app.start(agent, *args, **kwargs)
        except ThreadBusy as error:
            raise question_met(error) if "interrupt_id" in error.ids else error from error
        if wait:
            click.echo(f"{handle.run_id} on thread {clean(handle.thread_id)}", err=True)
            try:
                await _ended(store, handle, target)
            except (RunEnded, RunHeld):
                if as_json:
                    _print_document(await _fact(store, handle.run_id))
                raise
        fact = await _fact(store, handle.run_id)
    if as_json:
        _print_document(fact)
    elif wait:
        click.echo(json.dumps(fact.result, ensure_ascii=False, indent=2))
    else:
        where = f"; it waits for {fact.why.what}" if fact.why else ""
        click.echo(f"{handle.run_id} on thread {clean(handle.thread_id)} is {fact.run.state.value}{where}")
        if fact.why and fact.why.remedy:
            click.echo(f"{_of(fact.why.remedy, target)} (on {app.store_name})", err=True)


async def _ended(store: Store, handle: Handle[Any], target: str) -> None:
    """Wait for the end, and say meanwhile what the run waits for."""
    result = asyncio.ensure_future(handle.result())
    try:
        await (_show_progress if sys.stderr.isatty() else _say_once)(store, handle.run_id, result, target)
        await result
    finally:
        result.cancel()


async def _show_progress(store: Store, name: str, result: asyncio.Future[Any], target: str) -> None:
    """A line on the terminal that says where the run stands."""
    from perdure.terminal.page import Page

    with Page(stderr=True).status(f"{name} …") as status:
        while not (await asyncio.wait({result}, timeout=LOOK_S))[0]:
            fact = await _fact(store, name)
            standing = _waits(fact.why, target) if fact.why else f"super-step {fact.run.super_step}"
            status.update(f"{name} {fact.run.state.value}: {standing}")


async def _say_once(store: Store, name: str, result: asyncio.Future[Any], target: str) -> None:
    """A line in the log, if the run waits for somebody to do something."""
    while not (await asyncio.wait({result}, timeout=PATIENCE_S))[0]:
        fact = await _fact(store, name)
        if fact.why and fact.why.remedy:
            click.echo(f"{name} {_waits(fact.why, target)}", err=True)
            return


def _waits(why: Why, target: str) -> str:
    return f"waits for {why.what}" + (f" ({_of(why.remedy, target)})" if why.remedy else "")


def _of(remedy: str, target: str) -> str:
    """The remedy with the app's own name in the command it tells."""
    return told(remedy).replace("MODULE:APP", target)


async def _fact(store: Store, name: str) -> Fact:
    from perdure.cli.facts import gather_facts

    return (await gather_facts(store, [await find_run(store, name)])).items[0]


def _print_document(fact: Fact) -> None:
    from perdure.cli.documents import run_document
    from perdure.terminal.page import print_json

    print_json(run_document(fact))
