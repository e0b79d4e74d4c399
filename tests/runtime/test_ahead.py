"""What runs ahead of the disk: how far, and what must be on disk before a body begins."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from perdure import Again, Retry, step
from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    Change,
    CommitOutcome,
    RecordAttempt,
    bytes_of,
)
from perdure.core.records import Claimed
from perdure.runtime.agent import Agent, AgentOptions
from perdure.runtime.callables import Pools
from perdure.runtime.deadlines import Deadlines
from perdure.runtime.execution import Execution
from perdure.runtime.group import GroupCommit
from perdure.runtime.superstep import SuperStep
from perdure.runtime.trust import Trust


@dataclass
class Clock:
    """Stands still until it is moved."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return int(self.now * 1e6)


class Host:
    """A worker whose commits go to disk when the test says so."""

    worker = 1
    deployment = "here"
    durability = "async"
    draining = False
    around_body = None
    ahead_max = 1
    store: Any = None

    def __init__(self) -> None:
        self.clock = Clock()
        self.trust = Trust(self.clock, until=10.0)
        self.deadlines = Deadlines(self.clock)
        self.random = random.Random(1)
        self.pools = Pools()
        self.committer: GroupCommit[Change, CommitOutcome] = GroupCommit(self._flush, size=bytes_of)
        self.disk: list[Change] = []
        self.asked: list[Change] = []
        self.may_write = asyncio.Event()

    async def _flush(self, changes: list[Change]) -> CommitOutcome:
        self.asked += changes
        await self.may_write.wait()
        self.disk += changes
        return CommitOutcome()


def claimed_run(arguments: bytes, *, recoveries: int = 0) -> Claimed:
    """A claim of a run that nobody has recorded anything of."""
    return Claimed(
        run=7, thread=8, thread_id="t", agent="agent", fence=2, super_step=1, attempt=2, recoveries=recoveries,
        strikes=0, created_at=0, arguments=arguments, state=None, records=(), attempts=(),
    )  # fmt: skip


async def idle() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


def on_a_host(act: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        host = Host()
        committing = asyncio.create_task(host.committer.run())
        try:
            await act(host)
        finally:
            committing.cancel()

    asyncio.run(main())


def test_an_agent_runs_a_bounded_number_of_super_steps_ahead_of_the_disk() -> None:
    rounds: list[int] = []

    async def agent(n: int) -> int | Again:
        rounds.append(n)
        return Again(n + 1) if n < 5 else n

    async def act(host: Host) -> None:
        made = Agent(agent, AgentOptions(name="agent", retry=Retry(attempts=1)))
        host.ahead_max = 2
        execution = Execution(host, claimed_run(made.signature.bind_encode((1,), {})), made)  # type: ignore[arg-type]
        running = asyncio.create_task(execution.run())
        await idle()
        assert rounds == [1, 2, 3]
        host.may_write.set()
        await running
        assert rounds == [1, 2, 3, 4, 5]
        assert [each.super_step for each in host.disk if isinstance(each, BeginSuperStep)] == [2, 3, 4, 5]

    on_a_host(act)


def test_where_a_dead_worker_may_have_been_a_try_is_on_disk_before_its_body_begins() -> None:
    begun: list[int] = []

    @step
    async def body(n: int) -> None:
        begun.append(n)

    async def agent(n: int) -> Again | None:
        await body(n)
        return Again(n + 1) if n < 3 else None

    async def act(host: Host) -> None:
        made = Agent(agent, AgentOptions(name="agent", retry=Retry(attempts=1)))
        claim = claimed_run(made.signature.bind_encode((1,), {}), recoveries=1)
        running = asyncio.create_task(Execution(host, claim, made).run())  # type: ignore[arg-type]
        await idle()
        assert begun == [], "the first super-step was in the dead worker's hands"
        host.may_write.set()
        await running
        tried = [each.super_step for each in host.disk if isinstance(each, RecordAttempt)]
        assert tried == [1, 2], "it may have been one super-step ahead, and not two"
        recorded = [each.super_step for each in host.disk if isinstance(each, AppendCheckpoint)]
        assert recorded == [1, 2, 3]

    on_a_host(act)


def test_a_body_does_not_begin_where_trust_has_lapsed_while_its_try_was_written() -> None:
    begun: list[str] = []

    @step
    async def body() -> None:
        begun.append("now")

    async def act(host: Host) -> None:
        super_step = SuperStep(host, claimed_run(b"", recoveries=1), number=1, durability=None, claimed_s=0.0)  # type: ignore[arg-type]
        running = asyncio.create_task(super_step.run(body.__call__))
        await idle()
        assert [type(each) for each in host.asked] == [RecordAttempt]
        host.clock.now = 11.0
        host.may_write.set()
        await idle()
        assert [type(each) for each in host.disk] == [RecordAttempt]
        assert begun == []
        host.trust.extend(20.0)
        await running
        assert begun == ["now"]

    on_a_host(act)
