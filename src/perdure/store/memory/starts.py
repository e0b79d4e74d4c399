"""Starts: each is answered in its turn, and sees what the ones before it wrote."""

from __future__ import annotations

import msgspec

from perdure.core import limits
from perdure.core.changes import KeyTaken, OtherAgent, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.records import Checkpoint, IfBusy, Kind, Run, RunState, Thread
from perdure.store.memory.tables import Tables


def start(tables: Tables, ask: StartRun, now: int) -> StartOutcome:
    """Answer one start; a refused one writes nothing."""
    if ask.id in tables.runs:
        return Started(ask.id, tables.runs[ask.id].thread_id, True)
    if ask.key is not None and ask.key in tables.started:
        run, digest = tables.started[ask.key]
        return Started(run, tables.runs[run].thread_id, False) if digest == ask.digest else KeyTaken(run)
    found = tables.thread_by_name.get(ask.thread_id)
    if found is not None and (answer := _refuse(tables.threads[found], ask)):
        if isinstance(answer, Started) and ask.key is not None:
            tables.started[ask.key] = (answer.run, ask.digest)
        return answer
    thread = tables.threads[found] if found is not None else _new_thread(tables, ask, now)
    _new_run(tables, thread, ask, now=now)
    return Started(ask.id, ask.thread_id, True)


def _refuse(thread: Thread, ask: StartRun) -> StartOutcome | None:
    """Why the thread takes no new run, or the run that is joined; None if it takes one."""
    if thread.agent != ask.agent:
        return OtherAgent(thread.agent)
    if thread.head is None:
        return None
    if ask.if_busy is IfBusy.JOIN:
        return Started(thread.head, thread.thread_id, False)
    if ask.if_busy is IfBusy.REJECT or thread.depth >= limits.THREAD_QUEUE_MAX:
        return ThreadHeld(thread.head, thread.depth)
    return None


def _new_thread(tables: Tables, ask: StartRun, now: int) -> Thread:
    assert ask.thread not in tables.threads
    thread = Thread(
        id=ask.thread,
        thread_id=ask.thread_id,
        agent=ask.agent,
        head=None,
        depth=0,
        last_ordinal=0,
        snapshot_run=None,
        snapshot_step=None,
        created_at=now,
    )
    tables.threads[thread.id] = thread
    tables.thread_by_name[thread.thread_id] = thread.id
    return thread


def _new_run(tables: Tables, thread: Thread, ask: StartRun, *, now: int) -> None:
    ordinal = thread.last_ordinal + 1
    tables.threads[thread.id] = msgspec.structs.replace(thread, last_ordinal=ordinal)
    run = Run(
        id=ask.id,
        thread=thread.id,
        thread_id=thread.thread_id,
        ordinal=ordinal,
        agent=ask.agent,
        queue=ask.queue,
        deployment=None,
        state=RunState.QUEUED,
        reason=None,
        detail=None,
        ready=False,
        ready_at=now + ask.delay_us,
        priority=ask.priority,
        worker=None,
        fence=0,
        attempt=0,
        recoveries=0,
        strikes=0,
        super_step=1,
        key=ask.key,
        tenant=ask.tenant,
        tags=ask.tags,
        created_at=now,
        started_at=None,
        ended_at=None,
    )
    tables.add(run)
    tables.settle(thread.id)
    if ask.key is not None:
        tables.started[ask.key] = (run.id, ask.digest)
    tables.checkpoints[run.id][1, ""] = _first_boundary(ask, now)
    tables.put_blobs(thread.id, ask.blobs)


def _first_boundary(ask: StartRun, now: int) -> Checkpoint:
    """The arguments, filed before any worker: under fence 0, by worker 0."""
    return Checkpoint(
        run=ask.id,
        super_step=1,
        key="",
        kind=Kind.BOUNDARY,
        seq=0,
        fence=0,
        worker=0,
        attempt=0,
        digest=0,
        failed=False,
        payload=ask.payload,
        state=None,
        started_at=now,
        ended_at=now,
    )
