"""The root command: the list of commands, and what all of them have in common."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, NamedTuple

import click

from perdure.cli.exits import Exit, failure
from perdure.errors import PerdureError


class Entry(NamedTuple):
    """A command that is loaded when it is asked for."""

    at: str
    """`module:attribute`."""
    help: str
    """Its line in `perdure --help`; a test compares it with the command's own."""


COMMANDS: dict[str, Entry] = {
    "demo": Entry("perdure.demo.command:demo", "Watch agents survive kill -9, on this machine."),
    "worker": Entry("perdure.cli.worker:worker", "Execute runs of MODULE:APP until a signal comes."),
    "start": Entry("perdure.cli.start:start", "Start a run of AGENT of MODULE:APP."),
    "runs": Entry("perdure.cli.runs:runs", "List runs, or show what happened to one."),
    "threads": Entry("perdure.cli.threads:threads", "List threads, or show one with its queue and its state."),
    "interrupts": Entry("perdure.cli.interrupts:interrupts", "List the questions that agents have asked, or show one."),
    "resume": Entry("perdure.cli.resume:resume", "Answer a question; its run goes on."),
    "effects": Entry(
        "perdure.cli.effects:effects", "List what agents did to the outside world, and say what became of it."
    ),
    "deliveries": Entry(
        "perdure.cli.deliveries:deliveries", "List what runs have handed over to sinks, and send on what was given up."
    ),
    "usage": Entry("perdure.cli.usage:usage", "Sum what runs have used, by tenant, agent, run or day."),
    "budgets": Entry("perdure.cli.budgets:budgets", "List what tenants, agents and runs may use, and set it."),
    "messages": Entry("perdure.cli.messages:messages", "Send messages to threads, and see what lies in mailboxes."),
    "cancel": Entry("perdure.cli.cancel:cancel", "Cancel RUN, and the runs that it has started."),
    "fork": Entry("perdure.cli.fork:fork", "Start a run on a new thread that goes on from a checkpoint of THREAD."),
    "workers": Entry("perdure.cli.workers:workers", "List workers."),
    "retry": Entry("perdure.cli.operate:retry", "Send a failed or cancelled RUN on."),
    "release": Entry("perdure.cli.operate:release", "Send a held RUN on."),
    "migrate": Entry("perdure.cli.migrate:migrate", "Bring the store's schema up to date."),
    "doctor": Entry("perdure.cli.doctor:doctor", "Check this machine and the store, and say what to do."),
    "chaos": Entry("perdure.cli.chaos:chaos", "Hurt real workers on a real store, and check every promise."),
    "bench": Entry("perdure.bench.command:bench", "Measure this machine, each number beside its raw limit."),
}


class Root(click.Group):
    """A group whose commands are imported on demand, and which turns errors into lines and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the one command that is wanted."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.at.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing one of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse the command line; `--help` and `--version` are printed here."""
        try:
            return super().make_context(*arguments, **extra)
        except BrokenPipeError:
            leave_pipe()
            raise click.exceptions.Exit(Exit.OK) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, flush what it wrote, and exit as `exits` says."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except PerdureError as error:
            raise failure(error) from error
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        except BrokenPipeError:
            leave_pipe()
            ctx.exit(Exit.OK)


def leave_pipe() -> None:
    """The reader has read enough (`… | head -1`): let what is still buffered go nowhere, so that nothing complains."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="perdure", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable agents: start them, watch them, and see what happened to them.

    Commands that look at a store take --store URL, else $PERDURE_STORE, else sqlite:///perdure.db. Every listing has
    --json.

    Exit codes: 0 done; 1 what was asked about failed or is unwell; 2 usage; 3 not found; 4 conflict; 5 store
    unavailable; 70 a defect, with traceback; 130 interrupted.
    """
