"""`perdure doctor`: this machine and the store, check by check, each with what to do about it.

The store's own checks (file system, durability, speed of fsync, clock) are `Store.diagnose`. For a SQLite file that is
not there yet they run on a scratch file in its directory, so that a new user learns before the first run.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import click

from perdure.cli.exits import Exit
from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import told
from perdure.cli.stores import run_async, sqlite_path
from perdure.errors import PerdureError, SchemaAhead, SchemaOutdated, UsageError

if TYPE_CHECKING:
    from perdure.store.protocol import Store


NAMED_MAX = 5
"""Workers that a check names."""


LANES_MAX = 100
"""Lanes whose first deliveries are looked at."""


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    well: bool
    found: str


@click.command()
@store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, store: str, as_json: bool) -> None:
    """Check this machine and the store, and say what to do.

    Exits with 1 if something is wrong.
    """
    checks = run_async(_examine(store))
    if as_json:
        from perdure.terminal.page import print_json

        print_json([check._asdict() for check in checks])
    else:
        _print(checks)
    if not all(check.well for check in checks):
        ctx.exit(Exit.UNWELL)


async def _examine(url: str) -> list[Check]:
    checks = [python_check(), *library_checks(url)]
    if all(check.well for check in checks):
        checks += [check async for check in _store_checks(url)]
    return checks


def python_check() -> Check:
    """The interpreter."""
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    )
    well = sys.version_info >= (3, 11)
    return Check("python", well, found if well else f"{found}; perdure needs 3.11 or newer")


def library_checks(url: str) -> list[Check]:
    """What has to be installed for this store, and what makes things faster."""
    checks = []
    if url.startswith(("postgres:", "postgresql:")):
        there = find_spec("asyncpg") is not None
        found = "asyncpg is installed" if there else "asyncpg is missing: pip install 'perdure[postgres]'"
        checks.append(Check("driver", there, found))
    loop = "uvloop" if find_spec("uvloop") else "asyncio (uvloop is not installed: slower, otherwise the same)"
    checks.append(Check("event loop", True, loop))
    return checks


async def _store_checks(url: str) -> AsyncIterator[Check]:
    path = sqlite_path(url)
    if path is None or path.exists():
        async for check in _open_checks(url):
            yield check
        return
    yield Check("store", True, f"{path} is not there yet; `perdure migrate` or the first app creates it")
    try:
        with tempfile.TemporaryDirectory(prefix=".perdure-doctor-", dir=path.parent) as scratch:
            async for check in _open_checks(f"sqlite:///{quote(scratch)}/scratch.db"):
                if check.what != "store":
                    yield check
    except OSError as error:
        yield Check(
            "directory",
            False,
            f"cannot create a file in {path.parent}: {error.strerror}; choose another --store",
        )


async def _open_checks(url: str) -> AsyncIterator[Check]:
    from perdure.store import open_url

    began = time.perf_counter()
    try:
        store = open_url(url)
        await store.open()
    except (SchemaOutdated, SchemaAhead) as error:
        yield Check("schema", False, str(error))
        return
    except PerdureError as error:
        yield Check("url" if isinstance(error, UsageError) else "store", False, str(error))
        return
    try:
        yield Check("store", True, f"{store.url} answers, opened in {(time.perf_counter() - began) * 1e3:.0f} ms")
        for check in await store.diagnose():
            yield Check(*check)
        for found in [*await _silent_workers(store), *await _overdue(store), *await _for_people(store)]:
            yield found
    finally:
        await store.close()


async def _silent_workers(store: Store) -> list[Check]:
    """Workers that were killed, and that nobody has declared dead yet: unwell, where they hold runs that nobody else is
    there to take over."""
    from perdure.cli.worker_pages import is_silent
    from perdure.core.records import worker_id
    from perdure.terminal.text import count

    rows, silent, now_us = await store.workers(alive=True), await store.silent_workers(), await store.now_us()
    gone = [row for row in rows if is_silent(row, silent=silent, now_us=now_us)]
    if not gone:
        return []
    held = sum(row.running for row in gone)
    names = ", ".join(worker_id(row.id) for row in gone[:NAMED_MAX]) + (" …" if len(gone) > NAMED_MAX else "")
    said = f"{count(len(gone), 'worker')} without a sign of life ({names}), with {count(held, 'run')} in hand"
    if len(rows) > len(gone):
        return [Check("workers", True, f"{said}; another one takes over within a lease: `perdure workers list`")]
    return [Check("workers", not held, f"{said}, and no other is alive; start one: `perdure worker MODULE:APP`")]


async def _overdue(store: Store) -> list[Check]:
    """Deliveries that nobody takes."""
    from perdure.cli.worker_pages import is_anybody_alive
    from perdure.client.deliveries import OVERDUE_US, due_since
    from perdure.terminal.text import clean, duration

    now_us = await store.now_us()
    rows = await store.overdue_deliveries(now_us - OVERDUE_US, limit=LANES_MAX + 1)
    found = [(row.sink, await due_since(store, row)) for row in rows[:LANES_MAX]]
    late = [(sink, now_us - since) for sink, since in found if since is not None and now_us - since > OVERDUE_US]
    if not late:
        return []
    sinks = list(dict.fromkeys(clean(sink) for sink, _ in late))
    named = ", ".join(sinks[:NAMED_MAX]) + (" …" if len(sinks) > NAMED_MAX else "")
    more = " or more" if len(rows) > LANES_MAX else ""
    count = f"{_counted(len(late), 'delivery')}{more}"
    said = f"{count} due for more than a minute, the oldest for {duration(max(us for _, us in late))} (to {named})"
    if not await is_anybody_alive(store):
        return [Check("overdue", False, f"{said}: no worker is alive; start one: `perdure worker MODULE:APP`")]
    shown = "`perdure deliveries list --state queued`"
    start = "start one whose app has them: `perdure worker MODULE:APP`"
    return [Check("overdue", False, f"{said}: no worker that is alive takes them ({shown}); {start}")]


async def _for_people(store: Store) -> list[Check]:
    """What waits for a person to do something. That is nobody's fault, so it is well; but it should be seen."""
    from perdure.core.deliveries import DeliveryFilter, DeliveryState
    from perdure.core.effects import EffectFilter, EffectState
    from perdure.core.limits import LIST_ROWS_MAX
    from perdure.core.records import RunState
    from perdure.core.requests import InterruptFilter, RunFilter

    found = {
        ("questions", "open question", "perdure interrupts list"): len(
            await store.interrupts(InterruptFilter(limit=LIST_ROWS_MAX))
        ),
        ("dead letters", "dead letter", "perdure messages dead"): len(await store.dead_letters(limit=LIST_ROWS_MAX)),
        ("held runs", "held run", "perdure runs list --state held"): len(
            await store.list_runs(RunFilter(state=RunState.HELD, limit=LIST_ROWS_MAX))
        ),
        ("unknown", "unknown effect", "perdure effects list --state unknown"): len(
            await store.effects(EffectFilter(state=EffectState.UNKNOWN, limit=LIST_ROWS_MAX))
        ),
        ("undos", "failed undo", "perdure effects list --state undo_failed"): len(
            await store.effects(EffectFilter(state=EffectState.UNDO_FAILED, limit=LIST_ROWS_MAX))
        ),
        ("deliveries", "dead delivery", "perdure deliveries list --state dead"): len(
            await store.deliveries(DeliveryFilter(state=DeliveryState.DEAD, limit=LIST_ROWS_MAX))
        ),
    }
    return [
        Check(what, True, f"{_counted(number, noun)}{' or more' if number >= LIST_ROWS_MAX else ''}: `{shown}`")
        for (what, noun, shown), number in found.items()
        if number
    ]


def _counted(number: int, noun: str) -> str:
    from perdure.terminal.text import count

    return count(number, noun, noun.removesuffix("y") + "ies" if noun.endswith("y") else None)


def _print(checks: list[Check]) -> None:
    from rich.text import Text

    from perdure.terminal.page import Page, table

    page = Page()
    rows = table("", "check", "found", give=("found",))
    rows.show_header = False
    rows.columns[2].overflow = "fold"
    for check in checks:
        mark = Text(page.marks.ok, "green") if check.well else Text(page.marks.bad, "bold red")
        rows.add_row(mark, check.what, Text(told(check.found), style="" if check.well else "bold"))
    page.print(rows)
    wrong = sum(not check.well for check in checks)
    page.say()
    page.say(Text("all well", "green") if not wrong else Text(f"{wrong} of {len(checks)} checks failed", "bold red"))
