"""`perdure doctor`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.store import open_url
from tests.cli.conftest import Run


def empty(folder: Path) -> str:
    """The URL of a new store."""
    url = f"sqlite:///{folder / 'empty.db'}"
    asyncio.run(open_url(url).migrate())
    return url


def long_ago(url: str, name: str, sql: str, *values: object) -> None:
    """That run has been due for an hour, and something else is so too."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
        file.execute("update runs set ready_at = ready_at - 3600000000 where id = ?", (int(name[1:]),))
        file.execute(sql, values)


def test_a_healthy_machine_is_well(perdure: Run, tmp_path: Path) -> None:
    result = perdure("doctor", "--store", empty(tmp_path))

    assert result.exit_code == 0
    assert result.stdout.rstrip().endswith("all well")
    assert "✓  sync" in result.stdout and "✗" not in result.stdout and "!" not in result.stdout


def test_the_checks_are_a_document_too(perdure: Run) -> None:
    checks = json.loads(perdure("doctor", "--json").stdout)

    names = [check["what"] for check in checks]
    assert {"python", "store", "schema", "clock", "file system", "sync"} <= set(names)
    assert len(names) == len(set(names))
    assert all(set(check) == {"what", "well", "found", "for_person"} for check in checks)


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


def test_what_waits_for_a_person_is_marked_and_not_all_well(perdure: Run) -> None:
    result = perdure("doctor")

    assert result.exit_code == 0
    assert "!  held runs" in result.stdout and "1 held run: `perdure runs list --state held`" in result.stdout
    assert result.stdout.rstrip().endswith("nothing is wrong, and some of it waits for a person")


def test_a_due_run_in_a_queue_that_no_live_worker_serves_is_unwell(perdure: Run, world: str) -> None:
    long_ago(world, "r7", "update workers set idle = 1")
    result = perdure("doctor", columns=300)

    assert result.exit_code == 1 and "✗  unserved" in result.stdout
    assert "1 run due for more than a minute (r7): no worker serves it; start one that serves it" in result.stdout
    assert "`perdure worker MODULE:APP --queue gpu` (`perdure runs show r7`)" in result.stdout


def test_a_due_run_of_a_deployment_that_no_live_worker_has_is_unwell(perdure: Run, world: str) -> None:
    long_ago(world, "r7", "update runs set deployment = 'green' where id = 7")
    result = perdure("doctor", columns=300)

    assert result.exit_code == 1
    assert "(r7): no worker of green; start one: `perdure worker MODULE:APP --deployment green`" in result.stdout


def test_a_parked_run_whose_time_has_come_is_unwell_where_no_worker_is_alive(perdure: Run, world: str) -> None:
    long_ago(world, "r7", "update runs set state = 'waiting' where id = 7")
    stopped = "update workers set state = 'stopped', lease_until = 1, ended_at = 1"
    long_ago(world, "r7", stopped)

    assert "(r7): no worker is alive; start one that serves agent embed" in perdure("doctor", columns=300).stdout


def test_a_run_that_is_due_for_a_moment_or_waits_for_a_slot_is_well(perdure: Run, world: str) -> None:
    assert "unserved" not in perdure("doctor").stdout
    long_ago(world, "r7", "update workers set idle = 0")

    assert "unserved" not in perdure("doctor").stdout
