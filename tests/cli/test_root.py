"""The root command: its list, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from perdure.cli.root import COMMANDS, cli

HEAVY = {
    "rich",
    "asyncpg",
    "sqlite3",
    "perdure.store.sqlite",
    "perdure.store.postgres",
    "perdure.demo",
    "perdure.bench",
}


def modules_after(*arguments: str) -> set[str]:
    """What a fresh process has imported when the command is done, as Python itself reports it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "perdure", *arguments], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("runs", "--help"), ("start", "--help")])
def test_help_loads_no_driver_and_no_page(arguments: tuple[str, ...]) -> None:
    assert sorted(HEAVY & modules_after(*arguments)) == []


def test_help_lists_every_command_and_the_exit_codes() -> None:
    page = CliRunner().invoke(cli, ["--help"]).stdout

    assert all(f"  {name}" in page for name in COMMANDS)
    assert "Exit codes" in page


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_line_in_the_list_is_the_one_of_the_command(name: str) -> None:
    context = cli.make_context("perdure", ["doctor"])
    command = cli.get_command(context, name)

    assert command is not None and command.name == name
    assert COMMANDS[name].help == command.get_short_help_str(limit=200)


@pytest.mark.parametrize("arguments", [("-h",), ("runs", "list", "-h"), ("worker", "-h")])
def test_every_command_explains_itself(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 0 and result.stdout.startswith("Usage:")
