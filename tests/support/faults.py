"""A store that fails at a chosen moment: around the n-th write of one kind, or of any.

`before`: it was not done. `lost`: it was done, and nobody heard so. `after`: it was done and the answer was used. In
each case the process dies there (`kill -9` to itself), or, with `dies=False`, the store says that it is unavailable and
the process goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from perdure.errors import StoreUnavailable
from perdure.store.protocol import Store
from tests.support.sidelog import say

WRITES = frozenset({"reserve_ids", "register", "start", "claim", "commit", "set_idle", "retire", "give_back", "watch"})
"""Verbs that write."""

Moment = Literal["before", "lost", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "lost", "after")


@dataclass(frozen=True)
class Fault:
    """The n-th call (from 1) of one of these verbs fails at this moment."""

    nth: int
    moment: Moment
    dies: bool = True
    verbs: frozenset[str] = WRITES


class FaultyStore:
    """A store of which the first clone fails as told; that clone's own clones are sound (a worker's renewals)."""

    def __init__(self, inner: Store, fault: Fault, *, counts: bool = False) -> None:
        self._inner = inner
        self._fault = fault
        self._counts = counts
        self._calls = 0

    def clone(self) -> Any:
        if self._counts:
            return self._inner.clone()
        return FaultyStore(self._inner.clone(), self._fault, counts=True)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._fault.verbs or not self._counts:
            return found
        return self._watched(name, found)

    def _watched(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            strikes = self._calls == self._fault.nth
            if strikes and self._fault.moment == "before":
                self._strike(name)
            answer = await verb(*args, **kwargs)
            if strikes and self._fault.moment == "lost":
                self._strike(name)
            if strikes and self._fault.moment == "after":
                # Two turns: the caller has the answer, and has done with it what it does at once.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._strike, name)
            return answer

        return call

    def _strike(self, name: str) -> None:
        say("struck", verb=name, nth=self._fault.nth, moment=self._fault.moment)
        if self._fault.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise StoreUnavailable(f"the test lost the answer to {name}")
