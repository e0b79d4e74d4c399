"""A store that fails at a chosen moment: around the n-th of its writes.

`before`: it was not done. `lost`: it was done, and nobody heard so. `after`: it was done and the answer was used. In
each case the process dies there (`kill -9` to itself), or, with `dies=False`, the store says that it is unavailable and
the process goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from perdure.errors import StoreUnavailable
from perdure.store.protocol import Store

WRITES: Final = frozenset(
    {
        "reserve_ids", "register", "start", "claim", "commit", "give_back", "retire", "take_over", "retry", "release",
        "cancel", "answer", "send", "revive", "fork", "resolve", "claim_deliveries", "settle_deliveries", "redeliver",
        "set_budget", "transact",
    }
)  # fmt: skip
"""The verbs that write rows. Left out is what only extends a lease or leaves a note for whoever sends hints."""

Moment = Literal["before", "lost", "after"]
MOMENTS: Final[tuple[Moment, ...]] = ("before", "lost", "after")


@dataclass(frozen=True, slots=True)
class Fault:
    """The n-th write (from 1) of one of these verbs fails at this moment. A call that found nothing to do, such as a
    claim that got no run, is no write."""

    nth: int
    moment: Moment
    dies: bool = True
    verbs: frozenset[str] = WRITES

    def __post_init__(self) -> None:
        assert self.nth >= 1 and self.moment in MOMENTS and self.verbs <= WRITES, self
        assert self.dies or self.moment != "after", "with the answer in use there is nobody left to tell of a failure"


class FaultyStore:
    """A store that counts its writes, with those of all its clones, and fails as told. It passes for the store."""

    def __init__(self, inner: Store, *faults: Fault) -> None:
        self.inner = inner
        self._watch = _Watch(faults)

    @property
    def writes(self) -> tuple[str, ...]:
        """The verbs of all writes so far, in the order in which they were answered."""
        return tuple(self._watch.writes)

    @property
    def calls(self) -> int:
        """Writes so far."""
        return len(self._watch.writes)

    @property
    def struck(self) -> tuple[Fault, ...]:
        """The faults that have come about, of those that one survives."""
        return tuple(self._watch.struck)

    def clone(self) -> Any:
        made = FaultyStore(self.inner.clone())
        made._watch = self._watch
        return made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._watch.over(name, found) if name in WRITES else found


class _Watch:
    """Counts, and strikes. A worker's keeper writes on a thread of its own."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.writes: list[str] = []
        self.struck: list[Fault] = []
        self._waiting = list(faults)
        self._counts: Counter[Fault] = Counter()
        self._lock = threading.Lock()

    def over(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The verb, watched."""

        async def watched(*args: Any, **kwargs: Any) -> Any:
            if fault := self._due(verb):
                self._strike(fault, verb)
            answer = await call(*args, **kwargs)
            fault = self._written(verb) if _wrote(verb, answer) else None
            if fault is not None and fault.moment == "lost":
                self._strike(fault, verb)
            if fault is not None and fault.moment == "after":
                # Two turns: the caller has the answer, and has done with it what it does at once.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._strike, fault, verb)
            return answer

        return watched

    def _due(self, verb: str) -> Fault | None:
        """The fault that strikes before this call."""
        with self._lock:
            due = (fault for fault in self._waiting if fault.moment == "before" and verb in fault.verbs)
            found = next((fault for fault in due if self._counts[fault] + 1 == fault.nth), None)
            self._met(found)
            return found

    def _written(self, verb: str) -> Fault | None:
        """Count a write; the fault that it brings about."""
        with self._lock:
            self.writes.append(verb)
            self._counts.update(fault for fault in self._waiting if verb in fault.verbs)
            due = (fault for fault in self._waiting if fault.moment != "before" and verb in fault.verbs)
            found = next((fault for fault in due if self._counts[fault] == fault.nth), None)
            self._met(found)
            return found

    def _met(self, fault: Fault | None) -> None:
        if fault is not None:
            self._waiting.remove(fault)
            self.struck.append(fault)

    def _strike(self, fault: Fault, verb: str) -> None:
        if fault.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        raise StoreUnavailable(f"the answer to {verb} was lost on purpose")


def _wrote(verb: str, answer: Any) -> bool:
    """Whether a call with this answer has changed a row."""
    return bool(answer) if verb in {"claim", "give_back", "take_over", "claim_deliveries"} else True
