"""What step bodies write about themselves, apart from the store: the independent witness of the report.

Each process appends JSON lines to a file of its own, one `write` a line (`O_APPEND`), so that a killed process has
said everything up to its last instant: the kernel keeps what was written. Nothing is buffered and nothing is synced;
the machine is not switched off here, only processes are.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

Body = tuple[str, int, str]
"""A step body's name: `(run, super-step, key)`."""


class What(StrEnum):
    """The moments a body reports."""

    ENTER = "enter"
    """The agent itself was called, at first or again; its key is empty. A sign that the process has the run in hand."""

    BEGIN = "begin"
    END = "end"
    FAIL = "fail"
    """It raised: a try that the step's retry policy judges."""

    STREAM = "stream"
    """The first piece of a model's answer has come; the stream is open until the body ends."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the log. `key` names the step within its run's super-step, `mono` is the machine's monotonic
    clock."""

    run: str
    step: int
    key: str
    pid: int
    what: What
    mono: float
    wall: float

    @property
    def body(self) -> Body:
        return (self.run, self.step, self.key)


class SideLog:
    """This process's file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}.jsonl"
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, body: Body, what: What) -> None:
        """One line, at once."""
        mark = Mark(*body, os.getpid(), what, time.monotonic(), time.time())
        os.write(self.file, (json.dumps(asdict(mark)) + "\n").encode())


@contextmanager
def reported(log: SideLog | None, body: Body) -> Iterator[None]:
    """Report that a body begins, and how it ended; nothing without a log."""
    if log is None:
        yield
        return
    log.write(body, What.BEGIN)
    try:
        yield
    except BaseException:
        log.write(body, What.FAIL)
        raise
    log.write(body, What.END)


class LogReader:
    """Reads a folder of logs again and again, each line once: live while processes write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.marks: list[Mark] = []
        self._offsets: dict[Path, int] = {}

    def refresh(self) -> list[Mark]:
        """All marks so far, in the order of the monotonic clock."""
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._offsets[path] = self._offsets.get(path, 0) + len(whole) + 1
                self.marks.extend(parse(line) for line in whole.split(b"\n"))
        self.marks.sort(key=lambda mark: mark.mono)
        return self.marks


def parse(line: bytes) -> Mark:
    values = json.loads(line)
    return Mark(**{**values, "what": What(values["what"])})


def in_flight(marks: list[Mark], pid: int) -> dict[Body, What]:
    """The bodies that a process has begun and not ended, each with the last thing it said."""
    running: dict[Body, What] = {}
    for mark in marks:
        if mark.pid != pid or mark.what is What.ENTER:
            continue
        if mark.what in (What.END, What.FAIL):
            running.pop(mark.body, None)
        else:
            running[mark.body] = mark.what
    return running
