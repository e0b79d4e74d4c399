"""`perdure runs export` and `perdure runs replay`: a run's history as a file, and files against the code of today."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.exits import Exit
from perdure.cli.options import json_option, store_option
from perdure.cli.stores import find_run, opened, run_async
from perdure.cli.target import load_app
from perdure.errors import UsageError
from perdure.terminal.text import clean_block, count

if TYPE_CHECKING:
    from perdure.testing import Replayed


@click.command("export")
@click.argument("run")
@click.option("--to", "path", metavar="FILE", required=True, help="Where it goes; a file that is there is replaced.")
@store_option
def export_run(*, store: str, run: str, path: str) -> None:
    """Write the history of RUN to a file.

    It holds all that is recorded of the run, its values included. `perdure runs replay` reads it.
    """
    run_async(_export(store, run, Path(path)))


async def _export(url: str, name: str, path: Path) -> None:
    from perdure.testing.replaying import read_history

    async with opened(url) as store:
        history = await read_history(store, await find_run(store, name))
    try:
        history.save(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    recorded = history.super_steps
    what = (
        f"{count(len(recorded), 'super-step')}, {count(sum(len(each.records) for each in recorded), 'recorded step')}"
    )
    click.echo(f"{history.run_id} is in {path}: {what}", err=True)


@click.command("replay")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 at any difference, not only at one that holds or fails a run."
)
@json_option
def replay_runs(*, files: tuple[str, ...], target: str, strict: bool, as_json: bool) -> None:
    """Replay exported runs on the code of MODULE:APP, and say where the two part.

    No step's body is executed and no store is opened. Exits with 1 if this code would hold or fail a run like one of
    these.
    """
    replayed = run_async(_replay(files, target))
    if as_json:
        from perdure.terminal.page import print_json

        print_json([replayed_document(path, each) for path, each in zip(files, replayed, strict=True)])
    else:
        click.echo("\n\n".join(clean_block(str(each)) for each in replayed))
    if not all(each.same if strict else each.ok for each in replayed):
        raise click.exceptions.Exit(Exit.UNWELL)


async def _replay(files: tuple[str, ...], target: str) -> list[Replayed]:
    from perdure.testing import History, replay

    app = load_app(target)
    return [await replay(app, History.load(path)) for path in files]


def replayed_document(path: str, replayed: Replayed) -> dict[str, Any]:
    """A replay as JSON."""
    return {
        "file": path,
        "run_id": replayed.run_id,
        "agent": replayed.agent,
        "state": replayed.state,
        "deployment": replayed.deployment,
        "ok": replayed.ok,
        "same": replayed.same,
        "super_steps": replayed.super_steps,
        "records": replayed.records,
        "differences": [
            {
                "finding": each.finding.value,
                "breaks": each.breaks,
                "super_step": each.super_step,
                "where": each.where,
                "recorded": each.recorded,
                "now": each.now,
                "detail": each.detail,
            }
            for each in replayed.differences
        ],
    }
