"""Event loops that are worlds of their own, such as those in virtual time of `perdure.testing`: what they let in.

A store of the real world has sockets, files and threads, and a worker of the real world waits by a clock. On a loop
without these, both would hang; so an app asks the loop first.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from perdure.store.protocol import Store


@runtime_checkable
class Grounds(Protocol):
    """An event loop that says what may be used on it. Refusals are `UsageError`s."""

    def admit(self, app: str, store: Store) -> None:
        """Refuse a store that is not of this world; the app of that name is about to open it here."""

    def employ(self) -> None:
        """Refuse a worker of an app, if this world has workers of its own."""


def grounds() -> Grounds | None:
    """The running loop, if it is of this kind."""
    loop = asyncio._get_running_loop()
    return loop if isinstance(loop, Grounds) else None
