"""Places for chaos: a disk that is small, and a Postgres that is restarted by a shell command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support import postgres

DISK_MIB: Final = 96
"""More than the store of a few minutes needs, and filled in no time."""

NO_DISK: Final = "no disk is filled: mounting a small file system takes the rights of root"


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """A folder with a file system of its own; None where none can be mounted."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "perdure-chaos", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@contextmanager
def restartable() -> Iterator[tuple[str, str]]:
    """The URL of a server of its own, and the command that restarts it as if its machine had lost power."""
    # Recovery would open every file of the cluster to sync it; the file system does that in one call.
    with postgres.own_server(settings={"recovery_init_sync_method": "syncfs"}) as server:
        programs = shlex.quote(f"PERDURE_TEST_POSTGRES_BIN={postgres.programs()}")
        module = [sys.executable, "-m", "tests.chaos.restarting", str(server.directory)]
        yield server.url(), f"env {programs} {shlex.join(module)}"
