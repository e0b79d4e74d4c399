"""SQL files: how they are read, what each dialect makes of them, and that SQLite finds its way by indexes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from perdure.store import sql
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.transaction import DIALECT, STATEMENTS, spread_text

POSTGRES = sql.Dialect("postgres", prefix='"tenant 7".', positional=True)

HOT = re.compile(r"\bSCAN (runs|threads|checkpoints|attempts|blobs|starts|[rtcab])\b(?! USING)")
"""A step over a whole hot table; the letters are how statements call them."""


def test_names_and_parameters_become_each_dialects() -> None:
    text = "select * from perdure.runs where id = :run and agent = :agent and fence > perdure.now_us() - :run"

    assert sql.translate(text, DIALECT) == (text.replace("perdure.", ""), ("run", "agent"))
    assert sql.translate(text, POSTGRES) == (
        'select * from "tenant 7".runs where id = $1 and agent = $2 and fence > "tenant 7".now_us() - $1',
        ("run", "agent"),
    )


def test_sets_become_json_or_arrays() -> None:
    assert sql.translate("id = any(:runs)", DIALECT)[0] == "id in (select value from json_each(:runs))"
    assert sql.translate("id = any(:runs)", POSTGRES)[0] == "id = any($1)"


@pytest.mark.parametrize(
    "text", ["'perdure.x :y'", '"perdure.:y"', "-- perdure.x :y\n", "/* :y\n perdure.x */", "a::int"]
)
def test_strings_comments_and_casts_are_left_alone(text: str) -> None:
    assert sql.translate(text, POSTGRES) == (text, ())


def test_arguments_come_in_the_order_of_their_first_use() -> None:
    statement = sql.Statement("name", "doc", "$1 $2", ("b", "a"))

    assert statement.arguments({"a": 1, "b": 2, "c": 3}) == (2, 1)
    with pytest.raises(KeyError):
        statement.arguments({"a": 1})


def test_a_dialects_statement_replaces_the_shared_one() -> None:
    shared = sql.load(sql.Dialect("nowhere", prefix="", positional=False))

    assert set(shared) < set(STATEMENTS)
    assert shared["get_thread"] == STATEMENTS["get_thread"]
    assert STATEMENTS["get_thread"].doc.startswith("The thread of that name")


def test_migrations_are_numbered_without_a_gap() -> None:
    versions = [migration.version for migration in sql.load_migrations(DIALECT)]

    assert versions == list(range(1, len(versions) + 1)) and versions


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_c26_no_statement_walks_a_whole_hot_table(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing analyzes these tables, so the plans are those that they keep, however fast they fill."""
    statement = STATEMENTS[name]
    with sqlite3.connect(migrated(tmp_path_factory)) as connection:
        if "(?" in statement.text:
            text = spread_text(name, 2)
            plan = connection.execute(f"explain query plan {text}", [None] * text.count("?")).fetchall()
        else:
            values = dict.fromkeys(statement.parameters, "[]")
            plan = connection.execute(f"explain query plan {statement.text}", values).fetchall()
    connection.close()

    assert [step for *_, step in plan if HOT.search(step) and "json_each" not in step] == []


def migrated(factory: pytest.TempPathFactory) -> Path:
    """A file with our schema, made once."""
    path = factory.getbasetemp() / "plans.db"
    if not path.exists():
        asyncio.run(SQLiteStore(path).migrate())
    return path
