"""What goes wrong is one line on stderr, with its remedy and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.exits import Exit, failure
from perdure.cli.root import cli
from perdure.errors import (
    Conflict,
    NotFound,
    PerdureError,
    RunFailed,
    RunHeld,
    SchemaOutdated,
    StoreUnavailable,
    ThreadBusy,
    UnknownAgent,
)
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownAgent("x"), 2),
        (NotFound("x"), 3),
        (Conflict("x"), 4),
        (ThreadBusy("x"), 4),
        (StoreUnavailable("x"), 5),
        (SchemaOutdated("x"), 5),
        (RunFailed("x"), 1),
        (RunHeld("x"), 1),
        (PerdureError("x"), 1),
    ],
)
def test_an_error_has_the_code_of_its_kind(error: PerdureError, code: int) -> None:
    assert failure(error).exit_code == code


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("runs", "show", "r99"), Exit.NOT_FOUND, "perdure runs list"),
        (("runs", "show", "seven"), Exit.USAGE, "look like r12"),
        (("runs", "list", "--after", "7"), Exit.USAGE, "look like r12"),
        (("threads", "show", "nobody"), Exit.NOT_FOUND, "perdure threads list"),
        (("threads", "list", "--after", "nobody"), Exit.NOT_FOUND, "perdure threads list"),
        (("retry", "r99"), Exit.NOT_FOUND, "perdure runs list"),
        (("release", "x"), Exit.USAGE, "look like r12"),
        (("runs", "list", "--store", "memory://"), Exit.USAGE, "--store URL"),
        (("runs", "list", "--store", "sqllite:///x.db"), Exit.USAGE, "sqlite"),
        (("runs", "list", "--store", "nowhere"), Exit.USAGE, "postgresql://"),
        (("start", "shop", "quote"), Exit.USAGE, "write for example shop:app"),
        (("worker", "no_such_module:app"), Exit.USAGE, "no module named 'no_such_module'"),
    ],
)
def test_an_error_is_one_line_with_its_remedy(perdure: Run, command: tuple[str, ...], code: int, said: str) -> None:
    result = perdure(*command)

    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert said in result.stderr


def test_looking_at_a_store_that_is_not_there_creates_nothing(perdure: Run, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.db"

    for command in (("runs", "list"), ("workers", "list"), ("retry", "r1"), ("doctor",)):
        result = perdure(*command, "--store", f"sqlite:///{path}")

        assert result.exit_code == (Exit.OK if command == ("doctor",) else Exit.STORE)
        assert list(tmp_path.glob("elsewhere*")) == []


def test_an_unforeseen_error_is_not_hidden(perdure: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(url: str) -> None:
        raise ZeroDivisionError(url)

    monkeypatch.setattr("perdure.store.open_url", broken)

    assert isinstance(perdure("runs", "list").exception, ZeroDivisionError)


def test_a_mistyped_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["rums"])

    assert result.exit_code == 2 and "No such command" in result.stderr
