"""Forks: a new thread whose run goes on from a checkpoint of another."""

from __future__ import annotations

from perdure.core.records import Thread
from perdure.core.requests import ForkRun, OtherAgent, Started, StartOutcome, ThreadHeld
from perdure.store.memory import starts
from perdure.store.memory.tables import Tables


def fork(tables: Tables, asked: ForkRun, *, now: int) -> StartOutcome:
    """Answer a fork; a refused one writes nothing."""
    ask = asked.start
    if (answer := starts.known(tables, ask)) is not None:
        return answer
    found = tables.thread_by_name.get(ask.thread_id)
    if found is not None:
        return _refuse(tables.threads[found], ask.agent)
    thread = starts.new_thread(tables, ask, now)
    starts.new_run(tables, thread, ask, now=now, super_step=asked.super_step, state=asked.state)
    tables.checkpoints[ask.id].update(((row.super_step, row.key), row) for row in asked.records)
    if asked.state is not None:
        tables.point(thread.id, ask.id, asked.super_step)
        tables.bases[ask.id] = ask.id, asked.super_step
    return Started(ask.id, ask.thread_id, True)


def _refuse(thread: Thread, agent: str) -> StartOutcome:
    return OtherAgent(thread.agent) if thread.agent != agent else ThreadHeld(thread.head or 0, thread.depth)
