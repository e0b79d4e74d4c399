"""A fresh store for a test: a SQLite file, or a schema of the Postgres server that this test process has started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import postgres

REAL = ("sqlite", "postgres")

PARAMETERS = [pytest.param(kind, marks=[pytest.mark.postgres] * (kind == "postgres")) for kind in REAL]
"""The same for `pytest.mark.parametrize`."""


def fresh_url(kind: str, folder: Path) -> str:
    """A URL of a store that nobody has used."""
    if kind == "postgres":
        return postgres.shared().fresh_url()
    return f"sqlite:///{folder / 'runs.db'}"
