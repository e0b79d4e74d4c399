"""Worker processes of a scene: real ones, started with the command a user would type."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from perdure.testing.chaos.processes import Child, spawn

APP: Final = "perdure.demo.agents:app"


class Staff:
    """All workers of a scene, in the order of their start."""

    def __init__(self, folder: Path, *, queue: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.queue = queue
        self.environ = environ
        self.workers: list[Child] = []

    def hire(self) -> Child:
        """Start another worker."""
        number = len(self.workers) + 1
        name = f"worker {number}"
        command = [sys.executable, "-m", "perdure", "worker", APP, "--queue", self.queue, "--name", name]
        worker = spawn(name, command, log=self.folder / f"worker-{number}.log", environ=self.environ)
        self.workers.append(worker)
        return worker

    @property
    def alive(self) -> list[Child]:
        return [worker for worker in self.workers if worker.alive]

    def dismiss(self) -> None:
        """End whoever is left."""
        for worker in self.alive:
            worker.stop()
