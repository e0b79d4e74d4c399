"""A store to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from perdure.cli.root import cli
from tests.cli import asked, traded
from tests.cli.asked import Asked
from tests.cli.traded import Traded
from tests.cli.world import build


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, made once; tests work on copies."""
    path = tmp_path_factory.mktemp("world") / "world.db"
    build(path)
    return path


@pytest.fixture
def world(original: Path, tmp_path: Path) -> str:
    """The URL of a store in which something of everything has happened."""
    path = tmp_path / "world.db"
    shutil.copy(original, path)
    return f"sqlite:///{path}"


Run = Callable[..., Result]


@pytest.fixture
def perdure(world: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on that store, 100 columns wide."""

    def run(*arguments: str, columns: int = 100) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("PERDURE_STORE", world)
        return CliRunner().invoke(cli, arguments, prog_name="perdure")

    return run


@pytest.fixture(scope="session")
def first_asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Asked]:
    """A file in which agents wait, made once."""
    path = tmp_path_factory.mktemp("asked") / "asked.db"
    return path, asked.build(path)


@pytest.fixture
def there(first_asked: tuple[Path, Asked], tmp_path: Path) -> Asked:
    """A store in which agents wait, and what is in it."""
    original, made = first_asked
    path = tmp_path / "asked.db"
    shutil.copy(original, path)
    return msgspec.structs.replace(made, url=f"sqlite:///{path}")


@pytest.fixture
def at_store(there: Asked, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on that store, 100 columns wide; `said` is what comes from stdin."""

    def run(*arguments: str, columns: int = 100, said: str | bytes | None = None) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("PERDURE_STORE", there.url)
        return CliRunner().invoke(cli, arguments, prog_name="perdure", input=said)

    return run


@pytest.fixture(scope="session")
def first_traded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Traded]:
    """A file in which runs have handed things over and used something, made once."""
    path = tmp_path_factory.mktemp("traded") / "traded.db"
    return path, traded.build(path)


@pytest.fixture
def trade(first_traded: tuple[Path, Traded], tmp_path: Path) -> Traded:
    """A copy of it, and what is in it."""
    original, made = first_traded
    path = tmp_path / "traded.db"
    shutil.copy(original, path)
    return msgspec.structs.replace(made, url=f"sqlite:///{path}")


@pytest.fixture
def at_trade(trade: Traded, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on that store, 100 columns wide."""

    def run(*arguments: str, columns: int = 100) -> Result:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("PERDURE_STORE", trade.url)
        return CliRunner().invoke(cli, arguments, prog_name="perdure")

    return run
