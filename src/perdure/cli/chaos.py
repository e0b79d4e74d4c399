"""`perdure chaos`: hurt real processes on a real store, and hold an independent recorder's word against the rows."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from perdure.cli.exits import Exit
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.testing.chaos.script import Script

FOLDER = click.Path(file_okay=False, path_type=Path)


class Minutes(click.FloatRange):
    """Minutes in a range; what is no number is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        minutes: float = super().convert(value, param, ctx)
        if math.isnan(minutes):
            self.fail(f"{value!r} is no number of minutes.", param, ctx)
        return minutes


@click.command()
@click.option("--store", metavar="URL", help="sqlite:/// or postgresql://.  [default: a SQLite file of its own]")
@click.option("--minutes", type=Minutes(0.05, 1440), metavar="N", default=1.0, show_default=True, help="How long.")
@click.option("--workers", type=click.IntRange(2, 32), default=4, show_default=True, help="Worker processes.")
@click.option("--clients", type=click.IntRange(1, 32), default=2, show_default=True, help="Client processes.")
@click.option("--seed", type=int, help="Of the faults and of what clients ask for.  [default: drawn, and shown]")
@click.option("--restart-command", metavar="COMMAND", help="A shell command that restarts the Postgres server.")
@click.option("--filler", metavar="DIR", type=FOLDER, help="A small file system, with the SQLite file on it, to fill.")
@click.option("--force", is_flag=True, help="Even on a store that others use.")
@click.option("--keep", metavar="DIR", type=FOLDER, help="Keep the recorder's file and the logs there.")
@click.option(
    "--report", "report_file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report there, as JSON.",
)  # fmt: skip
@click.pass_context
def chaos(
    ctx: click.Context, /, *, store: str | None, minutes: float, seed: int | None, keep: Path | None,
    report_file: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Hurt real workers on a real store, and check every promise.

    Workers and clients are killed, stopped, drained and replaced by another deployment's. On Postgres their connections
    go through a proxy that cuts, swallows, delays, and loses the answers to commits; backends are terminated, or the
    server is restarted if --restart-command says how ("pg_ctl restart -m immediate -D /var/lib/pg"). On SQLite the disk
    is filled, if --filler names one.

    Every step's body tells a recorder, a process that nobody harms, that it begins and how it ended; clients tell what
    they asked for and got. In the end this is held against the store: no start lost or doubled, every run terminal,
    every record with its body, no body run again after its record, every result what it must be. Exits with 1 if
    anything is otherwise, and shows the rows.

    Its rows stay in the store, so give it a database of its own; one that others use is refused. Ctrl-C, or SIGTERM,
    ends the processes and checks what there is.
    """
    from perdure.cli.chaos_page import introduce
    from perdure.testing.chaos.testimony import FILE

    check_report(report_file)
    folder = folder_for(keep)
    try:
        script = script_for(store, folder, minutes=minutes, seed=seed, options=options)
        log_to(folder / "director.log")
        introduce(script)
        code = perform(script, report_file)
    except BaseException:
        if keep is None and not (folder / FILE).exists():  # nobody has begun
            shutil.rmtree(folder)
            raise
        click.echo(f"what there is of the recorder's file and the logs is in {folder}", err=True)
        raise
    if keep is None and code is not Exit.UNWELL:
        shutil.rmtree(folder)
    else:
        click.echo(f"the recorder's file and the logs are in {folder}")
    ctx.exit(code)


def perform(script: Script, report_file: Path | None) -> Exit:
    """Do it and show what came of it; how to exit."""
    from perdure.cli.chaos_page import print_report, shown_progress
    from perdure.testing.chaos.director import Director
    from perdure.testing.chaos.report import document, report_of
    from perdure.testing.chaos.signals import ending_at_once, unheard

    ctx = click.get_current_context()
    ctx.with_resource(ending_at_once())
    with shown_progress() as show:
        verdict = asyncio.run(Director(script, show).perform())
    ctx.with_resource(unheard())  # until the command has ended: no signal may change what is told, or the exit code
    report = report_of(script, verdict)
    print_report(report, verdict.violations)
    if report_file is not None:
        report_file.write_text(json.dumps(document(report, verdict), indent=2) + "\n", encoding="utf-8")
    if verdict.violations:
        return Exit.UNWELL
    return Exit.OK if report.over else Exit.INTERRUPTED


def script_for(store: str | None, folder: Path, *, minutes: float, seed: int | None, options: dict[str, Any]) -> Script:
    """What the director is told, checked."""
    from perdure.testing.chaos.faults import check_filler
    from perdure.testing.chaos.roads import is_postgres
    from perdure.testing.chaos.script import Script

    url = f"sqlite:///{quote(str(folder / 'chaos.db'))}" if store is None else store
    if url.startswith("memory:"):
        raise UsageError("memory:// lives inside one process, and chaos has several; give a sqlite or postgresql URL")
    if options["restart_command"] is not None and not is_postgres(url):
        raise UsageError("--restart-command restarts a Postgres server, and this store has none")
    if options["filler"] is not None:
        if is_postgres(url):
            raise UsageError("--filler fills the disk of a SQLite store; this one is a server's")
        check_filler(options["filler"], url, folder)
    name = f"{datetime.now():chaos-%Y%m%d-%H%M%S}-{random.randrange(1 << 16):04x}"
    seed = random.randrange(1_000_000) if seed is None else seed
    return Script(store=url, name=name, folder=folder, seconds=minutes * 60, seed=seed, **options)


def check_report(path: Path | None) -> None:
    """Refuse a report file that could not be written in the end."""
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--report {path} would be in no directory that there is; make it first")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"--report {path} may not be written; name another file")


def folder_for(keep: Path | None) -> Path:
    """The folder that was asked for, empty, or a temporary one."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise UsageError(f"--keep {keep} is not empty; name a folder of its own for each time")
    return keep.resolve()


def log_to(path: Path) -> None:
    """What this process's own connections have to say goes into a file: the page is for the outcome."""
    logger = logging.getLogger("perdure")
    logger.addHandler(logging.FileHandler(path, encoding="utf-8"))
    logger.propagate = False
