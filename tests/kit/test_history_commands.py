"""`perdure runs export` and `perdure runs replay`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from perdure.cli.root import cli
from perdure.testing import History

SHOP = """
from perdure import App, step

app = App("shop", store="sqlite:///shop.db")

@step
async def price(item: str) -> int:
    return len(item) * 100

@app.agent
async def quote(item: str) -> str:
    return f"{item}: {await price(item)} cents"

if __name__ == "__main__":
    app.run(quote, "lamp")
"""


def perdure(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="perdure")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an app, and one run of it exported to `r1.json`."""
    monkeypatch.chdir(tmp_path)
    module = tmp_path / "kit_shop.py"
    module.write_text(SHOP)
    exec(compile(SHOP, str(module), "exec"), {"__name__": "__main__"})
    result = perdure("runs", "export", "r1", "--to", "r1.json", "--store", "sqlite:///shop.db")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "r1 is in r1.json: 1 super-step, 1 recorded step\n"
    yield tmp_path
    sys.modules.pop("kit_shop", None)


def change(shop: Path, old: str, new: str) -> None:
    (shop / "kit_shop.py").write_text(SHOP.replace(old, new))


def test_an_exported_run_is_a_history(shop: Path) -> None:
    assert History.load(shop / "r1.json").run.agent == "quote"


def test_code_that_does_the_same_exits_with_0(shop: Path) -> None:
    result = perdure("runs", "replay", "r1.json", "r1.json", "kit_shop:app")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("the code of app shop does the same") == 2


def test_code_that_would_hold_the_run_exits_with_1_and_says_where(shop: Path) -> None:
    change(shop, "price(item)}", "price(item.upper())}")

    result = perdure("runs", "replay", "r1.json", "kit_shop:app")

    assert result.exit_code == 1
    assert "DIVERGED" in result.stdout and "('LAMP')" in result.stdout


def test_a_change_that_breaks_nothing_exits_with_0_unless_strict(shop: Path) -> None:
    change(shop, "cents", "cent")

    assert perdure("runs", "replay", "r1.json", "kit_shop:app").exit_code == 0
    assert perdure("runs", "replay", "--strict", "r1.json", "kit_shop:app").exit_code == 1


def test_as_json_it_is_one_document(shop: Path) -> None:
    change(shop, "cents", "cent")

    result = perdure("runs", "replay", "--json", "r1.json", "kit_shop:app")

    (document,) = json.loads(result.stdout)
    assert (document["file"], document["run_id"], document["ok"], document["same"]) == ("r1.json", "r1", True, False)
    assert document["differences"] == [
        {
            "finding": "other result", "breaks": False, "super_step": 1, "where": "result",
            "recorded": '"lamp: 400 cents"', "now": '"lamp: 400 cent"', "detail": "",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("runs", "export", "r9", "--to", "x.json", "--store", "sqlite:///shop.db"), 3),
        (("runs", "export", "r1", "--to", "no/such/folder", "--store", "sqlite:///shop.db"), 2),
        (("runs", "replay", "kit_shop.py", "kit_shop:app"), 2),
        (("runs", "replay", "r1.json", "kit_shop:nothing"), 2),
        (("runs", "replay", "missing.json", "kit_shop:app"), 2),
    ],
)
def test_what_cannot_be_done_says_why(shop: Path, arguments: tuple[str, ...], code: int) -> None:
    result = perdure(*arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert "rror:" in result.stderr
