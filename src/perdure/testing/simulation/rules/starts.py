"""A start puts a run on disk, or says why not: every answer is held against a model of the verb in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.changes import KeyTaken, OtherAgent, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.records import IfBusy, Run
from perdure.testing.simulation.rules.look import Look, Write

Keys = dict[str, tuple[int, bytes]]
"""What start keys stand for: a run, and the digest of what was asked."""


def of_start(write: Write, keys: Keys) -> Iterator[str]:
    """Each start was answered as it had to be, and what it was answered is on disk."""
    if write.verb != "start" or not write.done:
        return
    model = Model(write.before, keys)
    asked: list[StartRun] = list(write.args[0])
    for ask, outcome in zip(asked, write.answer, strict=True):
        expected = model.start(ask)
        if outcome != expected:
            yield f"start of {ask.key or ask.id} on {ask.thread_id}, {ask.if_busy}: {outcome}, not {expected}"
    for id in sorted(write.now.runs.keys() - write.before.runs.keys()):
        if id not in model.new:
            yield f"start of r{id}: it is there, and was to be refused or joined to another"
    for id, ask in model.new.items():
        if id not in write.now.runs or not _is_as_asked(write.now, write.now.runs[id], ask, write.now_us):
            yield f"start of r{id}: it is not there as it was asked for"


def _is_as_asked(now: Look, run: Run, ask: StartRun, now_us: int) -> bool:
    boundary = now.logs.get(run.id, {}).get((1, ""))
    return (
        boundary is not None
        and boundary.payload == ask.payload
        and (run.agent, run.queue, run.priority, run.key) == (ask.agent, ask.queue, ask.priority, ask.key)
        and (run.thread_id, run.ready_at, run.fence) == (ask.thread_id, now_us + ask.delay_us, 0)
    )


class Model:
    """Threads, keys and runs while a group of starts is answered."""

    def __init__(self, before: Look, keys: Keys) -> None:
        self.runs = {id: run.thread_id for id, run in before.runs.items()}
        self.heads = {row.thread_id: row.head for row in before.threads.values()}
        self.depths = {row.thread_id: row.depth for row in before.threads.values()}
        self.agents = {row.thread_id: row.agent for row in before.threads.values()}
        self.keys = keys
        self.new: dict[int, StartRun] = {}

    def start(self, ask: StartRun) -> StartOutcome:
        """What the answer must be."""
        if ask.id in self.runs:
            return Started(ask.id, self.runs[ask.id], True)
        if ask.key in self.keys:
            run, digest = self.keys[ask.key]
            return Started(run, self.runs[run], False) if digest == ask.digest else KeyTaken(run)
        if self.agents.setdefault(ask.thread_id, ask.agent) != ask.agent:
            return OtherAgent(self.agents[ask.thread_id])
        head = self.heads.get(ask.thread_id)
        if head is not None and ask.if_busy is IfBusy.REJECT:
            return ThreadHeld(head, self.depths[ask.thread_id])
        if ask.key is not None:
            self.keys[ask.key] = (ask.id if head is None or ask.if_busy is IfBusy.ENQUEUE else head, ask.digest)
        if head is not None and ask.if_busy is IfBusy.JOIN:
            return Started(head, ask.thread_id, False)
        self.runs[ask.id] = ask.thread_id
        self.heads[ask.thread_id] = head or ask.id
        self.depths[ask.thread_id] = self.depths.get(ask.thread_id, 0) + 1
        self.new[ask.id] = ask
        return Started(ask.id, ask.thread_id, True)
