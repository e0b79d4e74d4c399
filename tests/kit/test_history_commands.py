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
            "recorded": '"lamp: 400 cents"', "now": '"lamp: 400 cent"', "detail": "", "renamed": "",
        }
    ]  # fmt: skip


def test_one_bad_file_keeps_nobody_from_the_others_and_the_worst_code_counts(shop: Path) -> None:
    change(shop, "cents", "cent")
    (shop / "cut.json").write_bytes((shop / "r1.json").read_bytes()[:300])

    result = perdure("runs", "replay", "cut.json", "r1.json", "missing.json", "r1.json", "kit_shop:app")
    as_json = perdure("runs", "replay", "--json", "cut.json", "r1.json", "kit_shop:app")

    assert (result.exit_code, result.stdout.count("can go on with it")) == (2, 2)
    assert "error: cut.json is cut off; write it again with `perdure runs export RUN --to FILE`" in result.stderr
    assert "error: missing.json cannot be read: No such file or directory" in result.stderr
    assert as_json.exit_code == 2
    assert [sorted(each)[:2] for each in json.loads(as_json.stdout)] == [["error", "file"], ["agent", "deployment"]]


def test_an_export_to_a_dash_is_the_output(shop: Path) -> None:
    result = perdure("runs", "export", "r1", "--to", "-", "--store", "sqlite:///shop.db")

    assert (result.exit_code, result.stdout_bytes) == (0, (shop / "r1.json").read_bytes())
    assert result.stderr == "r1 is in the output: 1 super-step, 1 recorded step\n"


def test_a_history_without_its_log_is_refused(shop: Path) -> None:
    document = json.loads((shop / "r1.json").read_text())
    document["log"] = []
    (shop / "r1.json").write_text(json.dumps(document))

    result = perdure("runs", "replay", "r1.json", "kit_shop:app")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "r1, a completed run, is incomplete: it lacks the beginning of super-step 1, its end" in result.stderr


@pytest.mark.parametrize(("timeout", "code"), [("10", 0), ("0.5m", 0), ("1h", 0), ("soon", 2), ("0", 2)])
def test_the_time_of_a_replay_can_be_limited(shop: Path, timeout: str, code: int) -> None:
    assert perdure("runs", "replay", "--timeout", timeout, "r1.json", "kit_shop:app").exit_code == code


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
