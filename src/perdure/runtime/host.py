"""The host: what a worker lends to the runs it executes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from perdure.clock import Clock
from perdure.core.changes import Change, CommitOutcome
from perdure.runtime.callables import Pools
from perdure.runtime.deadlines import Deadlines
from perdure.runtime.group import GroupCommit
from perdure.runtime.ids import Ids
from perdure.runtime.patience import Pace
from perdure.runtime.reads import Reads
from perdure.runtime.sinks import Sink
from perdure.runtime.starts import Starts
from perdure.runtime.surroundings import AroundBody
from perdure.runtime.trust import Trust
from perdure.runtime.waker import Waker
from perdure.store.protocol import Store

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent
    from perdure.runtime.step import Durability


class Host(Protocol):
    """What a worker lends to the runs it executes."""

    worker: int
    deployment: str
    durability: Durability
    draining: bool
    committer: GroupCommit[Change, CommitOutcome]
    trust: Trust
    store: Store
    pools: Pools
    clock: Clock
    deadlines: Deadlines
    random: random.Random
    around_body: AroundBody | None
    ahead_max: int
    clean_up_s: float
    agents: Mapping[str, Agent[..., Any]]
    sinks: Mapping[str, Sink]
    billing: str | None
    """The sink of the bills of runs that are started here."""
    ids: Ids
    starts: Starts
    reads: Reads
    waker: Waker
    transactions: Pace
