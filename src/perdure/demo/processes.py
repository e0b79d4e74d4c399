"""Worker processes of a scene: real ones, started with the command a user would type, ended by their own process
ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

APP: Final = "perdure.demo.agents:app"

STOP_S: Final = 20.0
"""How long a worker may take to drain at the end; then it is killed."""

LOG_LINES: Final = 12
"""Of a worker's log, shown when it ended by itself."""


@dataclass
class WorkerProcess:
    """One worker: its number in the scene, its process, its log file."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return f"worker {self.number}"

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def broken(self) -> bool:
        """It ended, and nobody here ended it."""
        return not self.alive and not self.killed

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        self.killed = True
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask it to drain, and end it if it does not."""
        self.killed = True
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Staff:
    """All workers of a scene, in the order of their start."""

    def __init__(self, folder: Path, *, queue: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.queue = queue
        self.environ = environ
        self.workers: list[WorkerProcess] = []

    def hire(self) -> WorkerProcess:
        """Start another worker."""
        number = len(self.workers) + 1
        log = self.folder / f"worker-{number}.log"
        command = [sys.executable, "-m", "perdure", "worker", APP, "--queue", self.queue, "--name", f"worker {number}"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environ},
            )
        worker = WorkerProcess(number, process, log)
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def dismiss(self) -> None:
        """End whoever is left."""
        for worker in self.alive:
            worker.stop()
