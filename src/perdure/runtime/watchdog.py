"""The watchdog: sees when user code blocks the worker's event loop, and says which line does.

It lives on the renewal thread. Each look asks the loop to answer; a loop that has not answered for `BLOCKED_S` is
blocked, and the stack of its thread, as it is at this moment, names the culprit. The lease is kept meanwhile, for a
blocked loop is not a dead worker; only a block longer than the stall limit is taken for one.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback

from perdure.clock import Clock
from perdure.runtime.threads import post
from perdure.telemetry import emit

BLOCKED_S = 1.0
"""A loop that is silent for so long is reported: steps beside the culprit wait for it."""


class Watchdog:
    """Watches one event loop from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, *, stall_limit_s: float) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._clock = clock
        self._stall_limit_s = stall_limit_s
        self._asked_at: float | None = None
        self._reported = False
        self._stalled = False

    @property
    def stalled(self) -> bool:
        """Whether the loop has been blocked for longer than the limit."""
        return self._stalled

    def look(self) -> None:
        """Ask the loop to answer, and report it if it has not answered the last question for too long."""
        now = self._clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
            post(self._loop, self._answer)
            return
        silent_s = now - self._asked_at
        if silent_s >= BLOCKED_S and not self._reported:
            self._reported = True
            line, stack = self._stack()
            emit("loop.blocked", seconds=round(silent_s, 1), line=line, stack="\n" + stack)
        if silent_s >= self._stall_limit_s and not self._stalled:
            self._stalled = True
            line, _ = self._stack()
            emit("loop.stalled", seconds=round(silent_s, 1), line=line, lease="not renewed any more")

    def _answer(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        if self._reported and asked_at is not None:
            emit("loop.unblocked", seconds=round(self._clock.monotonic() - asked_at, 1))
        self._reported = self._stalled = False

    def _stack(self) -> tuple[str, str]:
        """The innermost line of the blocked thread that is neither Python's nor ours, and its whole stack."""
        top = sys._current_frames().get(self._thread)
        if top is None:
            return "unknown", ""
        entries = traceback.extract_stack(top)
        library = (sys.prefix, sys.base_prefix, __file__.rpartition("runtime")[0], "<frozen")
        own = [entry for entry in entries if not entry.filename.startswith(library)]
        at = (own or entries)[-1]
        return f"{at.filename}:{at.lineno} in {at.name}: {at.line}", "".join(traceback.format_list(entries))
