"""Every crash test runs on both real stores, unless it says that it concerns one of them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support import processes, stores
from tests.support.sidelog import VARIABLE, SideLog


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.postgres] * (kind == "postgres")) for kind in stores.REAL]
)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh store."""
    return stores.fresh_url(request.param, tmp_path)


@pytest.fixture
def fleet(store_url: str, tmp_path: Path) -> Iterator[processes.Fleet]:
    """Worker processes on it, ended with the test."""
    with processes.fleet(store_url, tmp_path) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the workers have said, where a test with a fleet fails."""
    report = yield
    fleet = getattr(item, "funcargs", {}).get("fleet")
    if report.when == "call" and report.failed and isinstance(fleet, processes.Fleet):
        report.sections.append(("Last words of the workers", fleet.last_words()))
    return report


@pytest.fixture
def waiters(fleet: processes.Fleet) -> processes.Fleet:
    """The same, with the agents that wait."""
    fleet.extra["PERDURE_TEST_AGENTS"] = "tests.support.waiters"
    return fleet


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SideLog:
    """A side log, also for bodies that run in the test's own process."""
    path = tmp_path / "side.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    return SideLog(path)
