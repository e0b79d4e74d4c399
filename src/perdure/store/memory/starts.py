"""Starts: each is answered in its turn, and sees what the ones before it wrote."""

from __future__ import annotations

import msgspec

from perdure.core import limits
from perdure.core.records import Checkpoint, IfBusy, Kind, Run, RunState, Thread, run_id
from perdure.core.requests import (
    KeyTaken,
    OtherAgent,
    Parent,
    ParentGone,
    QuestionOpen,
    Started,
    StartOutcome,
    StartRun,
    ThreadHeld,
)
from perdure.core.times import earliest
from perdure.store.memory import budgets, cancelling, questions
from perdure.store.memory.tables import Tables

_DISPLACING = frozenset({IfBusy.INTERRUPT, IfBusy.ROLLBACK})


def start(tables: Tables, ask: StartRun, now: int) -> StartOutcome:
    """Answer one start; a refused one writes nothing."""
    if (answer := known(tables, ask)) is not None:
        return answer
    found = tables.thread_by_name.get(ask.thread_id)
    if found is not None and (answer := _question(tables, found, ask, now) or _refuse(tables.threads[found], ask)):
        if isinstance(answer, Started) and ask.key is not None:
            tables.started[ask.key] = (answer.run, ask.digest)
        return answer
    if found is not None and ask.if_busy in _DISPLACING:
        _displace(tables, found, ask, now)
    thread = tables.threads[found] if found is not None else new_thread(tables, ask, now)
    new_run(tables, thread, ask, now=now)
    return Started(ask.id, ask.thread_id, True)


def known(tables: Tables, ask: StartRun) -> StartOutcome | None:
    """The answer that the thread has no part in: the run is there, its parent is not, or its key is."""
    if ask.id in tables.runs:
        return Started(ask.id, tables.runs[ask.id].thread_id, True)
    if ask.parent is not None and (gone := _gone(tables, ask.parent)) is not None:
        return gone
    if ask.key is not None and ask.key in tables.started:
        run, digest = tables.started[ask.key]
        return Started(run, tables.runs[run].thread_id, False) if digest == ask.digest else KeyTaken(run)
    return None


def _gone(tables: Tables, parent: Parent) -> ParentGone | None:
    """Why the parent may start nothing: the same guard as a commit's."""
    run = tables.runs.get(parent.run)
    owned = run is not None and (run.state, run.worker, run.fence) == (RunState.RUNNING, parent.worker, parent.fence)
    if run is None or not owned or not tables.is_alive(parent.worker):
        return ParentGone(parent.run, False)
    return ParentGone(parent.run, True) if run.cancel is not None and not parent.cancelled else None


def _question(tables: Tables, thread: int, ask: StartRun, now: int) -> QuestionOpen | None:
    """The open question behind which nothing is queued unasked."""
    row = tables.threads[thread]
    if ask.if_busy is not IfBusy.UNLESS_ASKED or row.agent != ask.agent or row.head is None:
        return None
    interrupt = questions.oldest_open(tables, row.head, now=now)
    return None if interrupt is None else QuestionOpen(row.head, interrupt)


def _refuse(thread: Thread, ask: StartRun) -> StartOutcome | None:
    """Why the thread takes no new run, or the run that is joined; None if it takes one."""
    if thread.agent != ask.agent:
        return OtherAgent(thread.agent)
    if thread.head is None or ask.if_busy in _DISPLACING:
        return None
    if ask.if_busy is IfBusy.JOIN:
        return Started(thread.head, thread.thread_id, False)
    if ask.if_busy is IfBusy.REJECT or thread.depth >= limits.THREAD_QUEUE_MAX:
        return ThreadHeld(thread.head, thread.depth)
    return None


def _displace(tables: Tables, thread: int, ask: StartRun, now: int) -> None:
    """Request the cancellation of the thread's unfinished runs."""
    reason = f"{run_id(ask.id)} was started in its place"
    unfinished = [run for _, run in tables.order[thread]]
    if ask.if_busy is IfBusy.ROLLBACK:
        for run in unfinished:
            tables.move(run, rollback=True)
    for run in unfinished:
        cancelling.cancel(tables, run, reason, ask.displaced, now=now)


def new_thread(tables: Tables, ask: StartRun, now: int) -> Thread:
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


def new_run(
    tables: Tables, thread: Thread, ask: StartRun, *, now: int, super_step: int = 1, state: bytes | None = None
) -> None:
    """File a run as the thread's next, about to begin `super_step`."""
    deadline_at = _deadline(ask, now)
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
        ready_at=now + ask.delay_us if deadline_at is None else min(now + ask.delay_us, deadline_at),
        priority=ask.priority,
        worker=None,
        fence=0,
        attempt=0,
        recoveries=0,
        strikes=0,
        super_step=super_step,
        key=ask.key,
        tenant=ask.tenant,
        tags=ask.tags,
        created_at=now,
        started_at=None,
        ended_at=None,
        parent=None if ask.parent is None else ask.parent.run,
        detached=ask.parent is not None and ask.parent.detached,
        deadline_at=deadline_at,
    )
    tables.add(run)
    budgets.give(tables, ask, now=now)
    if ask.billing is not None:
        tables.billing[run.id] = ask.billing
    tables.settle(thread.id)
    if ask.key is not None:
        tables.started[ask.key] = (run.id, ask.digest)
    tables.checkpoints[run.id][super_step, ""] = _first_boundary(ask, super_step, state, now=now)
    tables.put_blobs(thread.id, ask.blobs)


def _deadline(ask: StartRun, now: int) -> int | None:
    relative = None if ask.deadline_us is None else now + ask.deadline_us
    return earliest(relative, ask.deadline_at)


def _first_boundary(ask: StartRun, super_step: int, state: bytes | None, *, now: int) -> Checkpoint:
    """The arguments, filed before any worker: under fence 0, by worker 0."""
    return Checkpoint(
        run=ask.id,
        super_step=super_step,
        key="",
        kind=Kind.BOUNDARY,
        seq=0,
        fence=0,
        worker=0,
        attempt=0,
        digest=0,
        failed=False,
        payload=ask.payload,
        state=state,
        started_at=now,
        ended_at=now,
    )
