"""`MODULE:APP`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.target import load_app
from perdure.errors import UsageError

SHOP = """
from perdure import App
app = App("shop", store="memory://")
other = App("other", store="memory://")
price = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a module, an app in it, and one that does not import."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stall.py").write_text(SHOP)
    (tmp_path / "torn.py").write_text("import surely_not_installed")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "plain.py").write_text("apple = 1")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_found_in_the_current_directory(here: Path) -> None:
    assert load_app("stall:app").name == "shop"


def test_an_app_can_be_moved_to_another_store(here: Path) -> None:
    app = load_app("stall:app", store="sqlite:///elsewhere.db")

    assert app.store_url == "sqlite:///elsewhere.db"
    assert "elsewhere.db" in repr(app)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("stall", "write for example stall:app"),
        (":app", "write for example shop:app"),
        ("stall.py:app", "write stall:app"),
        ("./src/stall.py:app", "write src.stall:app"),
        ("stal:app", "did you mean stall"),
        ("nothing.like.it:app", "no module named 'nothing'"),
        ("stall:ap", "its apps are stall:app, stall:other"),
        ("stall:price", "stall:price is an int, not a perdure App; its apps are stall:app"),
        ("plain:appl", "it defines no App (close names: apple)"),
    ],
)
def test_a_wrong_target_says_what_there_is_instead(here: Path, target: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_app(target)

    assert said in str(caught.value)


def test_an_error_inside_the_module_is_the_modules_own(here: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_app("broken:app")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        load_app("torn:app")
