"""The address of a store."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import call, patch

import pytest

from perdure import App
from perdure.errors import UsageError
from perdure.store import open_url, store_at


def test_a_name_in_memory_is_one_store_in_this_process() -> None:
    async def main() -> tuple[int, int, int]:
        one, same, other = open_url("memory://url-a"), open_url("memory://url-a"), open_url("memory://url-b")
        for store in (one, same, other):
            await store.open()
        return await one.reserve_ids(1), await same.reserve_ids(1), await other.reserve_ids(1)

    assert asyncio.run(main()) == (1, 2, 1)


def test_memory_without_a_name_is_nobody_elses() -> None:
    async def main() -> tuple[int, int]:
        one, other = open_url("memory://"), open_url("memory://")
        await one.open()
        await other.open()
        return await one.reserve_ids(1), await other.reserve_ids(1)

    assert asyncio.run(main()) == (1, 1)


@pytest.mark.parametrize(
    ("url", "guess"),
    [
        ("sqllite:///x.db", "sqlite://"),
        ("postgressql://u@h/d", "postgresql://"),
        ("postgresl://u:secret@h/d", "postgresql://"),
        ("psql://u@h/d", "postgresql://"),
        ("memroy://", "memory://"),
        ("sqlite:x.db", "sqlite://"),
    ],
)
def test_a_slip_of_the_pen_is_told_the_nearest_scheme(url: str, guess: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_url(url)

    message = str(raised.value)
    assert f"Did you mean {guess}?" in message
    assert "sqlite:///" in message and "postgresql://" in message and "memory://" in message
    assert "secret" not in message and "secret" not in raised.value.url


@pytest.mark.parametrize("url", ["", "runs.db", "/tmp/runs.db", "redis://h", "://"])
def test_what_is_no_address_is_told_the_forms(url: str) -> None:
    with pytest.raises(UsageError, match="An address is one of"):
        open_url(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://runs.db", "sqlite:///?synchronous=normal"])
def test_sqlite_needs_a_path_with_its_slashes(url: str) -> None:
    with pytest.raises(UsageError, match="three slashes"):
        open_url(url)


def test_sqlite_takes_its_options_from_the_query(tmp_path: Path) -> None:
    with patch("perdure.store.sqlite.SQLiteStore") as kind:
        open_url(f"sqlite:///{tmp_path}/a%20b.db?synchronous=normal")
        open_url("sqlite:///runs.db")

    assert kind.mock_calls == [call(f"{tmp_path}/a b.db", synchronous="normal"), call("runs.db")]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("synchronos=normal", "did you mean 'synchronous'?"),
        ("synchronous=norml", "did you mean 'normal'?"),
        ("now_us=1", "there is no option 'now_us'"),
    ],
)
def test_an_option_that_is_none_is_told_the_nearest(query: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        open_url(f"sqlite:///runs.db?{query}")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("perdure.store.postgres", "asyncpg"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    with pytest.raises(UsageError, match=r"pip install 'perdure\[postgres\]'"):
        open_url("postgresql://u@h/d")


@pytest.mark.parametrize("name", ["runs.db", "a b?c#d%20.db"])
def test_the_path_of_a_file_is_an_address(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, Path(name)):
        url, store = store_at(path)
        assert store.url == open_url(url).url == f"sqlite:///{path.absolute()}"


@pytest.mark.parametrize("what", [3, object(), b"sqlite:///a.db", ["sqlite:///a.db"]])
def test_what_is_neither_address_nor_path_nor_store_is_refused(what: Any) -> None:
    for take in (lambda: App("x", store=what), lambda: App("x", store="memory://").use_store(what)):
        with pytest.raises(UsageError, match="the path of a SQLite file, or a Store"):
            take()
