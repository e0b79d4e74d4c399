"""The same pages from a Postgres store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli
from tests.cli.world import make
from tests.support import postgres

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A store in which something of everything has happened."""
    url = postgres.shared().fresh_url()
    asyncio.run(make(url))
    yield url


def documents(url: str, *command: str) -> Any:
    result = CliRunner().invoke(cli, [*command, "--json", "--store", url])
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def test_runs_threads_and_workers_are_listed(url: str) -> None:
    runs = {run["run_id"]: run["state"] for run in documents(url, "runs", "list")}

    assert runs == {
        "r1": "completed", "r2": "failed", "r3": "held", "r4": "queued", "r5": "queued", "r6": "running",
        "r7": "queued",
    }  # fmt: skip
    assert len(documents(url, "threads", "list")) == 5
    assert [worker["state"] for worker in documents(url, "workers", "list", "--all")] == ["dead", "alive"]


def test_a_timeline_and_a_state_are_shown(url: str) -> None:
    run = documents(url, "runs", "show", "r1", "--full")
    thread = documents(url, "threads", "show", "topics/7", "--state")

    assert [len(super_step["steps"]) for super_step in run["super_steps"]] == [5, 1]
    assert run["result"] == {"answer": "Rayleigh scattering", "sources": ["a", "c"]}
    assert thread["value"] == {"asked": 2, "notes": ["blue", "wavelength", "scattering 🌈"]}


def test_the_doctor_finds_the_server_well(url: str) -> None:
    checks = documents(url, "doctor")

    assert {"driver", "store", "schema", "clock", "fsync"} <= {check["what"] for check in checks}
    assert all(check["well"] for check in checks)


def test_a_store_is_made_by_migrate() -> None:
    fresh = postgres.shared().fresh_url()

    made = documents(fresh, "migrate")
    again = documents(fresh, "migrate")

    assert made["before"] == 0 and made["after"] == again["before"] == again["after"]
