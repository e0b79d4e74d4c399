"""A store that fails at a chosen moment: around the n-th of its writes.

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

WRITES = frozenset({"start", "claim", "commit"})
"""The verbs by which a run moves."""

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
    """A store whose first clone fails as told; that clone's own clones are sound (a worker's renewals)."""

    def __init__(self, inner: Store, fault: Fault | None) -> None:
        self.inner = inner
        self.fault = fault
        self.calls = 0
        """Writes so far."""

    def clone(self) -> Any:
        return _Watched(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def strikes(self, verb: str) -> bool:
        """Count a call; whether this one is to fail."""
        if verb in (self.fault.verbs if self.fault else WRITES):
            self.calls += 1
            return self.fault is not None and self.calls == self.fault.nth
        return False

    def strike(self, verb: str) -> None:
        """Fail."""
        assert self.fault is not None
        say("struck", verb=verb, nth=self.fault.nth, moment=self.fault.moment)
        if self.fault.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise StoreUnavailable(f"the test lost the answer to {verb}")


class _Watched:
    """The clone."""

    def __init__(self, owner: FaultyStore) -> None:
        self._owner = owner
        self._inner = owner.inner.clone()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._watched(name, found) if name in WRITES else found

    def _watched(self, name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        owner = self._owner

        async def call(*args: Any, **kwargs: Any) -> Any:
            strikes = owner.strikes(name)
            moment = owner.fault.moment if owner.fault and strikes else None
            if moment == "before":
                owner.strike(name)
            answer = await verb(*args, **kwargs)
            if moment == "lost":
                owner.strike(name)
            if moment == "after":
                # Two turns: the caller has the answer, and has done with it what it does at once.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, owner.strike, name)
            return answer

        return call
