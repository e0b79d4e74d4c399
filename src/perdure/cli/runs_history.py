"""`perdure runs export` and `perdure runs replay`: a run's history as a file, and files against the code of today."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from perdure.cli.amounts import duration
from perdure.cli.exits import Exit, failure
from perdure.cli.options import json_option, store_option
from perdure.cli.stores import find_run, opened, run_async
from perdure.cli.target import load_app
from perdure.errors import PerdureError, UsageError
from perdure.terminal.text import clean_block, count

if TYPE_CHECKING:
    from perdure.testing import History, Replayed

STDOUT: Final = "-"


@click.command("export")
@click.argument("run")
@click.option(
    "--to", "path", metavar="FILE", required=True, help="Where it goes; a file that is there is replaced. - is stdout."
)
@store_option
def export_run(*, store: str, run: str, path: str) -> None:
    """Write the history of RUN to a file.

    It holds all that is recorded of the run, its values included. `perdure runs replay` reads it.
    """
    run_async(_export(store, run, path))


async def _export(url: str, name: str, path: str) -> None:
    from perdure.testing.replaying import read_history

    async with opened(url) as store:
        history = await read_history(store, await find_run(store, name))
    if path == STDOUT:
        click.echo(history.encode(), nl=False)
    else:
        _save(history, Path(path))
    recorded = history.super_steps
    what = (
        f"{count(len(recorded), 'super-step')}, {count(sum(len(each.records) for each in recorded), 'recorded step')}"
    )
    click.echo(f"{history.run_id} is in {'the output' if path == STDOUT else path}: {what}", err=True)


def _save(history: History, path: Path) -> None:
    try:
        history.save(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


@click.command("replay", short_help="Replay exported runs on the code at hand.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--strict", is_flag=True, help="Exit with 1 at any difference, not only at one that holds or fails a run."
)
@click.option(
    "--timeout", metavar="TIME", default="30s", show_default=True, help="How long the replay of a file may take."
)
@json_option
def replay_runs(*, files: tuple[str, ...], target: str, strict: bool, timeout: str, as_json: bool) -> None:
    """Replay exported runs on the code of MODULE:APP, and say where the two part.

    No step's body is executed, no store is opened, and no time passes. Exits with 1 if this code would hold or fail a
    run like one of these; with 2 or more if a file cannot be replayed.
    """
    outcomes = run_async(_replay(files, target, duration("--timeout", timeout)))
    documents = []
    for path, outcome in zip(files, outcomes, strict=True):
        if isinstance(outcome, PerdureError):
            failed = failure(outcome)
            failed.show()
            documents.append({"file": path, "error": failed.message})
        else:
            documents.append(replayed_document(path, outcome))
    if as_json:
        from perdure.terminal.page import print_json

        print_json(documents)
    else:
        shown = "\n\n".join(clean_block(str(each)) for each in outcomes if not isinstance(each, PerdureError))
        if shown:
            click.echo(shown)
    worst = max(_code(outcome, strict=strict) for outcome in outcomes)
    if worst:
        raise click.exceptions.Exit(worst)


def _number(text: str) -> float | str:
    """A bare number is one of seconds."""
    return float(text) if text.replace(".", "", 1).isdecimal() else text


def _code(outcome: Replayed | PerdureError, *, strict: bool) -> int:
    if isinstance(outcome, PerdureError):
        return failure(outcome).exit_code
    return Exit.OK if (outcome.same if strict else outcome.ok) else Exit.UNWELL


async def _replay(files: tuple[str, ...], target: str, timeout_s: float) -> list[Replayed | PerdureError]:
    """What came of each file; one that cannot be replayed keeps nobody from the others."""
    from perdure.testing import replay

    app = load_app(target)
    outcomes: list[Replayed | PerdureError] = []
    for path in files:
        try:
            outcomes.append(await replay(app, path, timeout=timeout_s))
        except PerdureError as error:
            outcomes.append(error)
    return outcomes


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
        "recorded": replayed.recorded,
        "differences": [
            {
                "finding": each.finding.value,
                "breaks": each.breaks,
                "super_step": each.super_step,
                "where": each.where,
                "recorded": each.recorded,
                "now": each.now,
                "detail": each.detail,
                "renamed": each.renamed,
            }
            for each in replayed.differences
        ],
    }
