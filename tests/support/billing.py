"""The demo's billing service, in the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.demo.billing import Book, Service


@contextmanager
def serving(path: Path, *, lose_every: int = 0, hold_s: float = 0.0) -> Iterator[str]:
    """The service in this process; gives its URL."""
    service = Service(Book(path), lose_every=lose_every, hold_s=hold_s)
    thread = threading.Thread(target=service.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield service.url
    finally:
        service.shutdown()
        thread.join()
        service.server_close()
