"""Children of the test process: a function run in a process of its own, forked from a server that has everything
imported, so that hundreds of them cost a few seconds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE_S, until

PRELOADED = [
    "pytest",
    "perdure.runtime.worker",
    "perdure.store.sqlite",
    "perdure.store.postgres",
    "tests.support.agents",
    "tests.support.scenarios",
]


def context() -> ForkServerContext:
    """The fork server, with what children need."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    return made


def run_child(target: Callable[..., None], *args: Any) -> int:
    """Run one to its end; its exit code, -9 if it was killed."""
    return run_children(target, [args])[0]


def run_children(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[int]:
    """Run several at once to their ends."""
    made = context()
    children = [made.Process(target=target, args=args) for args in arguments]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(PATIENCE_S)
            assert child.exitcode is not None, f"child {child.pid} does not end"
        return [child.exitcode or 0 for child in children]
    finally:
        for child in children:
            if child.exitcode is None:
                child.kill()
                child.join()


class go_when_ready:  # noqa: N801  # reads as what it does
    """Give the children the signal when all of them are ready, from a thread of its own: both are files."""

    def __init__(self, ready: list[Path], go: Path) -> None:
        self._ready, self._go = ready, go

    def __enter__(self) -> None:
        self._thread = Thread(target=self._wait)
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._thread.join()

    def _wait(self) -> None:
        until(lambda: all(path.exists() for path in self._ready), "all children are ready")
        self._go.touch()
