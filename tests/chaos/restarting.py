"""`python -m tests.chaos.restarting DIRECTORY`: restart the tests' Postgres server that lives there, `immediate`."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.postgres import NOBODY, programs


def main(directory: Path) -> int:
    """Run `pg_ctl restart`, as the user that the server runs as."""
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        entry = pwd.getpwnam(NOBODY)
        identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    command = [programs() / "pg_ctl", "restart", "-w", "-m", "immediate", "-D", directory / "data"]
    return subprocess.run([*command, "-l", directory / "log"], cwd=directory, **identity).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
