"""`perdure demo`: the scenes, from the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
from rich.console import Console

from perdure.demo import corpus
from perdure.demo.billing import LOSE_EVERY
from perdure.demo.brief import Brief
from perdure.demo.model import Endpoint, endpoint_from, import_httpx
from perdure.demo.playbill import numbers, print_report
from perdure.demo.questions import QUESTIONS_MAX
from perdure.demo.scene import Performance, Scene, Script
from perdure.demo.screen import WIDTH_MAX, screen_for
from perdure.errors import UsageError

STORE: Final = click.option(
    "--store", metavar="URL", help="Where the runs live. [default: a SQLite file in the output folder]"
)
KEEP: Final = click.option(
    "--keep", metavar="DIR", default="demo-output", show_default=True, help="Where the output folder is made."
)


@click.group("demo", invoke_without_command=True)
@STORE
@click.option("--docs", metavar="DIR", type=click.Path(file_okay=False), help="Answer from this folder's documents.")
@click.option(
    "--questions", type=click.IntRange(1, QUESTIONS_MAX), default=200, show_default=True, help="How many to ask."
)
@click.option("--workers", type=click.IntRange(2, 16), default=2, show_default=True, help="Worker processes.")
@KEEP
@click.option("--interactive", is_flag=True, help="You approve the charges, one by one or all.")
@click.pass_context
def demo(context: click.Context, /, **options: Any) -> None:
    """Watch agents survive kill -9, on this machine.

    A research team answers questions from real documents. One of its workers is killed in the middle of its work, and a
    report, computed from the store and from a side log, says what that cost. Each answer is charged once at a billing
    service, after an approval, and its file is reconciled with the store. Exits with 0 only if every promise holds.

    A model writes the answers if OPENAI_BASE_URL names an OpenAI-compatible endpoint (with OPENAI_API_KEY and
    OPENAI_MODEL); else the answers are quoted from the documents.
    """
    if context.invoked_subcommand is None:
        context.exit(play_demo(**options))


@demo.command("threads")
def threads() -> None:
    """Wait for 500 and 10,000 model calls at once, as tasks and as threads, and measure."""
    from perdure.demo.threads import show

    show(console())


@demo.command("once")
@STORE
@KEEP
@click.pass_context
def once(context: click.Context, /, *, store: str | None, keep: str) -> None:
    """Call the same tool twice with a kill -9 between, and see one effect."""
    from perdure.demo.once import show

    folder, _ = output_folder(Path(keep))
    context.exit(asyncio.run(show(console(), folder, store_url(store, folder))))


@demo.command("outbox")
@STORE
@KEEP
@click.pass_context
def outbox(context: click.Context, /, *, store: str | None, keep: str) -> None:
    """Have a model repeat its tool call, and a kill -9 its delivery, and see one charge."""
    from perdure.demo.outbox import show

    folder, _ = output_folder(Path(keep))
    context.exit(asyncio.run(show(console(), folder, store_url(store, folder))))


def play_demo(
    *, store: str | None, docs: str | None, questions: int, workers: int, keep: str, interactive: bool
) -> int:
    """Play the scene and report; returns the exit code."""
    endpoint = endpoint_from()
    if endpoint is not None:
        import_httpx()
    folder, name = output_folder(Path(keep))
    script = Script(
        store=store_url(store, folder), folder=folder, name=name, questions=questions, workers=workers, docs=docs,
        endpoint=endpoint, interactive=interactive,
    )  # fmt: skip
    return perform(script, console())


def perform(script: Script, out: Console) -> int:
    """Play a script on this console; returns the exit code."""
    screen = screen_for(out)
    screen.facts(facts(script))
    out.print()
    with screen:
        performance: Performance = asyncio.run(Scene(script, screen).play())
    out.print()
    print_report(out, script, performance)
    (script.folder / "report.json").write_text(json.dumps(numbers(performance), indent=2) + "\n", "utf-8")
    return 0 if performance.report.holds else 1


def facts(script: Script) -> list[tuple[str, str]]:
    """What the viewer should know before it begins."""
    documents = corpus.load(script.docs)
    return [
        ("documents", f"{documents.source}: {documents.documents:,} documents, {len(documents.passages):,} passages"),
        ("answers by", answers_by(script.endpoint, script.brief)),
        ("charges by", f"a billing service in a process of its own, which loses every {LOSE_EVERY}th answer"),
        ("approved by", "you" if script.interactive else "the demo, in a person's place (--interactive asks you)"),
        ("store", script.store_shown),
        ("output", str(script.folder)),
    ]


def answers_by(endpoint: Endpoint | None, brief: Brief) -> str:
    """Who writes the answers, honestly."""
    if endpoint is not None:
        return f"the model {endpoint.name}, streamed over HTTP"
    low, high = brief.think_ms
    return (
        "the built-in extractive ranker, no model (set OPENAI_BASE_URL for one); "
        f"each step thinks for {low} to {high} ms, as if it waited for one"
    )


def output_folder(keep: Path) -> tuple[Path, str]:
    """A fresh folder, named by the time; a second one in the same second gets a number."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in range(100):
        name = stamp if not number else f"{stamp}-{number}"
        try:
            (keep / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{keep} cannot hold the output: {error.strerror}; --keep names another folder") from error
        return (keep / name).resolve(), f"demo-{name}"
    raise UsageError(f"{keep} holds 100 demos of this very second; --keep names another folder")


def store_url(given: str | None, folder: Path) -> str:
    """The store asked for, or a SQLite file of the scene's own."""
    if given is None:
        return f"sqlite:///{quote(str(folder / 'demo.db'))}"
    if given.startswith("memory:"):
        raise UsageError(
            "memory:// lives inside one process, and the demo has several; give a sqlite or postgresql URL"
        )
    return given


def console() -> Console:
    """Standard output, no wider than a page."""
    out = Console(highlight=False)
    return out if out.width <= WIDTH_MAX else Console(highlight=False, width=WIDTH_MAX)
