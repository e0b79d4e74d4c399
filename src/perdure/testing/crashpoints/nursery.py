"""Where processes are born and buried: one process without threads, from which every life is forked.

A fork of a process that has everything imported costs two milliseconds, a new interpreter a quarter of a second; and a
process with threads or an event loop, as a test runner is, should not be forked. So the runner starts one process, and
that one forks the others.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.testing.crashpoints.lives import Life, Play, Word, live

LIFE_S: Final = 40
"""No life lasts longer: what hangs is ended by an alarm, and reported."""

KILLED: Final = -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Grave:
    """A life that is over: how it ended, what it left, and what it printed."""

    pid: int
    code: int
    """As `subprocess` has it: negative for a signal."""
    word: Word | None
    printed: str


class Nursery:
    """Forks lives and waits for them, some at a time."""

    def __init__(self, play: Play, folder: Path, *, width: int) -> None:
        self._play = play
        self._folder = folder
        self._width = width
        self._born = 0
        gc.collect()
        gc.freeze()  # what the children share with this process stays shared

    def see(self, lives: Sequence[Life]) -> list[Grave]:
        """See these lives to their ends; their graves in the order of the lives."""
        graves: dict[int, Grave] = {}
        running: dict[int, tuple[int, Path]] = {}
        todo = list(enumerate(lives))
        while todo or running:
            while todo and len(running) < self._width:
                place, life = todo.pop(0)
                pid, said = self._bear(life)
                running[pid] = (place, said)
            pid, status = os.wait()
            place, said = running.pop(pid)
            graves[place] = _grave(pid, os.waitstatus_to_exitcode(status), said)
        return [graves[place] for place in range(len(lives))]

    def _bear(self, life: Life) -> tuple[int, Path]:
        self._born += 1
        said = self._folder / f"life-{self._born}"
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be(self._play, life, said)
        return pid, said


def _be(play: Play, life: Life, said: Path) -> None:
    """In the child: live, and never return."""
    code = 1
    try:
        signal.alarm(LIFE_S)
        paper = os.open(_printed(said), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(paper, 1)
        os.dup2(paper, 2)
        live(play, life, said)
        code = 0
    except BaseException:  # the end of a process: its traceback is all that it leaves
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _grave(pid: int, code: int, said: Path) -> Grave:
    word = pickle.loads(said.read_bytes()) if code == 0 else None
    paper = _printed(said)
    return Grave(pid, code, word, paper.read_text(errors="replace") if paper.exists() else "")


def _printed(said: Path) -> Path:
    return said.with_suffix(".txt")
