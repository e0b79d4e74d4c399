"""`python -m tests.chaos.on_both [options]`: `perdure chaos` on SQLite and on Postgres, both at once.

The SQLite file lies on a small file system that is filled up, where one can be mounted. The Postgres server is the one
of the tests, restarted as if its machine had lost power. Options go to both; the exit code is the worse of the two.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tests.chaos.places import NO_DISK, restartable, small_disk


@contextmanager
def commands() -> Iterator[dict[str, list[str]]]:
    """What is run on each store, while the stores are there."""
    with ExitStack() as places:
        url, restart = places.enter_context(restartable())
        disk = places.enter_context(small_disk())
        if disk is None:
            print(f"sqlite   | {NO_DISK}", flush=True)
        yield {
            "sqlite": [] if disk is None else ["--store", f"sqlite:///{disk}/chaos.db", "--filler", str(disk)],
            "postgres": ["--store", url, "--restart-command", restart],
        }


def pass_on(name: str, process: subprocess.Popen[str]) -> None:
    """Print what one of them prints, with its name before each line."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:<8} | {line.rstrip()}", flush=True)


def main(options: Sequence[str]) -> int:
    """Run both to their ends."""
    with commands() as each:
        running = {
            name: subprocess.Popen(
                [sys.executable, "-m", "perdure", "chaos", *arguments, *options],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for name, arguments in each.items()
        }  # fmt: skip
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is theirs; they come to an end of their own
        readers = [threading.Thread(target=pass_on, args=each) for each in running.items()]
        for reader in readers:
            reader.start()
        codes = [process.wait() for process in running.values()]
        for reader in readers:
            reader.join()
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
