"""Worker processes that a test starts, kills, stops and wakes, always by their own process ids, and always reaped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.sidelog import VARIABLE, SideLog
from tests.support.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]
LINES_SHOWN = 60


class WorkerProcess:
    """One worker process."""

    def __init__(self, fleet: Fleet, process: subprocess.Popen[bytes], output: Path) -> None:
        self.fleet = fleet
        self.process = process
        self.output = output

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def identities(self) -> list[int]:
        """The workers' ids it has had, in order."""
        return [
            int(line["fields"]["worker"].removeprefix("w"))
            for line in self.fleet.log.events("worker.started", pid=self.pid)
        ]

    def started(self) -> WorkerProcess:
        """Wait until it works."""
        self._until(lambda: self.identities, "it has started")
        return self

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still (it may be in the middle of anything)."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: _state(self.pid) == "T", f"process {self.pid} stands still")

    def wake(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def drain(self) -> None:
        """SIGTERM: the first drains, the second hands back at once."""
        os.kill(self.pid, signal.SIGTERM)

    def ended(self, *, within_s: float = PATIENCE_S) -> int:
        """Wait until it has ended; its exit code."""
        until(lambda: self.process.poll() is not None, f"process {self.pid} ends", within_s=within_s)
        return self.process.returncode

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def _until(self, look: Any, what: str) -> None:
        def alive_and() -> Any:
            found = look()
            assert found or self.process.poll() is None, f"process {self.pid} ended before {what}:\n{self.text()}"
            return found

        until(alive_and, what)


class Fleet:
    """The worker processes of one test, on one store, with one side log."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.store_url = store_url
        self.folder = folder
        self.log = SideLog(folder / "side.jsonl")
        self.workers: list[WorkerProcess] = []
        self.extra: dict[str, str] = {}
        """More of the environment of those who are hired from now on."""

    def environ(self, *, clock_s: float = 0, **settings: Any) -> dict[str, str]:
        """The environment of a worker process."""
        settings = {"lease_s": 2.0, "poll_s": 0.2, **settings}
        return {
            **os.environ,
            "PERDURE_STORE": self.store_url,
            "PERDURE_TEST_SETTINGS": json.dumps(settings),
            "PERDURE_TEST_CLOCK_S": str(clock_s),
            VARIABLE: str(self.log.path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            **self.extra,
        }

    def hire(self, *, clock_s: float = 0, **settings: Any) -> WorkerProcess:
        """Start another worker; `started()` waits for it. The settings are those of `app.serve`."""
        output = self.folder / f"worker-{len(self.workers) + 1}.txt"
        with output.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.serving"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self.environ(clock_s=clock_s, **settings),
            )
        worker = WorkerProcess(self, process, output)
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[WorkerProcess]:
        """Those whose process has not ended."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def dismiss(self) -> None:
        """End whoever is left."""
        for worker in self.alive:
            worker.process.kill()  # a stopped process dies of it too
        for worker in self.workers:
            worker.process.wait()

    def last_words(self) -> str:
        """The end of what each has printed, for a failing test."""
        return "\n".join(
            f"--- process {worker.pid}, exit code {worker.process.poll()}\n"
            + "\n".join(worker.text().splitlines()[-LINES_SHOWN:])
            for worker in self.workers
        )


@contextmanager
def fleet(store_url: str, folder: Path) -> Iterator[Fleet]:
    """A fleet whose processes end with the block; what they printed is shown if it fails."""
    made = Fleet(store_url, folder)
    try:
        yield made
    except BaseException:
        print(made.last_words())
        raise
    finally:
        made.dismiss()


def _state(pid: int) -> str:
    """One letter: T is stopped."""
    text = Path(f"/proc/{pid}/stat").read_text() if Path("/proc").exists() else _ps(pid)
    return text.rpartition(")")[2].split()[0]


def _ps(pid: int) -> str:
    return (
        ")" + subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    )
