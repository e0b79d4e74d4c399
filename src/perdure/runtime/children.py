"""Children: runs that an agent starts, each with a lease, a thread and a log of its own.

A start is known by the place where it is made: a replay, or another worker after a crash, finds the child instead of
starting a second. It is guarded as a commit is, so a worker that has lost the run starts nothing. A child's end wakes
its parent in one transaction, whatever the end is; waiting for it is a durable wait.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from perdure.core.changes import AppendCheckpoint
from perdure.core.codec import codec_for
from perdure.core.endings import Lost
from perdure.core.errors import decode_error
from perdure.core.failures import cancellation
from perdure.core.records import ErrorInfo, Outcome, Run, RunState, WaitKind, run_id
from perdure.core.requests import Parent, ParentGone, Started
from perdure.core.states import TERMINAL
from perdure.errors import PerdureError, RunCancelled, RunFailed, RunHeld, UnknownAgent, UsageError
from perdure.runtime.frames import agent_frame
from perdure.runtime.interruption import Cancelled
from perdure.runtime.payloads import load_payload
from perdure.runtime.recording import NOTHING, Call
from perdure.runtime.service import outlast
from perdure.runtime.starting import CHILD_KEY, checked_reason, start_request, started

if TYPE_CHECKING:
    from perdure.runtime.agent import Agent
    from perdure.runtime.superstep import SuperStep

_PLACE = codec_for(list)


class Child:
    """A run that this agent has started; `await` it for its result.

    What it ends with comes as what it is: its result, or `RunFailed`, `RunCancelled` or `RunHeld` (a person must look
    at it; it may be awaited again).
    """

    def __init__(self, id: int, thread_id: str, agent: str) -> None:
        self._id = id
        self.run_id = run_id(id)
        self.thread_id = thread_id
        self.agent = agent

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def result(self) -> Any:
        """Wait for its end, parked, and return its result."""
        return await _ended(self)

    async def cancel(self, reason: str = "its parent cancelled it") -> None:
        """Request its cancellation; await it to see what came of that."""
        why = checked_reason(reason)
        call = await Call.of("cancel", f"cancel:{self.agent}", (self.run_id, why))
        if call.record is None:
            at = call.at
            await at.flushed()
            await outlast("cancel", lambda: at.host.store.cancel(self._id, why, cancellation(why)))
            at.submit(call.result(NOTHING))

    def __repr__(self) -> str:
        return f"<child {self.run_id} of agent {self.agent}>"


async def call(agent: Agent[..., Any] | str, /, *args: Any, **kwargs: Any) -> Any:
    """Start a child and wait for its result: `await (await start(agent, ...))`, with the arguments of `start`."""
    return await (await start(agent, *args, **kwargs))


async def start(
    agent: Agent[..., Any] | str, /, *args: Any, thread_id: str | None = None, key: str | None = None,
    if_busy: str | None = None, queue: str | None = None, priority: int | None = None,
    delay: float | str | timedelta = 0, deadline: float | str | timedelta | datetime | None = None,
    tags: Iterable[str] = (), detached: bool = False, **kwargs: Any,
) -> Child:  # fmt: skip
    """Start a run of another agent (or of this one), on disk when it returns.

    The arguments are those of `app.start`. A child has its parent's tenant and priority, and its deadline where it has
    no earlier one of its own. A cancellation of the parent goes down to it, unless it is `detached`; then the parent's
    deadline does not either. (Nor does one that has passed: what cleans up after it may start what it needs.)
    """
    at = agent_frame("start").super_step
    found = _agent(at, agent)
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
            parent=Parent(claimed.run, claimed.fence, at.host.worker, knows, detached),
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
    name = agent if isinstance(agent, str) else getattr(agent, "name", None)
    if not isinstance(name, str) or name not in at.host.agents:
        known = ", ".join(sorted(at.host.agents))
        raise UnknownAgent(
            f"no agent {name!r} on this worker's app; registered are: {known}. Decorate it with @app.agent, and import "
            "its module before the worker starts",
            agent=name,
        )
    return at.host.agents[name]


async def _ended(child: Child) -> Any:
    """The result of a child, when it has ended or is held."""
    waited = await Call.of("result", f"result:{child.agent}", (child.run_id,))
    at = waited.at
    agent = at.host.agents.get(child.agent)
    decode = codec_for(Any).decode if agent is None else agent.codec.decode
    try:
        if waited.record is not None:
            return await at.replay(waited.record, decode)
        with waited.waiting():
            ended = None
            while ended is None:  # somebody may have sent it on before it was looked at
                await at.waiting.until(waited.key, WaitKind.RUN, target=child._id)
                run = await at.host.reads.runs.one(child._id)
                outcome = await at.host.reads.outcomes.one(child._id)
                at.check()
                assert run is not None, f"{child.run_id} is waited for, and not there"
                ended = await _record(waited, run, outcome)
            at.submit(at.waiting.close(waited.key, ended))
        return await waited.made(ended, decode)
    except (RunFailed, RunCancelled, RunHeld) as error:
        error.ids.update(run_id=child.run_id, thread_id=child.thread_id)
        if isinstance(error, RunFailed):
            told = error.ids
            error.ids["error"] = ErrorInfo(told.get("type", ""), told.get("message", ""), told.get("traceback", ""))
        raise


async def _record(waited: Call, run: Run, outcome: Outcome | None) -> AppendCheckpoint | None:
    """How a child ended, as its parent's record; None where it goes on."""
    name = f"child {run_id(run.id)} of agent {run.agent}"
    if run.state is RunState.HELD:
        held = RunHeld(f"{name} is held ({run.reason}): {run.detail}", reason=run.reason, detail=run.detail)
        return waited.failed(held)
    if run.state not in TERMINAL or outcome is None:
        return None
    payload = await load_payload(waited.at.host.store, run.thread, outcome.payload)
    waited.at.check()
    match run.state:
        case RunState.COMPLETED:
            return waited.result(payload)
        case RunState.CANCELLED:
            why = run.cancel or decode_error(payload).message
            return waited.failed(RunCancelled(f"{name} was cancelled: {why}", reason=why))
        case _:
            info = decode_error(payload)
            error = RunFailed(
                f"{name} failed: {info.type}: {info.message}",
                type=info.type, message=info.message, traceback=info.traceback,
            )  # fmt: skip
            return waited.failed(error)
