"""`perdure cancel`: ask a run to end, and say how it will."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import told
from perdure.cli.stores import find_run, opened_app, parse_run, run_async
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Run, RunState, run_id
from perdure.core.requests import RunFilter
from perdure.errors import Conflict
from perdure.terminal.text import clean, count

if TYPE_CHECKING:
    from perdure.cli.facts import Fact
    from perdure.store.protocol import Store


@click.command()
@click.argument("run")
@click.option("--reason", help="Why, for people: its page and its error say so.")
@store_option
@json_option
def cancel(*, store: str, run: str, reason: str | None, as_json: bool) -> None:
    """Cancel RUN, and the runs that it has started.

    Of those, not the ones that are detached. When the command returns, the cancellation is on disk: the run ends as
    cancelled, whatever it still does to clean up. If it had ended otherwise before, that stands, and the exit code is
    4.
    """
    run_async(_cancel(store, run_id(parse_run(run)), reason, as_json=as_json))


async def _cancel(url: str, name: str, reason: str | None, *, as_json: bool) -> None:
    from perdure.cli.documents import run_document
    from perdure.cli.facts import gather_facts
    from perdure.terminal.page import print_json

    async with opened_app(url) as app:
        store = (await app._client()).store
        before = await find_run(store, name)
        outcome = await app.cancel(name, reason=reason)
        fact = (await gather_facts(store, [await find_run(store, name)])).items[0]
        children = await _cancelled_children(store, fact.run)
    if as_json:
        print_json(run_document(fact))
    if outcome is not RunState.CANCELLED:
        raise Conflict(
            f"{name} had {outcome.value} before, so nothing was cancelled; `perdure runs show {name}` says how it went",
            run_id=name, state=outcome,
        )  # fmt: skip
    if not as_json:
        click.echo(_told(fact, before) + _with(children))


async def _cancelled_children(store: Store, run: Run) -> list[Run]:
    """The children that go with it."""
    found = await store.list_runs(RunFilter(parent=run.id, limit=LIST_ROWS_MAX))
    return [child for child in found if child.cancel is not None or child.state is RunState.CANCELLED]


def _told(fact: Fact, before: Run) -> str:
    """How it ends, and who is still to see to that."""
    run, name = fact.run, run_id(fact.run.id)
    if before.state is RunState.CANCELLED:
        return f"{name} was cancelled before{_why(before)}"
    again = f" (that was requested before{_why(before)})" if before.cancel is not None else ""
    if run.state is RunState.CANCELLED:
        return f"{name} is cancelled{again}"
    if fact.why is None:
        return f"{name} will end as cancelled{again}: its worker lets its code clean up"
    remedy = f"; {told(fact.why.remedy)}" if fact.why.remedy else ""
    return (
        f"{name} will end as cancelled{again}, when its code has cleaned up; for that it waits for {fact.why.what}"
        + remedy
    )


def _why(run: Run) -> str:
    return f": {clean(run.cancel)}" if run.cancel else ""


def _with(children: list[Run]) -> str:
    if not children:
        return ""
    names = ", ".join(run_id(child.id) for child in children[:3])
    more = f" and {len(children) - 3} more" if len(children) > 3 else ""
    will = "is" if len(children) == 1 else "are"
    return f"\n{count(len(children), 'run')} that it has started {will} cancelled with it: {names}{more}"
