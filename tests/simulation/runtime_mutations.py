"""The runtime, broken in one place at a time."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.client.connection import Client
from perdure.core.changes import BeginSuperStep, CommitOutcome, EndRun
from perdure.core.codec import Codec
from perdure.core.endings import Lost
from perdure.core.journal import Journal
from perdure.core.leases import trust_until
from perdure.core.requests import Started, StartRun
from perdure.core.retry import RetryIn
from perdure.errors import StoreUnavailable
from perdure.runtime import claimer, execution, stepping, tenure
from perdure.runtime.claimer import Claimer
from perdure.runtime.execution import Execution
from perdure.runtime.frames import AgentFrame
from perdure.runtime.group import Batch, GroupCommit
from perdure.runtime.keeper import Keeper
from perdure.runtime.superstep import SuperStep
from perdure.runtime.tenure import Tenure
from perdure.runtime.trust import Trust
from tests.simulation.breaking import Breaking, Mutation, replaced, together, wrapped


async def _told_before_the_flush(original: Any, group: Any, batch: Any) -> None:
    if group._flush.__name__ == "_commit":
        batch.done.set_result(CommitOutcome())
        group._settled(batch)
    await original(group, batch)


async def _started_before_the_flush(original: Any, group: Any, batch: Any) -> None:
    if isinstance(batch.items[0], StartRun):
        batch.done.set_result([Started(ask.id, ask.thread_id, True) for ask in batch.items])
        group._settled(batch)
    await original(group, batch)


async def _newest_batch_first(group: Any) -> None:
    while True:
        await group._work.wait()
        group._work.clear()
        while group._batches:
            await group._flush_one(group._batches.pop())


async def _no_intent(original: Any, at: Any, key: str, attempt: int, error: bytes | None, started_at: int) -> None:
    if error is not None:
        await original(at, key, attempt, error, started_at)


async def _intent_not_awaited(
    original: Any, at: Any, key: str, attempt: int, error: bytes | None, started_at: int
) -> None:
    writing = asyncio.ensure_future(original(at, key, attempt, error, started_at))
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _nothing(*args: Any, **kwargs: Any) -> None:
    """What is called does nothing."""


async def _given_up(original: Any, service: str, attempt: Any) -> None:
    if service != "committer":
        return await original(service, attempt)
    try:
        await attempt()
    except StoreUnavailable:
        return None


async def _unsure_no_more(claimer: Any) -> None:
    claimer._settled = claimer._doubts


async def _waits_for_a_hint(claimer: Any) -> None:
    if not claimer._idle:
        await claimer._tenure.store.set_idle(claimer._tenure.worker, True)
        claimer._idle = True
        return
    await claimer._wake.wait()


async def _looks_when_told(client: Any) -> None:
    await client._look.wait()


def _lost_and_not_told(original: Any, execution: Any, ending: Any) -> None:
    step = execution.current
    if not isinstance(ending, Lost) or (step is not None and step.has_waits):  # those would try to park, for ever
        original(execution, ending)


async def _trust_from_the_answer(original: Any, keeper: Any) -> None:
    renewed_at = keeper._renewed_at
    await original(keeper)
    if keeper._renewed_at != renewed_at:
        keeper.trust.extend(trust_until(keeper.clock.monotonic(), keeper.settings.lease_s))


def _state_as_it_was(execution: Any) -> Any:
    data = execution.boundary.state if execution.agent.state is not None else None
    return data, execution.root, ()


def _without_drop_keys(original: Any, *args: Any) -> Any:
    change = original(*args)
    return type(change)(change.run, change.fence, change.thread, change.delay_us)


def _as_it_was_returned(original: Any, codec: Any, value: Any) -> Any:
    data, _ = original(codec, value)
    return data, value


def _scope_of_its_parent(frame: Any, coro: object) -> AgentFrame:
    return AgentFrame(frame.super_step, frame.scope, coro)


def _always_again(original: Any, policy: Any, **about: Any) -> Any:
    return RetryIn(0.1)


def _counted_from_nothing(original: Any, step: Any, *args: Any, **options: Any) -> None:
    original(step, *args, **options)
    step._seq = 0


def _recovered_where_it_was(original: Any, step: Any, host: Any, claimed: Any, *, number: int, **options: Any) -> None:
    original(step, host, claimed, number=number, **options)
    step.recovered = claimed.recoveries > 0 and number == claimed.super_step


def _without_a_commit(kind: type) -> Breaking:
    """Changes of this kind are answered, and go nowhere."""

    def submit(original: Any, group: Any, item: Any) -> Any:
        if not isinstance(item, kind):
            return original(group, item)
        batch: Any = Batch(asyncio.get_running_loop().create_future())
        batch.done.set_result(CommitOutcome())
        return batch

    return wrapped(GroupCommit, "submit", submit)


def _cleared_when_launched(original: Any, tenure: Any, claimed: Any) -> None:
    original(tenure, claimed)
    tenure.suspects.clear()


RUNTIME = (
    Mutation(
        "A commit is reported durable before it is flushed",
        "went on after step|without its intent",
        wrapped(GroupCommit, "_flush_one", _told_before_the_flush),
    ),
    Mutation(
        "A start is answered before it is on disk",
        "which is not there",
        wrapped(GroupCommit, "_flush_one", _started_before_the_flush),
    ),
    Mutation(
        "Batches are flushed newest first",
        "after number|it is not",
        replaced(GroupCommit, "run", _newest_batch_first),
    ),
    Mutation(
        "A try that may not be the first is not recorded ahead of its body",
        "intent",
        wrapped(stepping, "record_attempt", _no_intent),
    ),
    Mutation(
        "A body does not wait until its try is on disk",
        "intent",
        wrapped(stepping, "record_attempt", _intent_not_awaited),
    ),
    Mutation(
        'A step with durability="sync" returns before its record is on disk',
        "went on after step",
        replaced(stepping, "settle", _nothing),
    ),
    Mutation(
        "A batch whose answer was lost is taken for written",
        "after number|is running|not on disk",
        wrapped(tenure, "insist", _given_up),
    ),
    Mutation(
        "Trust in the lease never lapses",
        "after the last renewal",
        replaced(Trust, "holds", True),
    ),
    Mutation(
        "A body that waited for its try's record does not ask for trust again",
        "after the last renewal",
        replaced(SuperStep, "trusted", _nothing),
    ),
    Mutation(
        "Trust is counted from the answer to a renewal",
        "after the last renewal",
        wrapped(Keeper, "_renew", _trust_from_the_answer),
    ),
    Mutation(
        "Nobody is told that a renewal was refused",
        "180 s after",
        replaced(Tenure, "_lose_from", lambda tenure, loop: None),
    ),
    Mutation(
        "What a lost claim took is not given back",
        "is running",
        replaced(Claimer, "_be_sure", _unsure_no_more),
    ),
    Mutation(
        "An idle claimer waits for hints only",
        "idle|is queued",
        replaced(Claimer, "_none_waits", _waits_for_a_hint),
    ),
    Mutation(
        "Whoever waits for a result looks when a hint comes only",
        "a client still waits",
        replaced(Client, "_next_look", _looks_when_told),
    ),
    Mutation(
        "The executions of a lost worker are not told",
        "executes run|180 s after",
        wrapped(Execution, "close", _lost_and_not_told),
    ),
    Mutation(
        "A super-step that has ended still acts",
        "had ended",
        together(replaced(SuperStep, "check", lambda step: None), replaced(SuperStep, "_refuse", _nothing)),
    ),
    Mutation(
        "The keeper takes nothing over",
        "is running",
        replaced(Keeper, "_take_over", _nothing),
    ),
    Mutation(
        "A super-step's state is not saved with its end",
        "thread .* after",
        replaced(Execution, "_freeze", _state_as_it_was),
    ),
    Mutation(
        "A run that is tried again keeps the failures that ended it",
        "which its policy forbids",
        wrapped(Execution, "_retry", _without_drop_keys),
    ),
    Mutation(
        "An agent gets what a body returned, not what was recorded",
        "returned",
        wrapped(Codec, "roundtrip", _as_it_was_returned),
    ),
    Mutation(
        "Tasks share the scope of the one that started them",
        "diverged|returned",
        replaced(AgentFrame, "child", _scope_of_its_parent),
    ),
    Mutation(
        "A recorded step is not found again",
        "on record",
        replaced(Journal, "find", lambda journal, key: None),
    ),
    Mutation(
        "Tries of earlier claims are not counted",
        "for . allowed tries|intent",
        replaced(Journal, "last_try", lambda journal, key: None),
    ),
    Mutation(
        "A step is tried again without end",
        "allowed tries",
        wrapped(stepping, "decide", _always_again),
    ),
    Mutation(
        "Records are numbered anew by each claim",
        "after number",
        wrapped(SuperStep, "__init__", _counted_from_nothing),
    ),
    Mutation(
        "A run's end wakes whoever waits and is not committed",
        "is running",
        _without_a_commit(EndRun),
    ),
    Mutation(
        "The boundary between two super-steps is not committed",
        "super-step|r\\d+",
        _without_a_commit(BeginSuperStep),
    ),
    Mutation(
        "A worker executes as many suspects as there are",
        "suspects",
        replaced(claimer, "SUSPECTS_MAX", 500),
    ),
    Mutation(
        "A suspect is one no more as soon as it is launched",
        "suspects",
        wrapped(Tenure, "launch", _cleared_when_launched),
    ),
    Mutation(
        "A worker has as many slots as there are runs",
        "slots",
        replaced(Tenure, "free", 500),
    ),
    Mutation(
        "An agent runs any number of super-steps ahead of the disk",
        "ahead of the disk",
        replaced(Execution, "_keep_close", _nothing),
    ),
    Mutation(
        "A body where a dead worker may have been is not written ahead",
        "intent",
        wrapped(SuperStep, "__init__", _recovered_where_it_was),
    ),
    Mutation(
        "A run's own tries are not counted",
        "tries",
        wrapped(execution, "decide", _always_again),
    ),
)
