"""Bodies of effects in flight: they belong to no task of the agent's code, and outlive the one that waits for them.

Where their super-step ends first, its end is not written before theirs. Each has the time limit of its effect; one
without gets one then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from perdure.core.limits import EFFECT_TIMEOUT_S


class Bodies:
    """The bodies of one super-step's effects."""

    def __init__(self) -> None:
        self.in_flight: set[asyncio.Task[Any]] = set()
        self._unlimited: set[asyncio.Task[Any]] = set()

    def begin(self, body: asyncio.Task[Any], *, limited: bool) -> None:
        """This one is in flight from now on; whether it has a time limit of its own."""
        for bodies in (self.in_flight,) if limited else (self.in_flight, self._unlimited):
            bodies.add(body)
            body.add_done_callback(bodies.discard)

    @contextmanager
    def seen_out(self) -> Iterator[None]:
        """A block that waits for them; what is in flight after it is cancelled."""
        if not self.in_flight:
            yield
            return
        loop = asyncio.get_running_loop()
        limit = loop.call_later(EFFECT_TIMEOUT_S, _cancel, self._unlimited, context=Context())
        try:
            yield
        finally:
            limit.cancel()
            _cancel(self.in_flight)


def _cancel(bodies: Iterable[asyncio.Task[Any]]) -> None:
    for body in bodies:
        body.cancel()
