"""Taking hints away from worker processes, so that only what is in the rows can wake anybody.

On Postgres each worker's listener, and no other connection, goes by way of a proxy, which swallows what comes on the
connections that there are at the moment and closes none of them. On SQLite the FIFOs of all processes are removed:
whoever has one open hears nothing by it any more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.store.postgres import listener
from perdure.store.postgres.address import Address, parse
from perdure.testing.proxy import Proxy, proxy
from tests.support import postgres

PORT = "PERDURE_TEST_LISTENER_PORT"
HEARTBEAT = "PERDURE_TEST_HEARTBEAT_S"


class Deafness:
    """What makes the processes of a store deaf."""

    def __init__(self, deafen: Callable[[], int], environ: dict[str, str]) -> None:
        self.environ = environ
        """For the worker processes."""
        self.count = 0
        """How many ears have been stopped."""
        self._deafen = deafen

    def strike(self) -> None:
        """From now on, whoever listens hears nothing, until he listens anew."""
        self.count += self._deafen()


@asynccontextmanager
async def deafness(store_url: str, *, heartbeat_s: float) -> AsyncIterator[Deafness]:
    """For worker processes that are hired meanwhile with `environ`; a listener notices within two heartbeats."""
    if store_url.startswith("sqlite"):
        folder = Path(store_url.removeprefix("sqlite:///") + "-workers")
        yield Deafness(lambda: _remove_ears(folder), {})
        return
    server = postgres.shared()
    async with proxy(server.directory / f".s.PGSQL.{server.port}") as between:
        yield Deafness(lambda: _swallow(between), {PORT: str(between.port), HEARTBEAT: str(heartbeat_s)})


def _remove_ears(folder: Path) -> int:
    ears = list(folder.glob("*.wake"))
    for ear in ears:
        ear.unlink(missing_ok=True)
    return len(ears)


def _swallow(between: Proxy) -> int:
    between.swallow()
    return len(between)


def listen_by_way_of(port: int) -> Callable[[], None]:
    """From now on every listener's connection of this process, and no other, goes to that port of the loopback; the
    returned function ends it."""
    original = listener.Listener.__init__

    def by_way_of_the_proxy(self: listener.Listener, address: Address) -> None:
        query = f"sslmode=disable&schema={address.schema}"
        original(self, parse(f"postgresql://postgres@127.0.0.1:{port}/postgres?{query}"))

    def undo() -> None:
        listener.Listener.__init__ = original  # type: ignore[method-assign]

    listener.Listener.__init__ = by_way_of_the_proxy  # type: ignore[method-assign]
    return undo


def listen_by_way_of_the_proxy() -> None:
    """In a worker process: as the environment says, if it does."""
    if port := os.environ.get(PORT):
        listener.HEARTBEAT_S = float(os.environ[HEARTBEAT])  # type: ignore[misc]
        listen_by_way_of(int(port))


async def strike_again_and_again(deafness: Deafness, every_s: Callable[[], float]) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(every_s())
        deafness.strike()
