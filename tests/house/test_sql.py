"""SQL as prose: one named statement, one sentence above it, one clause a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import tree

FILES = [path for path in tree.files_under(tree.PACKAGE, ".sql") if "migrations" not in path.parts]
NAME = re.compile(r"^-- name: *(\w+)", re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=tree.name)
def test_every_statement_has_a_name_and_a_sentence(path: Path) -> None:
    for name, statement in statements(path.read_text(encoding="utf-8")):
        comment = " ".join(line[2:].strip() for line in statement.splitlines() if line.startswith("--"))
        assert re.search(r"\w.*[.:]$", comment) or ". " in comment, f"{name} has no sentence above it"


@pytest.mark.parametrize("path", FILES, ids=tree.name)
def test_a_line_of_sql_fits_the_page(path: Path) -> None:
    long = [line for line in path.read_text(encoding="utf-8").splitlines() if len(line) > 120]
    assert long == []


def statements(text: str) -> list[tuple[str, str]]:
    """Each statement's name and its text, with the comment that follows (or stands before) the name."""
    pieces = NAME.split(text)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))
