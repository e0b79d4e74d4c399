"""Where the webhooks of a test go: a server in the test's own process, which outlives the workers.

It keeps every request that it has read, in order, with the key that it came under. `mood` says what it does then:
"well" answers 204, "broken" answers 500, "cut" closes the connection without an answer (the request was taken all the
same), "hung" does not answer before its mood changes. A payload may ask for its sender (the header x-pid) to
be killed, once, before or after the answer.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Received:
    """A request, and whether it was answered well or taken without an answer."""

    key: str
    path: str
    payload: Any
    taken: bool


class Receiver:
    """What came."""

    def __init__(self) -> None:
        self.url = ""
        self.mood = "well"
        self.received: list[Received] = []
        self.deaths: list[int] = []
        self._marks: set[str] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition()

    def turn(self, mood: str) -> None:
        """Be in another mood."""
        with self._changed:
            self.mood = mood
            self._changed.notify_all()

    def take(self, key: str, path: str, payload: Any) -> str:
        """Note a request; the mood in which it is answered."""
        mood = self.mood
        if mood == "hung":
            with self._changed:
                self._changed.wait_for(lambda: self.mood != "hung")
            mood = "cut"
        with self._lock:
            self.received.append(Received(key, path, payload, mood in ("well", "cut")))
        return mood

    def kill_once(self, pid: int, mark: str) -> None:
        """Kill who sent it, unless somebody was killed for this already."""
        with self._lock:
            if mark in self._marks:
                return
            self._marks.add(mark)
            self.deaths.append(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @property
    def taken(self) -> list[Received]:
        """What it has for good."""
        with self._lock:
            return [item for item in self.received if item.taken]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a port of the loopback."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            dies = payload.get("dies") if isinstance(payload, dict) else None
            mood = receiver.take(self.headers["webhook-id"], self.path, payload)
            if dies == "received":
                receiver.kill_once(int(self.headers["x-pid"]), payload["mark"])
            if mood == "cut":
                self.close_connection = True
                return
            with suppress(OSError):  # the client has died
                self.send_response(204 if mood == "well" else 500)
                self.send_header("Content-Length", "0")
                self.end_headers()
                self.wfile.flush()
            if dies == "answered":
                receiver.kill_once(int(self.headers["x-pid"]), payload["mark"])

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients die here: no news."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.turn("well")
        server.shutdown()
        server.server_close()
        thread.join()
