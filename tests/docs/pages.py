"""The documentation's code blocks, as a reader would run them.

A page is followed from top to bottom in one empty folder:

- a `python` block whose first line is a comment with a file's name (`# shop.py`) is written to that file; any other
  runs as a script,
- a `console` block's lines that begin with `$ ` run in bash, one after the other, and what they print must match the
  lines below them, where `...` stands for anything; a status other than 0 needs an `$ echo $?` after it,
- `<!-- not run: reason -->` on the line above leaves a block out.

Blocks of other kinds (`text`, `sql`, …) are only read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why_not>.+?) -->\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
FILE_NAME = re.compile(r"^# (?P<name>[\w./]+\.\w+)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, the line it begins on, and why it is not run, if so."""

    language: str
    body: str
    line: int
    why_not: str | None

    @property
    def file_name(self) -> str | None:
        named = FILE_NAME.match(self.body)
        return named["name"] if named else None


@dataclass(frozen=True, slots=True)
class Command:
    """A console line and what it must print."""

    text: str
    expected: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["body"], text[: found.start("body")].count("\n"), found["why_not"])
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> list[Command]:
    """The console block's commands in order; a line that ends in a backslash goes on in the next."""
    joined = block.body.replace("\\\n", "")
    pieces = re.split(r"^\$ (.*)\n", joined, flags=re.MULTILINE)
    return [Command(text, expected) for text, expected in zip(pieces[1::2], pieces[2::2], strict=True)]


def matches(expected: str, printed: str) -> bool:
    """Whether the output is the expected one, where `...` stands for anything and spacing does not count."""
    pattern = ".*".join(re.escape(part) for part in " ".join(expected.split()).split("..."))
    return not expected.strip() or re.fullmatch(pattern.strip(), " ".join(printed.split()), re.DOTALL) is not None
