"""What the documentation shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks, commands, matches

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = {"python", "console"}
BLOCK_TIMEOUT_S = 50


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.language in RUNNABLE for block in blocks(page))], ids=page_name
)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    for block in blocks(page):
        where = f"{page_name(page)}:{block.line}"
        if block.why_not or block.language not in RUNNABLE:
            continue
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            run([sys.executable, "-c", block.body], tmp_path, where)
        else:
            follow(block, tmp_path, where)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    broken = [
        target for target in targets if target and "://" not in target and not (page.parent / target).resolve().exists()
    ]
    assert broken == []


def test_a_block_that_is_not_run_says_why() -> None:
    silent = [
        f"{page_name(page)}:{block.line}"
        for page in PAGES
        for block in blocks(page)
        if block.why_not and len(block.why_not) < 10
    ]
    assert silent == []


def follow(block: Block, folder: Path, where: str) -> None:
    """Run a console block's commands in one shell, and hold what each prints against the page."""
    todo = commands(block)
    script = "\n".join(f"{command.text}\nstatus=$?; echo; echo '=== '$status; (exit $status)" for command in todo)
    printed = run(["bash", "-c", script], folder, where, must_succeed=False)
    results = re.split(r"^=== (\d+)\n", printed, flags=re.MULTILINE)
    for number, (command, output, status) in enumerate(zip(todo, results[0::2], results[1::2], strict=False)):
        announced = number + 1 < len(todo) and todo[number + 1].text == "echo $?"
        assert status == "0" or announced, f"{where}: `{command.text}` ended with {status}:\n{output}"
        assert matches(command.expected, output), (
            f"{where}: `{command.text}` should print\n{command.expected}\nand printed\n{output}"
        )


def run(command: list[str], folder: Path, where: str, *, must_succeed: bool = True) -> str:
    """The command's output, both streams together, as a reader would see them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 or not must_succeed, f"{where} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
