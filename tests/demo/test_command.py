"""`perdure demo`, as a user types it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.demo.billing import read_book
from perdure.demo.command import demo


def play(folder: Path, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Play the demo in a process of its own, without a model."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PERDURE_"))}
    command = [sys.executable, "-m", "perdure", "demo", "--keep", str(folder), *options]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False, input=typed)


@pytest.mark.timeout(120)
def test_twelve_questions_survive_a_kill(tmp_path: Path) -> None:
    played = play(tmp_path, "--questions", "12")

    assert played.returncode == 0, played.stdout + played.stderr
    (folder,) = tmp_path.iterdir()
    report = json.loads((folder / "report.json").read_text())
    assert report["holds"]
    assert report["taken_over"] >= 1
    assert "threads answered 12/12" in played.stdout
    assert len(list((folder / "answers").glob("*.md"))) == 12
    assert "the built-in extractive ranker, no model" in played.stdout
    assert report["charges"] == report["effects"] == 12
    assert "charges in the service's own file 12/12: 0 twice, 0 missing, 0" in played.stdout.replace("\n    ", " ")
    assert report["unknown"] >= report["answers_lost"] == 2


@pytest.mark.timeout(120)
def test_any_folder_of_documents_will_do(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for topic in ("Leases", "Fences", "Threads"):
        text = f"# {topic}\n\n{topic} are explained on this page, and nowhere else.\n\n## Limits of {topic}\n\nNone.\n"
        (docs / f"{topic.lower()}.md").write_text(text)

    played = play(tmp_path / "out", "--questions", "8", "--docs", str(docs))

    assert played.returncode == 0, played.stdout + played.stderr
    page = next((tmp_path / "out").glob("*/answers/001-*.md")).read_text()
    assert "explained on this page" in page
    assert "fences.md#1" in page


@pytest.mark.timeout(120)
def test_a_person_may_refuse_a_charge_and_wave_the_others_through(tmp_path: Path) -> None:
    played = play(tmp_path, "--questions", "8", "--interactive", typed="n\nwhat?\ny\na\n")

    assert played.returncode == 0, played.stdout + played.stderr
    assert "charges approved before they were made 7/7; 1 refused" in played.stdout
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "report.json").read_text())["charges"] == 7
    assert sum("Charged: nothing" in page.read_text() for page in (folder / "answers").glob("*.md")) == 1


@pytest.mark.timeout(120)
def test_without_anybody_who_approves_nothing_is_charged(tmp_path: Path) -> None:
    played = play(tmp_path, "--questions", "8", "--interactive")

    assert played.returncode == 1
    assert "Aborted" in played.stderr
    assert "Traceback" not in played.stderr
    (folder,) = tmp_path.iterdir()
    assert (folder / "billing.jsonl").read_text() == ""


@pytest.mark.timeout(120)
def test_a_tool_that_is_called_twice_with_a_kill_between_charges_once(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    command = [sys.executable, "-m", "perdure", "demo", "once", "--keep", str(tmp_path)]

    played = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)

    assert played.returncode == 0, played.stdout + played.stderr
    assert "the tool was called 2 times, and the service 2 times" in played.stdout
    assert "the service's file has 1 charge" in played.stdout
    (folder,) = tmp_path.iterdir()
    assert [line.entry.value for line in read_book(folder / "billing.jsonl")] == ["charge", "repeat"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--questions", "0"], "--questions"),
        (["--workers", "1"], "--workers"),
    ],
)
def test_options_out_of_bounds_are_usage_errors(options: list[str], said: str) -> None:
    refused = CliRunner().invoke(demo, options)

    assert refused.exit_code == 2
    assert said in refused.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--docs", "nowhere"], "not a folder"),
        (["--store", "memory://"], "several"),
        (["--store", "mysql://x"], "store"),
        (["--keep", "/dev/null/x"], "--keep"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    refused = play(tmp_path, "--questions", "8", *options)

    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_python_without_the_models_server_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.demo.llm", "--keep", str(tmp_path), "--server-python", sys.executable]

    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert refused.returncode == 1
    assert "pip install 'llama-cpp-python[server]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []
