"""The side directory `<file>-workers/`: what processes that share the file need beside it.

- `turn.lock` and `writer.lock`: whose turn it is to write. SQLite's own waiting sleeps and retries, up to 100 ms at a
  time; the kernel hands a lock over at once. The turn makes it fair: whoever waits for the writer lock holds the turn,
  so that the one who just wrote queues behind it.
- `<worker>.lock`: locked for as long as the process that attends to the worker lives. The kernel lets go of it
  whatever kills the process, so a free lock is a death that is known without waiting for a lease.
- `<name>.wake`: the FIFO of one listening store; see `wake.py`.

A forked child inherits descriptors, and with them locks it must not keep alive: it closes them at once.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

FILE_MODE: Final = 0o600
"""Who may lock or wake: whoever owns the database's directory."""


class Descriptors:
    """Open descriptors of one owner. They die in a forked child, unclosed by its owner."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        _ALL.add(self)

    def open(self, path: Path, flags: int) -> int:
        fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._open.remove(fd)
        os.close(fd)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.pop())


_ALL: Final[weakref.WeakSet[Descriptors]] = weakref.WeakSet()


def _close_in_child() -> None:
    for each in list(_ALL):
        each.close_all()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_in_child)


def side_directory(database: Path) -> Path:
    """Where the side directory of this database lies."""
    return database.with_name(f"{database.name}-workers")


class WriterLock:
    """The right to write, among all connections of all processes."""

    def __init__(self, directory: Path) -> None:
        self._descriptors = Descriptors()
        self._turn = self._descriptors.open(directory / "turn.lock", os.O_RDWR | os.O_CREAT)
        self._writer = self._descriptors.open(directory / "writer.lock", os.O_RDWR | os.O_CREAT)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, hold it, hand it over."""
        if sys.platform == "win32":
            yield
            return
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._writer, fcntl.LOCK_EX)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._writer, fcntl.LOCK_UN)

    def close(self) -> None:
        self._descriptors.close_all()


class Attendance:
    """The lock files of workers: those this store attends to, and a look at those of others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors = Descriptors()
        self._attended: dict[int, int] = {}

    def attend(self, worker: int) -> bool:
        """Lock the worker's file for as long as this store is open. False where that cannot be done."""
        if sys.platform == "win32":
            return False
        if worker in self._attended:
            return True
        fd = self._descriptors.open(self._path(worker), os.O_RDWR | os.O_CREAT)
        if not _try_lock(fd):
            self._descriptors.close(fd)
            return False
        self._attended[worker] = fd
        return True

    def is_silent(self, worker: int) -> bool:
        """Whether nobody alive attends to the worker: its file's lock is free, or the file is gone."""
        if sys.platform == "win32":
            return False
        try:
            fd = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            return _try_lock(fd)
        finally:
            os.close(fd)

    def forget(self, worker: int) -> None:
        """Remove the file of a worker whose row has ended."""
        fd = self._attended.pop(worker, None)
        if fd is not None:
            self._descriptors.close(fd)
        self._path(worker).unlink(missing_ok=True)

    def workers(self) -> list[int]:
        """Workers that have a file."""
        return [int(path.stem) for path in self._directory.glob("*.lock") if path.stem.isdecimal()]

    def close(self) -> None:
        """Let go: from now on these workers are silent."""
        self._attended.clear()
        self._descriptors.close_all()

    def _path(self, worker: int) -> Path:
        return self._directory / f"{worker}.lock"


def _try_lock(fd: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
