"""Children: runs that an agent starts, each with a lease, a thread and a log of its own.

A start is known by the place where it is made: a replay, or another worker after a crash, finds the child instead of
starting a second. It is guarded as a commit is, so a worker that has lost the run starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure.core.budgets import Budget
from perdure.core.codec import codec_for
from perdure.core.endings import Lost
from perdure.core.records import run_id
from perdure.core.requests import Parent, ParentGone, Started
from perdure.core.shown import shown
from perdure.errors import PerdureError, UsageError
from perdure.runtime.child import Child
from perdure.runtime.frames import agent_frame
from perdure.runtime.interruption import Cancelled
from perdure.runtime.recording import Call
from perdure.runtime.starting import CHILD_KEY, registered, start_request, started

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent
    from perdure.runtime.superstep import SuperStep

_PLACE = codec_for(list)


async def call(agent: Agent[..., Any] | str, /, *args: Any, **kwargs: Any) -> Any:
    """Start a child and wait for its result: `await (await start(agent, ...))`, with the arguments of `start`."""
    agent_frame("call")
    return await (await start(agent, *args, **kwargs))


async def start(
    agent: Agent[..., Any] | str, /, *args: Any, thread_id: str | None = None, key: str | None = None,
    if_busy: str | None = None, queue: str | None = None, priority: int | None = None,
    delay: float | str | timedelta = 0, deadline: float | str | timedelta | datetime | None = None,
    tags: Iterable[str] = (), detached: bool = False, budget: Budget | None = None, **kwargs: Any,
) -> Child:  # fmt: skip
    """Start a run of another agent (or of this one), on disk when it returns.

    The arguments are those of `app.start`. A child has its parent's tenant and priority, and its deadline where it has
    no earlier one of its own. A cancellation of the parent goes down to it, unless it is `detached`; then the parent's
    deadline does not either. (Nor does one that has passed: what cleans up after it may start what it needs.) It counts
    against all budgets of its parent, and against its own `budget` as well.
    """
    at = agent_frame("start").super_step
    found = _agent(at, agent)
    if not isinstance(detached, bool):
        raise UsageError(f"detached is {shown(detached)}; give True or False")
    made = await Call.of("start", f"start:{found.name}", (args, kwargs))
    if made.record is not None:
        number, name = await at.replay(made.record, _PLACE.decode)
        return Child(number, name, found.name)
    claimed = at.claimed
    if thread_id == claimed.thread_id:
        raise UsageError(
            f"run {run_id(claimed.run)} would start a child on its own thread {thread_id!r}, where that would wait "
            "behind the run itself; give it another thread, or return Again(...)"
        )
    await at.admit()
    await at.flushed()
    while True:
        knows = at.knows_of_cancellation
        request = await start_request(
            found, at.host.ids, args, kwargs, thread_id=thread_id, if_busy=if_busy, queue=queue, delay=delay,
            key=f"{CHILD_KEY}{run_id(claimed.run)}/{at.number}/{made.key}" if key is None else key,
            priority=claimed.priority if priority is None else priority, deadline=deadline, tenant=claimed.tenant,
            tags=tags, deadline_at=None if detached or at.is_overdue() else claimed.deadline_at,
            parent=Parent(claimed.run, claimed.fence, at.host.worker, knows, detached), budget=budget,
            billing=at.host.billing,
        )  # fmt: skip
        outcome = await at.host.starts.one(request)
        at.check()
        if isinstance(outcome, ParentGone):
            await _gone(at, outcome)
            await at.fresh()
            continue
        try:
            child: Started = started(outcome, request)
        except PerdureError as error:
            record = made.failed(error)
            at.submit(record)
            raise made.raised(record) from None
        at.submit(made.result(_PLACE.encode([child.run, child.thread_id])))
        return Child(child.run, child.thread_id, found.name)


async def _gone(at: SuperStep, gone: ParentGone) -> None:
    """This run is somebody else's by now, or it has been cancelled and did not know."""
    if not gone.cancelled:
        at.close(Lost("another worker has claimed it"))
        at.check()
    reason = await at.host.waker.why_cancelled(at.claimed.run)
    at.check()
    at.interrupt(Cancelled(reason))


def _agent(at: SuperStep, agent: Agent[..., Any] | str) -> Agent[..., Any]:
    return registered(
        agent, at.host.agents, "on this worker's app",
        "Decorate it with @app.agent, and import its module before the worker starts",
    )  # fmt: skip
