"""The store in memory, broken where it hands out runs: which ones, to whom, and with what."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.records import RunState
from perdure.store.memory import reading
from perdure.store.memory.store import MemoryStore
from tests.simulation.breaking import Breaking, Mutation, replaced, wrapped


def _taking(*forgotten: str) -> Breaking:
    """A claim that leaves some fields as they are."""

    def take(original: Any, store: Any, tables: Any, run: Any, request: Any, *, now: int) -> Any:
        original(store, tables, run, request, now=now)
        as_it_was = {name: getattr(run, name) for name in forgotten}
        tables.runs[run.id] = msgspec.structs.replace(tables.runs[run.id], **as_it_was)
        return reading.claimed(tables, tables.runs[run.id])

    return wrapped(MemoryStore, "_take", take)


def _choosing_too(which: Any) -> Breaking:
    """A claim that takes some runs more."""

    def choose(original: Any, store: Any, tables: Any, request: Any, now: int) -> Any:
        chosen = original(store, tables, request, now)
        others = [run for run in tables.runs.values() if run not in chosen and run.agent in request.agents]
        return (chosen + [run for run in others if which(run, request, now)])[: request.limit]

    return wrapped(MemoryStore, "_choose", choose)


def _queued(run: Any) -> bool:
    return run.state is RunState.QUEUED and bool(run.ready)


def _fits(run: Any, request: Any) -> bool:
    return run.deployment in (None, request.deployment) and run.queue in request.queues


def _pinned_elsewhere(run: Any, request: Any, now: int) -> bool:
    return _queued(run) and run.ready_at <= now and run.deployment != request.deployment


def _in_another_queue(run: Any, request: Any, now: int) -> bool:
    return _queued(run) and run.ready_at <= now and run.deployment in (None, request.deployment)


def _not_due(run: Any, request: Any, now: int) -> bool:
    return _queued(run) and _fits(run, request)


def _out_of_turn(run: Any, request: Any, now: int) -> bool:
    return run.state is RunState.QUEUED and _fits(run, request) and run.ready_at <= now


def _held(run: Any, request: Any, now: int) -> bool:
    return run.state is RunState.HELD and _fits(run, request)


def _newest_first(original: Any, store: Any, tables: Any, request: Any, now: int) -> Any:
    all_of_them = original(store, tables, msgspec.structs.replace(request, limit=500), now)
    return sorted(all_of_them, key=lambda run: -run.id)[: request.limit]


def _asking(**otherwise: Any) -> Breaking:
    """A claim with another request."""

    def choose(original: Any, store: Any, tables: Any, request: Any, now: int) -> Any:
        return original(store, tables, msgspec.structs.replace(request, **otherwise), now)

    return wrapped(MemoryStore, "_choose", choose)


async def _without_a_ticket(original: Any, store: Any, request: Any) -> Any:
    return await original(store, msgspec.structs.replace(request, ticket=1_000_000))


def _answering(**forgotten: Any) -> Breaking:
    """A claim's answer with something left out."""
    return wrapped(
        reading, "claimed", lambda original, tables, run: msgspec.structs.replace(original(tables, run), **forgotten)
    )


def _state_of_the_start(tables: Any, run: Any) -> Any:
    """The state that a claim brings, always that from which the run began."""
    if run.super_step > 1:
        return tables.checkpoints[run.id][1, ""].state
    thread = tables.threads[run.thread]
    newest = (thread.snapshot_run, thread.snapshot_step)
    return None if newest[0] is None else tables.checkpoints[newest[0]][newest[1], ""].state


CLAIMS = (
    Mutation("A claim does not raise the fence", "new fence", _taking("fence")),
    Mutation("A claim is not counted", "claims became", _taking("attempt")),
    Mutation("A claim does not pin the run", "pinned", _taking("deployment")),
    Mutation("A claim may come too late", "last give-back", wrapped(MemoryStore, "claim", _without_a_ticket)),
    Mutation("A claim takes what is pinned elsewhere", "pinned", _choosing_too(_pinned_elsewhere)),
    Mutation("A claim takes from any queue", "in queue", _choosing_too(_in_another_queue)),
    Mutation("A claim takes what is not due", "due", _choosing_too(_not_due)),
    Mutation("A claim takes runs out of their turn", "not ready", _choosing_too(_out_of_turn)),
    Mutation("A claim takes a held run", "(?i)held", _choosing_too(_held)),
    Mutation("A claim takes the newest first", "passed over", wrapped(MemoryStore, "_choose", _newest_first)),
    Mutation("A claim takes more than was asked for", "passed over", _asking(limit=500)),
    Mutation("A claim takes any number of suspects", "suspects", _asking(suspects=500)),
    Mutation("A claim comes without the records", "its log has", _answering(records=())),
    Mutation("A claim comes without the tries", "its tries are", _answering(attempts=())),
    Mutation("A claim brings an old state", "another state", replaced(reading, "_state", _state_of_the_start)),
)
