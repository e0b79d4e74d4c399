"""`perdure retry`, `release` and `migrate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_a_failed_run_goes_back_into_the_queue_without_its_failed_step(perdure: Run) -> None:
    result = perdure("retry", "r2")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "r2 is queued again, at super-step 1" in result.stdout
    document = json.loads(perdure("runs", "show", "r2", "--json").stdout)
    assert (document["state"], document["super_steps"][0]["steps"]) == ("queued", [])


def test_a_held_run_is_sent_on(perdure: Run) -> None:
    document = json.loads(perdure("release", "r3", "--json").stdout)

    assert (document["run_id"], document["state"], document["held_reason"]) == ("r3", "queued", None)


def test_only_a_run_that_stopped_can_be_sent_on(perdure: Run) -> None:
    for verb, run, state in (("retry", "r3", "held"), ("release", "r2", "failed"), ("retry", "r1", "completed")):
        result = perdure(verb, run)

        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr.startswith("error: ") and state in result.stderr


@pytest.mark.parametrize(
    ("verb", "run", "said"),
    [
        ("release", "r6", "r6 is running; release is for runs that are held: this one is under way"),
        ("release", "r7", "r7 is queued; release is for runs that are held: this one goes on by itself"),
        ("release", "r2", "`perdure retry r2` sends this one on"),
        ("retry", "r7", "r7 is queued; retry is for runs that are failed or cancelled: this one goes on by itself"),
        ("retry", "r3", "`perdure release r3` sends this one on"),
        ("retry", "r1", "this one has its result; start a new run"),
    ],
)
def test_who_sends_on_what_has_not_stopped_is_told_what_to_do(perdure: Run, verb: str, run: str, said: str) -> None:
    result = perdure(verb, run)

    assert (result.exit_code, result.stdout) == (4, "") and said in result.stderr


def test_migrating_is_safe_at_any_time_and_makes_a_store_where_there_is_none(perdure: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"

    first = json.loads(perdure("migrate", "--store", url, "--json").stdout)
    second = perdure("migrate", "--store", url)

    assert first["before"] == 0 and first["after"] >= 1
    assert "is up to date" in second.stdout
    assert json.loads(perdure("runs", "list", "--store", url, "--json").stdout) == []
    assert perdure("runs", "list", "--store", url).stdout == "no runs\n"
    assert "perdure worker MODULE:APP" in perdure("workers", "list", "--store", url).stdout
