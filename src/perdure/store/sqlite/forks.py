"""Forks: a new thread whose run goes on from a checkpoint of another."""

from __future__ import annotations

from typing import Any

from perdure.core.records import Checkpoint
from perdure.core.requests import ForkRun, OtherAgent, Started, StartOutcome, ThreadHeld
from perdure.store.sqlite.start import Group, ThreadQueue, boundary_row
from perdure.store.sqlite.transaction import Transaction


def fork(tx: Transaction, asked: ForkRun) -> StartOutcome:
    """Put the fork's run on disk as a start, and move it to where it goes on from."""
    ask = asked.start
    group = Group(tx, [ask])
    if known := group.known(ask):
        return known
    if thread := group.threads.get(ask.thread_id):
        return OtherAgent(thread.agent) if thread.agent != ask.agent else ThreadHeld(thread.head or 0, thread.depth)
    group.add(ask, ThreadQueue(ask.thread, ask.agent))
    group.write(boundaries=[boundary_row(ask, tx.now, asked.super_step, asked.state)])
    tx.write("append_checkpoints", [_row(record) for record in asked.records])
    base = (None, 0) if asked.state is None else (ask.id, asked.super_step)
    tx.run("begin_at", run=ask.id, super_step=asked.super_step, base_run=base[0], base_step=base[1])
    if asked.state is not None:
        tx.run("point_thread", thread=ask.thread, run=ask.id, super_step=asked.super_step)
    return Started(ask.id, ask.thread_id, True)


def _row(c: Checkpoint) -> tuple[Any, ...]:
    at = (c.run, c.super_step, c.key, int(c.kind), c.seq, c.fence, c.worker, c.attempt, c.digest, c.failed)
    return (*at, c.payload, c.state, c.started_at, c.ended_at)
