"""What a message tells a person to type works when it is typed: it names the store that the person had named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.exits import Exit
from perdure.cli.remedies import Named, on_store
from tests.cli.conftest import Run
from tests.support.processes import ROOT

SHOP = """
from perdure import App

app = App("shop", store="sqlite:///shop.db")


@app.agent
async def quote(item: str) -> str:
    raise ValueError(item)
"""

FINISH = """
import asyncio

import shop


async def main():
    async with shop.app, shop.app.worker():
        await asyncio.wait([asyncio.ensure_future(shop.app.handle("r1").result())])


asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("runs", "show", "r99"), "perdure runs list"),
        (("retry", "r99"), "perdure runs list"),
        (("release", "seven"), "perdure runs list"),
        (("threads", "show", "nobody"), "perdure threads list"),
    ],
)
def test_a_remedy_names_the_store_that_was_given_on_the_command_line(
    perdure: Run, world: str, command: tuple[str, ...], remedy: str
) -> None:
    assert f"`{remedy} --store {world}`" in perdure(*command, "--store", world).stderr
    assert f"`{remedy}`" in perdure(*command).stderr, "what the environment says needs no option"


def test_a_page_names_it_too(perdure: Run, world: str) -> None:
    held, failed = perdure("runs", "show", "r3", columns=400), perdure("runs", "show", "r2", columns=400)
    assert "`perdure release r3`" in held.stdout and failed.stdout.rstrip().endswith("perdure retry r2")

    held, failed = (perdure("runs", "show", run, "--store", world, columns=400) for run in ("r3", "r2"))
    assert f"`perdure release r3 --store {world}`" in held.stdout
    assert failed.stdout.rstrip().endswith(f"perdure retry r2 --store {world}")


def test_a_remedy_shows_no_password_and_survives_a_shell() -> None:
    told = on_store(
        "look: `perdure runs list`", Named("postgresql://me:secret@db/app?sslmode=disable&schema=x", typed=True)
    )
    assert told == "look: `perdure runs list --store 'postgresql://me@db/app?sslmode=disable&schema=x'`"


@pytest.mark.parametrize("text", ["`perdure demo`", "perdure is a verb", "`perdure runs list --store x`", "`other`"])
def test_only_commands_that_look_at_a_store_get_the_option(text: str) -> None:
    assert on_store(text, Named("sqlite:///x.db", typed=True)) == text


def test_a_command_that_names_an_app_is_at_the_apps_own_store_unless_another_was_typed() -> None:
    text = "`perdure worker shop:app`, then `perdure runs list`"

    assert on_store(text, Named("sqlite:///x.db", typed=False)) == f"{text[:-1]} --store sqlite:///x.db`"
    assert "worker shop:app --store sqlite:///x.db`" in on_store(text, Named("sqlite:///x.db", typed=True))


def in_a_shop(folder: Path, *arguments: str, source: str = SHOP) -> subprocess.CompletedProcess[str]:
    """Run the command line in a directory with an app in it."""
    (folder / "shop.py").write_text(source)
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-m", "perdure", *arguments], cwd=folder, env=environ, capture_output=True, text=True
    )


def test_what_is_said_of_a_run_of_an_app_leads_to_the_apps_own_store(tmp_path: Path) -> None:
    asked = ("start", "shop:app", "quote", "--args", '["lamp"]', "--thread-id", "t", "--key", "k")
    started = in_a_shop(tmp_path, *asked)
    assert started.returncode == 0, started.stderr
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", FINISH], cwd=tmp_path, check=True, capture_output=True, env=environ)

    failed = in_a_shop(
        tmp_path, "start", "shop:app", "quote", "--args", '["lamp"]', "--thread-id", "t", "--key", "k", "--wait"
    )

    assert failed.returncode == Exit.UNWELL
    assert f"`perdure retry r1 --store sqlite:///{tmp_path}/shop.db`" in failed.stderr


# -- a module that does not import -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("import surely_not_installed\n", "ModuleNotFoundError: No module named 'surely_not_installed'"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "ZeroDivisionError: division by zero"),
        ("x = (\n", "SyntaxError: '(' was never closed"),
    ],
)
def test_an_error_inside_the_module_shows_the_modules_frames_and_no_others(
    tmp_path: Path, source: str, shown: str
) -> None:
    done = in_a_shop(tmp_path, "start", "shop:app", "quote", source=source)

    assert done.returncode == Exit.DEFECT and shown in done.stderr
    assert f'File "{tmp_path}/shop.py"' in done.stderr
    for foreign in ("click", "importlib", "/perdure/cli/", "runpy"):
        assert foreign not in done.stderr, done.stderr


def test_a_defect_of_our_own_shows_every_frame(tmp_path: Path) -> None:
    source = "import perdure.cli.target as t\n\n\ndef broken(*_):\n    1 / 0\n\n\nt._instead = broken\n"

    done = in_a_shop(tmp_path, "start", "shop:app", "quote", source=source)

    assert done.returncode == Exit.DEFECT and "load_app" in done.stderr


# -- names that can be nobody's --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list", "--agent", ""),
        ("runs", "list", "--agent", "x" * 200),
        ("runs", "list", "--thread", "a\udcff"),
        ("runs", "list", "--tenant", "a\udcff"),
        ("runs", "list", "--tag", ""),
        ("threads", "list", "--agent", "a\udcff"),
        ("threads", "show", "a\udcff"),
        ("threads", "list", "--after", "x" * 600),
    ],
)
def test_a_name_that_nothing_can_have_is_refused(perdure: Run, command: tuple[str, ...]) -> None:
    result = perdure(*command)

    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert result.stderr.startswith("error: ")


def test_a_queue_that_no_agent_of_the_app_names_is_served_and_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "perdure", "worker", "shop:app", "--queue", "defualt"], cwd=tmp_path, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None and "on queue defualt" in process.stdout.readline()
    finally:
        process.terminate()
        _, said = process.communicate(timeout=20)
    assert "no agent of shop:app names queue defualt" in said and "default" in said
