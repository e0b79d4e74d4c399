"""Hints between stores: direct calls inside a process, FIFOs between processes.

Each listening store is an `Ear`. Inside a process, ears on the same file are called on their own loops. For other
processes an ear has a FIFO in the side directory, read by its loop; `Bell.ring` writes one byte for each kind of hint
into every FIFO it finds, never waiting: a full one already wakes its reader. A FIFO without a reader was left behind
by a process that is gone, and whoever rings removes it. Where there are no FIFOs, ears in other processes hear nothing,
and their owners look by themselves (G8).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

from perdure.store.protocol import Hint
from perdure.store.sqlite.files import Descriptors

_log = logging.getLogger(__name__)

_BYTES: Final = {Hint.WORK: b"W", Hint.ENDED: b"E", Hint.WAKE: b"K", Hint.DELIVER: b"D"}
_HINTS: Final = {value[0]: hint for hint, value in _BYTES.items()}

READ_BYTES: Final = 4096
"""Hints taken at one look; more of them say nothing new."""

SETTLED_NS: Final = 100_000_000
"""A directory that changed less than this ago is listed again: its time stamp is too coarse to tell changes apart."""

LEFT_S: Final = 60.0
"""A FIFO is made in less than a millisecond; one that is half made after this long was left."""

_ears: Final[dict[Path, dict[str, Ear]]] = {}
_ears_lock: Final = threading.Lock()


def _forget_ears() -> None:
    """A forked child has none of its parent's loops."""
    _ears.clear()
    _ears_lock.release()


if sys.platform != "win32":
    os.register_at_fork(before=_ears_lock.acquire, after_in_parent=_ears_lock.release, after_in_child=_forget_ears)


def sweep(directory: Path) -> None:
    """Remove FIFOs that a process left while it made them."""
    for path in directory.glob("*.wake.new"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > LEFT_S:
                path.unlink()


class Ear:
    """One open store that listens."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._directory = directory
        self._loop = loop
        self._callbacks: dict[object, Callable[[Hint], None]] = {}
        self._descriptors = Descriptors()
        self._name = f"{secrets.token_hex(8)}.wake"
        self._fifo: int | None = None

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        """Add a callback; the returned function removes it, and may be called twice."""
        if not self._callbacks:
            self._open()
        token = object()
        self._callbacks[token] = on_hint

        def stop() -> None:
            if self._callbacks.pop(token, None) and not self._callbacks:
                self.close()

        return stop

    def hear(self, hints: Iterable[Hint]) -> None:
        """Deliver from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is there to be told
            self._loop.call_soon_threadsafe(self._call, frozenset(hints))

    def close(self) -> None:
        """Hear nothing any more."""
        self._callbacks.clear()
        with _ears_lock:
            _ears.get(self._directory, {}).pop(self._name, None)
        if self._fifo is not None:
            (self._directory / self._name).unlink(missing_ok=True)
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.remove_reader(self._fifo)
            self._descriptors.close_all()
            self._fifo = None

    def _open(self) -> None:
        with _ears_lock:
            _ears.setdefault(self._directory, {})[self._name] = self
        if sys.platform == "win32":
            return
        try:
            self._fifo = self._make_fifo()
        except (OSError, RuntimeError) as error:  # a file system without FIFOs, a loop that cannot watch one
            _log.info("no FIFO in %s (%s): hints of other processes are not heard", self._directory, error)

    def _make_fifo(self) -> int:
        """Make the FIFO under a passing name and open it, and only then show it: nobody takes it for a left one."""
        assert sys.platform != "win32"
        hidden = self._directory / f"{self._name}.new"
        os.mkfifo(hidden, 0o600)
        try:
            # Open for writing too, so that it never reads as ended.
            fd = self._descriptors.open(hidden, os.O_RDWR | os.O_NONBLOCK)
            self._loop.add_reader(fd, self._read, fd)
            hidden.rename(self._directory / self._name)
        except BaseException:
            self._descriptors.close_all()
            hidden.unlink(missing_ok=True)
            raise
        return fd

    def _read(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._call({_HINTS[byte] for byte in os.read(fd, READ_BYTES) if byte in _HINTS})

    def _call(self, hints: Collection[Hint]) -> None:
        for hint in Hint:  # in one order: a set's depends on the process
            if hint in hints:
                for callback in list(self._callbacks.values()):
                    callback(hint)


class Bell:
    """Rings every ear on this file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listed_at = -1
        self._names: list[str] = []

    def ring(self, hints: set[Hint]) -> None:
        """Tell everybody who listens. Never waits, never fails: rows decide, hints only hurry."""
        with _ears_lock:
            near = dict(_ears.get(self._directory, {}))
        for ear in near.values():
            ear.hear(hints)
        message = b"".join(_BYTES[hint] for hint in hints)
        for name in self._list():
            if name not in near:
                self._write(self._directory / name, message)

    def _list(self) -> list[str]:
        """The FIFOs; listed again only where the directory has changed."""
        try:
            changed_at = os.stat(self._directory).st_mtime_ns
            if changed_at != self._listed_at:
                self._names = [name for name in os.listdir(self._directory) if name.endswith(".wake")]
                self._listed_at = changed_at if time.time_ns() - changed_at > SETTLED_NS else -1
        except OSError as error:
            _log.warning("no hints: %s cannot be listed (%s)", self._directory, error)
            return []
        return self._names

    def _write(self, path: Path, message: bytes) -> None:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:  # ENXIO: nobody reads it
            _log.debug("removing %s: %s", path, error)
            path.unlink(missing_ok=True)
            return
        try:
            os.write(fd, message)
        except (BlockingIOError, BrokenPipeError):
            pass  # full: its reader has plenty to wake for; broken: it has just gone
        finally:
            os.close(fd)
