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
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from perdure.cli.checks import Check, standing_checks
from perdure.cli.exits import Exit
from perdure.cli.options import json_option, store_option
from perdure.cli.remedies import told
from perdure.cli.stores import run_async, sqlite_path
from perdure.errors import PerdureError, SchemaAhead, SchemaOutdated, UsageError

if TYPE_CHECKING:
    from rich.text import Text

    from perdure.terminal.page import Page


@click.command()
@store_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, store: str, as_json: bool) -> None:
    """Check this machine and the store, and say what to do.

    Exits with 1 if something is wrong; what waits for a person is told, and exits with 0.
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
        for found in await standing_checks(store):
            yield found
    finally:
        await store.close()


def _print(checks: list[Check]) -> None:
    from rich.text import Text

    from perdure.terminal.page import Page, table

    page = Page()
    rows = table("", "check", "found", give=("found",))
    rows.show_header = False
    rows.columns[2].overflow = "fold"
    for check in checks:
        rows.add_row(_mark(page, check), check.what, Text(told(check.found), style="" if check.well else "bold"))
    page.print(rows)
    page.say()
    page.say(_verdict(checks))


def _mark(page: Page, check: Check) -> Text:
    from rich.text import Text

    if check.for_person:
        return Text(page.marks.person, "bold yellow")
    return Text(page.marks.ok, "green") if check.well else Text(page.marks.bad, "bold red")


def _verdict(checks: list[Check]) -> Text:
    """The last line: well is a store in which nothing is wrong and nothing waits for a person."""
    from rich.text import Text

    if wrong := sum(not check.well for check in checks):
        return Text(f"{wrong} of {len(checks)} checks failed", "bold red")
    if any(check.for_person for check in checks):
        return Text("nothing is wrong, and some of it waits for a person", "bold yellow")
    return Text("all well", "green")
