"""SQL lives in `.sql` files; this module reads them.

A file holds named statements on one noun:

    -- name: get_thread
    -- The thread of that name.
    select id, thread_id
    from perdure.threads
    where thread_id = :thread_id

`load` reads the shared directory first and the dialect's directory after it; a statement of the same name replaces
the shared one. Statements are written once, in a form that three rules turn into each dialect's:

- names are qualified as `perdure.runs`; the prefix becomes the dialect's (nothing, or a quoted schema);
- parameters are `:name`; Postgres gets `$n`, numbered by first use, and `Statement.arguments` gives them that order;
- set parameters are `= any(:name)`; SQLite gets `in (select value from json_each(:name))`, and takes them as JSON.

Strings, quoted names, comments and `::` casts are left alone. The idea of one small file a noun is from oban-py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

_HEADER: Final = re.compile(r"^-- name: *(\w+)[ \t]*$", re.MULTILINE)
_TOKEN: Final = re.compile(
    r"""
      (?P<skip> '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | :: )
    | (?P<set> =\s*any\s*\(\s*:(?P<set_name>[a-z_]\w*)\s*\) )
    | :(?P<parameter>[a-z_]\w*)
    | \b(?P<schema>perdure\.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database wants its SQL."""

    name: str
    """Its package below `perdure.store`, with the directories `sql` and `migrations`."""
    prefix: str
    """What `perdure.` becomes: `""`, or `'"schema".'`."""
    positional: bool
    """Parameters are `$n` and sets are arrays; else they are `:name` and JSON."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as its dialect speaks it."""

    name: str
    doc: str
    """The sentence above it."""
    text: str
    parameters: tuple[str, ...]
    """Names by first use: the order of `$1`, `$2`, …"""

    def arguments(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values in the order of the positional parameters; a missing one is a KeyError."""
        return tuple(values[name] for name in self.parameters)


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    text: str


class Statements(Mapping[str, Statement]):
    """The statements of one dialect by name."""

    def __init__(self, statements: Mapping[str, Statement]) -> None:
        self._statements = dict(statements)

    def __getitem__(self, name: str) -> Statement:
        return self._statements[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)


def load(dialect: Dialect) -> Statements:
    """Read the shared statements, then the dialect's, which win."""
    store = files("perdure.store")
    statements: dict[str, Statement] = {}
    for directory in (store.joinpath("sql"), store.joinpath(dialect.name, "sql")):
        statements |= _read_directory(directory, dialect)
    return Statements(statements)


def load_migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """Read the dialect's migrations (`0001_core.sql`, …), in order, without a gap."""
    directory = files("perdure.store").joinpath(dialect.name, "migrations")
    migrations = []
    for file in sorted(_sql_files(directory), key=lambda file: file.name):
        version, _, name = file.name.removesuffix(".sql").partition("_")
        text, _ = translate(file.read_text(encoding="utf-8"), dialect)
        migrations.append(Migration(int(version), name, text))
    assert [each.version for each in migrations] == list(range(1, len(migrations) + 1)), "migrations have a gap"
    return tuple(migrations)


def translate(text: str, dialect: Dialect) -> tuple[str, tuple[str, ...]]:
    """The text in the dialect's form, and the parameters by first use."""
    parameters: list[str] = []

    def number(name: str) -> str:
        if name not in parameters:
            parameters.append(name)
        return f"${parameters.index(name) + 1}" if dialect.positional else f":{name}"

    def replace(match: re.Match[str]) -> str:
        if match["schema"]:
            return dialect.prefix
        if match["parameter"]:
            return number(match["parameter"])
        if match["set_name"]:
            name = number(match["set_name"])
            return f"= any({name})" if dialect.positional else f"in (select value from json_each({name}))"
        return match[0]

    return _TOKEN.sub(replace, text), tuple(parameters)


def _read_directory(directory: Traversable, dialect: Dialect) -> dict[str, Statement]:
    statements: dict[str, Statement] = {}
    for file in _sql_files(directory):
        for statement in _read_statements(file.read_text(encoding="utf-8"), dialect):
            assert statement.name not in statements, f"two statements in {directory} are named {statement.name}"
            statements[statement.name] = statement
    return statements


def _read_statements(text: str, dialect: Dialect) -> Iterator[Statement]:
    head, *parts = _HEADER.split(text)
    assert all(not line.strip() or line.startswith("--") for line in head.splitlines()), "SQL before the first name"
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        lines = part.strip().splitlines()
        size = next(index for index, line in enumerate(lines) if not line.startswith("--"))
        doc = " ".join(line.removeprefix("--").strip() for line in lines[:size])
        body, parameters = translate("\n".join(lines[size:]).rstrip().rstrip(";"), dialect)
        yield Statement(name, doc, body, parameters)


def _sql_files(directory: Traversable) -> list[Traversable]:
    return [file for file in directory.iterdir() if file.name.endswith(".sql")] if directory.is_dir() else []
