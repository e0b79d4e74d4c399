"""What every test gets: no settings from outside, compiled modules for the processes it starts, and no server left
behind."""

from __future__ import annotations

import os
import sys


def pytest_configure() -> None:
    """A developer's own PERDURE_STORE must neither steer a test nor be written to by one."""
    for name in [name for name in os.environ if name.startswith("PERDURE_") and not name.startswith("PERDURE_TEST_")]:
        del os.environ[name]
    # Where no bytecode is kept, each of the hundreds of processes that tests start would compile everything anew, and
    # take three times as long to begin. They inherit this, pytest's own workers too.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_unconfigure() -> None:
    """End the Postgres servers of this process, if a test started one."""
    postgres = sys.modules.get("tests.support.postgres")
    if postgres is not None:
        postgres.stop_all()
