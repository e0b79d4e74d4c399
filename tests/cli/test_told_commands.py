"""The commands that messages, pages and documents tell people to type are there, with the options they name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from perdure.cli.root import COMMANDS, cli
from tests.house import tree

TOLD = re.compile(r"`perdure ([a-z][^`]*)`")
REFERENCE = tree.ROOT / "docs" / "reference" / "cli.md"


def command_of(words: list[str]) -> click.Command:
    """The command that these words begin with."""
    found: click.Command = cli
    for word in words:
        if not isinstance(found, click.Group):
            break
        context = click.Context(found)
        inner = found.get_command(context, word)
        assert inner is not None, f"there is no `perdure {' '.join(words)}`"
        found = inner
    assert not isinstance(found, click.Group) or len(words) == 1, words
    return found


def told() -> Iterator[tuple[str, str]]:
    """Every command that a source file tells, with where."""
    for path in (*tree.files_under(tree.PACKAGE, ".py"), REFERENCE):
        for found in TOLD.finditer(path.read_text(encoding="utf-8")):
            yield tree.name(path), found[1]


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def test_every_command_that_is_told_is_there_with_its_options() -> None:
    seen = 0
    for place, text in told():
        words = [word for word in text.replace("…", " ").split() if not word.startswith("{")]
        names = [word for word in words if re.fullmatch(r"[a-z]+", word.split("|")[0])]
        for verb in names[0].split("|") if names else ():
            for sub in names[1].split("|") if len(names) > 1 else [""]:
                if verb not in COMMANDS:
                    raise AssertionError(f"{place} tells `perdure {text}`, which is not there")
                group = isinstance(command_of([verb]), click.Group)
                command = command_of([verb, sub] if group and sub else [verb])
                missing = {word for word in words if word.startswith("--")} - options(command) - {"--help"}
                assert not missing, f"{place} tells `perdure {text}`, which has no {missing}"
                seen += 1
    assert seen > 40


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("demo", "bench")])
def test_every_command_and_its_options_are_in_the_reference(name: str) -> None:
    """`demo` and `bench` have pages of their own."""
    found = command_of([name])
    leaves = (
        {f"{name} {inner}": leaf for inner, leaf in found.commands.items()} if isinstance(found, click.Group) else {}
    )
    page = REFERENCE.read_text(encoding="utf-8")

    for full, command in (leaves or {name: found}).items():
        assert f"`perdure {full}" in page
        shared = {"--store", "--json", "--limit", "--after"}
        assert [option for option in sorted(options(command) - shared) if option not in page] == [], full
