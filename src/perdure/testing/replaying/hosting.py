"""What a worker lends to its runs, in a replay: blobs from a history, the time of the record, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from perdure.clock import SYSTEM_CLOCK, Clock
from perdure.core.changes import Change, CommitOutcome, bytes_of
from perdure.core.limits import SUPER_STEPS_AHEAD_MAX
from perdure.core.records import Blob
from perdure.runtime.agent import Agent
from perdure.runtime.callables import Pools
from perdure.runtime.deadlines import Deadlines
from perdure.runtime.group import Batch, GroupCommit
from perdure.runtime.ids import Ids
from perdure.runtime.interruption import Cancelled
from perdure.runtime.patience import Pace
from perdure.runtime.reads import Reads
from perdure.runtime.sinks import Sink
from perdure.runtime.starts import Starts
from perdure.runtime.step import Durability
from perdure.runtime.surroundings import AroundBody
from perdure.runtime.trust import Trust
from perdure.runtime.waker import Waker
from perdure.store.protocol import Store


class Shelf:
    """A history's blobs: all of a store that replaying needs."""

    url = "history"

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self.cancelled: str | None = None
        """Why the code has asked for the cancellation of its own run, if it has: a question that expired may say so."""
        self._blobs = {blob.digest: blob.data for blob in blobs}

    @property
    def as_store(self) -> Store:
        """For code that asks a store for blobs, and for nothing else."""
        return cast(Store, self)

    def add(self, blobs: Iterable[Blob]) -> None:
        """Have these too."""
        self._blobs |= {blob.digest: blob.data for blob in blobs}

    async def blobs(self, thread: int, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Those of them that there are."""
        return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    async def cancel(self, run: int, reason: str, payload: bytes) -> None:
        """Note it; nothing is cancelled but what is played."""
        self.cancelled = reason


class Unwritten(GroupCommit[Change, CommitOutcome]):
    """A group commit that takes everything and writes nothing."""

    def __init__(self) -> None:
        super().__init__(self._nowhere, size=bytes_of)

    def submit(self, item: Change) -> Batch[Change, CommitOutcome]:
        done: asyncio.Future[CommitOutcome] = asyncio.get_running_loop().create_future()
        done.set_result(CommitOutcome())
        return Batch(done)

    async def _nowhere(self, changes: list[Change]) -> CommitOutcome:
        return CommitOutcome()


class Nowhere:
    """What a replay has no use for, since what is not on record is waited for before it acts."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a replay came as far as {name}, though nothing may leave it")


class NobodyWakes:
    """The waker of a replay: nothing comes, no time is due. Only a cancellation that the code asked for is heard of."""

    def __init__(self, shelf: Shelf) -> None:
        self.on_cancelled: Callable[[Cancelled], None] = lambda why: None
        self._shelf = shelf

    def look(self) -> None:
        """Tell of the cancellation."""
        if self._shelf.cancelled is not None:
            self.on_cancelled(Cancelled(self._shelf.cancelled))

    def look_at(self, at_s: float | None) -> None:
        """That time never comes."""


class RecordedClock:
    """The time of the record, for whoever asks for it now."""

    def __init__(self, at_us: int) -> None:
        self._at_us = at_us

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_us(self) -> int:
        return self._at_us


@dataclass
class ReplayHost:
    """What a worker lends to its runs, here: the `Host` of a super-step that is played again."""

    deployment: str
    clock: Clock
    store: Store
    deadlines: Deadlines
    agents: Mapping[str, Agent[..., Any]]
    bell: NobodyWakes
    waker: Waker
    worker: int = 0
    durability: Durability = "async"
    draining: bool = False
    committer: GroupCommit[Change, CommitOutcome] = field(default_factory=Unwritten)
    trust: Trust = field(default_factory=lambda: Trust(SYSTEM_CLOCK, float("inf")))
    pools: Pools = field(default_factory=Pools)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    around_body: AroundBody | None = None
    ahead_max: int = SUPER_STEPS_AHEAD_MAX
    clean_up_s: float = float("inf")
    ids: Ids = field(default_factory=lambda: cast(Ids, Nowhere()))
    starts: Starts = field(default_factory=lambda: cast(Starts, Nowhere()))
    reads: Reads = field(default_factory=lambda: cast(Reads, Nowhere()))
    transactions: Pace = field(default_factory=lambda: Pace("transactions"))
    sinks: Mapping[str, Sink] = field(default_factory=dict)
    billing: str | None = None


def host_for(deployment: str | None, at_us: int, shelf: Shelf, agents: Mapping[str, Agent[..., Any]]) -> ReplayHost:
    """The host for one super-step that was recorded then; made on the loop that plays it."""
    clock, bell = RecordedClock(at_us), NobodyWakes(shelf)
    return ReplayHost(deployment or "", clock, shelf.as_store, Deadlines(clock), agents, bell, cast(Waker, bell))
