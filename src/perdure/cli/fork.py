"""`perdure fork`: go on from a checkpoint on another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.given import parse_json, text_or_file
from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import look_at, told
from perdure.cli.stores import find_run, find_thread, parse_run, require_there, run_async
from perdure.cli.target import load_app
from perdure.core.records import Run, run_id
from perdure.errors import NotSerializable, UsageError
from perdure.terminal.text import clean, count

if TYPE_CHECKING:
    from perdure.app import App
    from perdure.runtime.handle import Handle
    from perdure.store.protocol import Store


@click.command()
@click.argument("thread")
@click.option("--run", metavar="RUN", help="A run of the thread.  [its newest]")
@click.option("--super-step", type=click.IntRange(1), metavar="N", help="Begin at this super-step.  [the run's newest]")
@click.option("--key", help="Take over what was recorded before this step.  [nothing]")
@click.option("--state", metavar="JSON|@FILE", help="Another state than the super-step began with; needs --app.")
@click.option("--args", metavar="JSON|@FILE", help="Other arguments by position, an array; needs --app.")
@click.option("--kwargs", metavar="JSON|@FILE", help="Other arguments by name, an object; needs --app.")
@click.option("--thread-id", metavar="NEW", help="The new thread.  [one of its own]")
@click.option("--app", "target", metavar="MODULE:APP", help="The app whose agent checks what is changed.")
@store_option
@json_option
@click.pass_context
def fork(ctx: click.Context, /, *, target: str | None, store: str, **options: Any) -> None:
    """Start a run on a new thread that goes on from a checkpoint of THREAD.

    THREAD stays as it is. The new run begins with the arguments and the state of that super-step, or with others, and
    takes over what was recorded before --key: `perdure runs show` has the super-steps and the keys. Steps from there on
    run again; children that were started before are not started again.
    """
    from perdure.app import App

    changed = [name for name in ("state", "args", "kwargs") if options[name] is not None]
    if changed and target is None:
        raise UsageError(f"--{changed[0]} is checked by the agent that gets it: say where it is with --app MODULE:APP")
    if target is None:
        app = App("perdure", store=store)
    else:
        typed = ctx.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE
        app = load_app(target, store=store if typed else None)
        look_at(app.store_name)
    require_there(app.store_url)
    run_async(_fork(app, **options))


async def _fork(
    app: App, *, thread: str, run: str | None, super_step: int | None, key: str | None, state: str | None,
    args: str | None, kwargs: str | None, thread_id: str | None, as_json: bool,
) -> None:  # fmt: skip
    of_run = None if run is None else run_id(parse_run(run))
    async with app:
        store = (await app._client()).store
        agent = (await find_thread(store, thread)).agent
        edits = _edits(app, agent, state, args, kwargs)
        handle = await app.thread(thread).fork(super_step, key, run_id=of_run, thread_id=thread_id, **edits)
        await _report(store, handle, thread, as_json=as_json)


def _edits(app: App, agent: str, state: str | None, args: str | None, kwargs: str | None) -> dict[str, Any]:
    """What is changed, as the agent declares it."""
    from perdure.cli.arguments import parse_args, parse_kwargs, typed

    edits: dict[str, Any] = {}
    if args is not None or kwargs is not None:
        by_place = parse_args(text_or_file("--args", args or "[]"))
        by_name = parse_kwargs(text_or_file("--kwargs", kwargs or "{}"))
        edits["args"], edits["kwargs"] = typed(app.find_agent(agent).signature, by_place, by_name)
    if state is not None:
        edits["state"] = _state(app, agent, parse_json("--state", text_or_file("--state", state)))
    return edits


def _state(app: App, name: str, data: Any) -> Any:
    declared = app.find_agent(name).state
    if declared is None:
        return data  # which is refused, with the reason
    try:
        return declared.load(data)
    except NotSerializable as error:
        raise UsageError(f"--state is no state of agent {clean(name)}: {error}") from error


async def _report(store: Store, handle: Handle[Any], thread: str, *, as_json: bool) -> None:
    from perdure.cli.documents import run_document
    from perdure.cli.facts import gather_facts
    from perdure.terminal.page import print_json

    run = await find_run(store, handle.run_id)
    fact = (await gather_facts(store, [run])).items[0]
    if as_json:
        print_json(run_document(fact))
        return
    taken = await _taken(store, run)
    begins = (
        f"with {count(taken, 'recorded step')} of it, which will not run again"
        if taken
        else "with none of its recorded steps: all of them run again (--key takes over what is before a step)"
    )
    click.echo(
        f"{handle.run_id} on thread {clean(handle.thread_id)} goes on from super-step {run.super_step} of "
        f"{clean(thread)}, {begins}"
    )
    if fact.why:
        remedy = f"; {told(fact.why.remedy)}" if fact.why.remedy else ""
        click.echo(f"it is {run.state.value}; it waits for {fact.why.what}{remedy}")


async def _taken(store: Store, run: Run) -> int:
    """How many records it has taken over: what is older than itself. It may be on its way already."""
    from perdure.core.records import Kind
    from perdure.store.pages import whole_log

    log = [row async for row in whole_log(store, run.id, super_step=run.super_step)]
    return sum(row.kind is Kind.STEP and row.ended_at <= run.created_at for row in log)
