"""Child processes: real ones, each with a log of its own, hurt and ended by their own process ids only.

A signal is never sent to a process that has ended: its id may be somebody else's by then.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STOP_S: Final = 20.0
"""How long a process may take to end when it is asked to; then it is killed."""

LOOK_S: Final = 0.05

LOG_LINES: Final = 12
"""Of a process's log, shown when it ended by itself."""


@dataclass
class Child:
    """One process: its name, its log file, and whether we have asked it to end."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    dismissed: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def broken(self) -> bool:
        """It ended, and nobody here ended it."""
        return not self.alive and not self.dismissed

    def kill(self) -> None:
        """`kill -9`, and wait until the process is gone."""
        self.dismissed = True
        self.process.kill()
        self.process.wait()

    def ask_to_end(self) -> None:
        """SIGTERM."""
        self.dismissed = True
        self.process.terminate()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        self.ask_to_end()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: it stands still, in the middle of anything."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


async def gone(children: Iterable[Child], *, within_s: float | None = None) -> bool:
    """Wait until all of these have ended; whether they have, in that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while any(child.alive for child in children):  # noqa: ASYNC110  # nothing says when they end
                await asyncio.sleep(LOOK_S)
            return True
    return False


def spawn(name: str, command: Sequence[str], *, log: Path, environ: Mapping[str, str], apart: bool = False) -> Child:
    """Start a process. `apart`: in a process group of its own, out of the reach of the terminal's Ctrl-C, and not for
    longer than this process: when that dies, one that is stopped could not see to it itself."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env={**os.environ, **environ}, process_group=0 if apart else None,
            preexec_fn=_ends_with_parent if apart else hears_signals,
        )  # fmt: skip
    return Child(name, process, log)


_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
_SET_PARENT_DEATH_SIGNAL: Final = 1


def _ends_with_parent() -> None:
    """The same, and on Linux it is killed with its parent. (Elsewhere its group is orphaned then, and the system wakes
    and hangs up on who is stopped in it.)"""
    hears_signals()
    if _LIBC is not None:
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def hears_signals() -> None:
    """In a process that is about to begin: what its parent ignores, it does not. A shell's `nohup` and `&` make their
    children deaf to SIGHUP and SIGINT, and theirs after them."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
