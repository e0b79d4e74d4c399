"""`perdure doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_a_healthy_machine_is_well(perdure: Run) -> None:
    result = perdure("doctor")

    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("all well")
    assert "✓  sync" in result.stdout and "✗" not in result.stdout


def test_the_checks_are_a_document_too(perdure: Run) -> None:
    checks = json.loads(perdure("doctor", "--json").stdout)

    names = [check["what"] for check in checks]
    assert {"python", "store", "schema", "clock", "file system", "sync"} <= set(names)
    assert len(names) == len(set(names))
    assert all(set(check) == {"what", "well", "found"} for check in checks)


def test_a_new_user_learns_about_the_disk_before_the_first_run(perdure: Run, tmp_path: Path) -> None:
    checks = json.loads(perdure("doctor", "--json", "--store", f"sqlite:///{tmp_path / 'new.db'}").stdout)

    found = {check["what"]: check["found"] for check in checks}
    assert "not there yet" in found["store"]
    assert "file system" in found and "sync" in found
    assert list(tmp_path.glob("new*")) == [] and list(tmp_path.glob(".perdure*")) == []


def test_what_is_wrong_is_said_and_ends_with_1(perdure: Run, tmp_path: Path) -> None:
    path = tmp_path / "torn.db"
    path.write_bytes(b"this is no database" * 100)

    result = perdure("doctor", "--store", f"sqlite:///{path}")

    assert result.exit_code == 1
    assert "✗" in result.stdout and "checks failed" in result.stdout


def test_a_driver_that_is_not_installed_is_named_with_the_command_that_installs_it(
    perdure: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.cli.doctor.find_spec", lambda name: None)

    result = perdure("doctor", "--store", "postgresql://nobody@127.0.0.1:1/nothing")

    assert result.exit_code == 1
    assert "pip install 'perdure[postgres]'" in result.stdout


def test_a_database_that_does_not_answer_is_unwell(perdure: Run) -> None:
    result = perdure("doctor", "--store", "postgresql://nobody:secret@127.0.0.1:1/nothing")

    assert result.exit_code == 1
    assert "store" in result.stdout and "secret" not in result.stdout
