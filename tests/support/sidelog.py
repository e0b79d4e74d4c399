"""What processes and step bodies say about themselves, apart from the store: an independent witness.

Every process appends JSON lines to one file, one `write` a line (`O_APPEND`), so the file's order is the order in which
things happened, and a killed process has said everything up to its last instant. `$PERDURE_TEST_LOG` names the file;
without it nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import perdure

VARIABLE = "PERDURE_TEST_LOG"

Line = dict[str, Any]
Body = tuple[str, int, str]
"""A step body's name: run, super-step, key."""

_files: dict[str, int] = {}


def say(what: str, **fields: Any) -> None:
    """Append one line."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return
    if path not in _files:
        _files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    line = {"what": what, "pid": os.getpid(), "at": time.monotonic(), **fields}
    os.write(_files[path], (json.dumps(line, default=str) + "\n").encode())


@contextmanager
def told(**more: Any) -> Iterator[None]:
    """Inside a step's body: say that it begins, and how it ended."""
    at = perdure.current()
    where = {"run": at.run_id, "super_step": at.super_step, "key": at.step, "attempt": at.attempt, **more}
    say("begin", **where)
    try:
        yield
    except BaseException as error:
        say("broken", **where, error=type(error).__name__, why=str(error))
        raise
    say("end", **where)


class SideLog:
    """Reads the file, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str | None = None, **fields: Any) -> list[Line]:
        """The whole lines so far that say `what` and have these fields, in order."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes().rpartition(b"\n")[0]
        found = [json.loads(line) for line in text.split(b"\n") if line]
        return [
            line
            for line in found
            if (what is None or line["what"] == what) and all(line.get(name) == value for name, value in fields.items())
        ]

    def count(self, what: str) -> int:
        """How many lines say `what`; cheap enough to ask again and again."""
        return self.path.read_bytes().count(b'{"what": "%b"' % what.encode()) if self.path.exists() else 0

    def events(self, event: str, **fields: Any) -> list[Line]:
        """What the runtime reported under that name."""
        return self.lines("event", event=event, **fields)

    def begins(self) -> dict[Body, list[Line]]:
        """Every body that has begun, with its begins in order."""
        found: dict[Body, list[Line]] = {}
        for line in self.lines("begin"):
            found.setdefault((line["run"], line["super_step"], line["key"]), []).append(line)
        return found
