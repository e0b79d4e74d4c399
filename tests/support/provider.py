"""A provider of a paid service, for effects to act on: a server in the test's own process, which outlives the workers.

`POST /charge` does the work and keeps a line of it; where it honours keys, a key's work is done once. `POST /ask` says
what became of a key, and that it cannot tell while it is at it. A request may ask it to kill whoever sent it, once, at
a point of its own.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LATE_S = 0.2
"""How long the work takes that goes on after its client has died."""


class Provider:
    """What was done, by key."""

    def __init__(self, *, honours_keys: bool) -> None:
        self.honours_keys = honours_keys
        self.work: list[tuple[str, str]] = []
        """Each piece of work that was done: its key, and for whom."""
        self.killed: set[int] = set()
        self.url = ""
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._died: set[str] = set()

    def charge(self, key: str, who: str, point: str, pid: int) -> str | None:
        """Do the work; the receipt, or None where nobody is left to hear of it."""
        with self._lock:
            self._busy.add(key)
            dies = point in ("sent", "working", "answered") and who not in self._died
            self._died.add(who)
        try:
            if dies and point == "sent":
                self._kill(pid)
                return None
            if dies and point == "working":
                self._kill(pid)
                time.sleep(LATE_S)
            with self._lock:
                if not (self.honours_keys and any(done == key for done, _ in self.work)):
                    self.work.append((key, who))
            if dies and point == "answered":
                self._kill(pid)
                return None
            return f"receipt of {key}"
        finally:
            with self._lock:
                self._busy.discard(key)

    def ask(self, key: str) -> str:
        """What became of a key: `done`, `absent` or `unknown`."""
        with self._lock:
            if key in self._busy:
                return "unknown"
            return "done" if any(done == key for done, _ in self.work) else "absent"

    def times(self, who: str) -> int:
        """How often the work was done for somebody."""
        return sum(1 for _, whom in self.work if whom == who)

    def _kill(self, pid: int) -> None:
        self.killed.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def serving(*, honours_keys: bool) -> Iterator[Provider]:
    """A provider on a port of the loopback."""
    provider = Provider(honours_keys=honours_keys)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = provider.ask(asked["key"]) if self.path == "/ask" else provider.charge(**asked)
            if answer is None:
                self.close_connection = True
                return
            body = json.dumps(answer).encode()
            with suppress(OSError):  # the client has died
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
