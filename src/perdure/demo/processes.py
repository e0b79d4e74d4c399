"""Processes of a scene: real ones, its workers started with the command a user would type."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from perdure.demo.billing import Line, read_book
from perdure.errors import UsageError
from perdure.testing.chaos.processes import Child, spawn

APP: Final = "perdure.demo.agents:app"

READY_S: Final = 20.0
READY_LOOK_S: Final = 0.02


class Staff:
    """All workers of a scene, in the order of their start."""

    def __init__(self, folder: Path, *, queue: str, environ: Mapping[str, str], app: str = APP) -> None:
        self.folder = folder
        self.app = app
        self.queue = queue
        self.environ = environ
        self.workers: list[Child] = []

    def hire(self) -> Child:
        """Start another worker."""
        number = len(self.workers) + 1
        name = f"worker {number}"
        command = [sys.executable, "-m", "perdure", "worker", self.app, "--queue", self.queue, "--name", name]
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


class BillingService:
    """The service's process, as the scene sees it: its address, its book, its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.book = folder / "billing.jsonl"
        self.process: Child | None = None

    async def begin(self, options: Sequence[str] = ()) -> str:
        """Start it; returns its URL once it serves."""
        address = self.folder / "billing.url"
        command = [sys.executable, "-m", "perdure.demo.billing", "--book", str(self.book), "--address", str(address)]
        # Apart: at a Ctrl-C the workers see to what they have in hand first, and that needs it.
        self.process = spawn(
            "billing service", [*command, *options], log=self.folder / "billing.log", environ={}, apart=True
        )
        deadline = time.monotonic() + READY_S
        while not address.exists():
            if self.process.broken or time.monotonic() > deadline:
                raise UsageError(f"the billing service did not start; its log says:\n{self.process.last_words()}")
            await asyncio.sleep(READY_LOOK_S)
        return address.read_text("utf-8")

    def lines(self) -> list[Line]:
        """What is in its book."""
        return read_book(self.book)

    @property
    def processes(self) -> list[Child]:
        """Its one process, once it has begun."""
        return [] if self.process is None else [self.process]

    def end(self) -> None:
        """Whatever is in its book is on disk."""
        for process in self.processes:
            if process.alive:
                process.stop()
