"""A start puts a run on disk, or says why not: every answer is held against a model of the verb in a few lines."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from perdure.core.records import IfBusy, Run, RunState, run_id
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
from perdure.core.states import UNFINISHED
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.bystanders import is_by_the_way
from perdure.testing.simulation.rules.cancellations import may_be_asked, of_request
from perdure.testing.simulation.rules.look import Look, Write

DISPLACING = frozenset({IfBusy.INTERRUPT, IfBusy.ROLLBACK})


def of_start(write: Write, annals: Annals) -> Iterator[str]:
    """Each start was answered as it had to be, and what it was answered is on disk."""
    if write.verb != "start" or not write.done:
        return
    model = Model(write.before, annals, write.now_us)
    asked: list[StartRun] = list(write.args[0])
    for ask, outcome in zip(asked, write.answer, strict=True):
        expected = model.start(ask)
        if outcome != expected:
            yield f"start of {ask.key or ask.id} on {ask.thread_id}, {ask.if_busy}: {outcome}, not {expected}"
    for id in sorted(write.now.runs.keys() - write.before.runs.keys()):
        if id not in model.new:
            yield f"start of r{id}: it is there, and was to be refused or joined to another"
    for id, ask in model.new.items():
        run = write.now.runs.get(id)
        if run is None or not (id in model.asked_to_end or _is_as_asked(write.now, run, ask, write.now_us)):
            yield f"start of r{id}: it is not there as it was asked for"
        elif not _keeps_its_parents_time(write, run):
            yield f"start of r{id}: its deadline {run.deadline_at} is later than its parent's"
    yield from _of_displaced(write, model)


def _is_as_asked(now: Look, run: Run, ask: StartRun, now_us: int) -> bool:
    boundary = now.logs.get(run.id, {}).get((1, ""))
    relative = None if ask.deadline_us is None else now_us + ask.deadline_us
    deadline_at = min((time for time in (relative, ask.deadline_at) if time is not None), default=None)
    ready_at = now_us + ask.delay_us if deadline_at is None else min(now_us + ask.delay_us, deadline_at)
    parent = (None, False) if ask.parent is None else (ask.parent.run, ask.parent.detached)
    return (
        boundary is not None
        and boundary.payload == ask.payload
        and (run.agent, run.queue, run.priority, run.key) == (ask.agent, ask.queue, ask.priority, ask.key)
        and (run.thread_id, run.ready_at, run.fence) == (ask.thread_id, ready_at, 0)
        and (run.parent, run.detached, run.deadline_at) == (*parent, deadline_at)
    )


def _keeps_its_parents_time(write: Write, run: Run) -> bool:
    """A child has no more time than its parent, unless that has none left, and cleans up."""
    parent = None if run.parent is None or run.detached else write.now.runs.get(run.parent)
    if parent is None or parent.deadline_at is None or parent.deadline_at <= write.now_us:
        return True
    return run.deadline_at is not None and run.deadline_at <= parent.deadline_at


def _of_displaced(write: Write, model: Model) -> Iterator[str]:
    """Whoever was to make room was asked to end, and nobody else was."""
    for id in write.touched:
        was, run = write.before.runs.get(id), write.now.runs[id]
        if was is None:
            continue
        if run.rollback != (was.rollback or id in model.rolled_back):
            yield f"run r{id}: its states {'are' if run.rollback else 'are not'} to be taken back, by a start"
        if id in model.asked_to_end:
            yield from of_request(write, _rolled(was, run), run, model.asked_to_end[id])
        elif not is_by_the_way(write, _rolled(was, run), run):
            yield f"run r{id} was {was.state} and is {run.state} by the start of another"


def _rolled(was: Run, run: Run) -> Run:
    return replace(was, rollback=run.rollback)


class Model:
    """Threads, keys and runs while a group of starts is answered."""

    def __init__(self, before: Look, annals: Annals, now_us: int) -> None:
        self.before = before
        self.now_us = now_us
        self.names = {id: run.thread_id for id, run in before.runs.items()}
        self.heads = {row.thread_id: row.head for row in before.threads.values()}
        self.agents = {row.thread_id: row.agent for row in before.threads.values()}
        self.keys = annals.keys
        self.new: dict[int, StartRun] = {}
        self.queues: dict[str, list[int]] = {}
        """Unfinished runs by thread, in their order."""
        for run in sorted(before.runs.values(), key=lambda run: run.ordinal):
            if run.state in UNFINISHED:
                self.queues.setdefault(run.thread_id, []).append(run.id)
        self.asked_to_end: dict[int, str] = {}
        self.rolled_back: set[int] = set()

    def start(self, ask: StartRun) -> StartOutcome:
        """What the answer must be."""
        if ask.id in self.names:
            return Started(ask.id, self.names[ask.id], True)
        if ask.parent is not None and (gone := self._gone(ask.parent)) is not None:
            return gone
        if ask.key in self.keys:
            run, digest = self.keys[ask.key]
            return Started(run, self.names[run], False) if digest == ask.digest else KeyTaken(run)
        if self.agents.setdefault(ask.thread_id, ask.agent) != ask.agent:
            return OtherAgent(self.agents[ask.thread_id])
        head = self.heads.get(ask.thread_id)
        if head is not None and (refused := self._refused(ask, head)) is not None:
            return refused
        joins = head is not None and ask.if_busy is IfBusy.JOIN
        if ask.key is not None:
            self.keys[ask.key] = (head if joins and head is not None else ask.id, ask.digest)
        if joins and head is not None:
            return Started(head, ask.thread_id, False)
        if ask.if_busy in DISPLACING:
            self._displace(ask)
        self.names[ask.id] = ask.thread_id
        self.queues.setdefault(ask.thread_id, []).append(ask.id)
        self.heads[ask.thread_id] = self.heads.get(ask.thread_id) or ask.id
        self.new[ask.id] = ask
        return Started(ask.id, ask.thread_id, True)

    def _refused(self, ask: StartRun, head: int) -> StartOutcome | None:
        if ask.if_busy is IfBusy.REJECT:
            return ThreadHeld(head, len(self.queues[ask.thread_id]))
        question = None if head in self.new else self.before.oldest_question(head, self.now_us)
        if ask.if_busy is IfBusy.UNLESS_ASKED and question is not None:
            return QuestionOpen(head, question)
        return None

    def _gone(self, parent: Parent) -> ParentGone | None:
        """Why a parent may start nothing."""
        run = self.before.runs.get(parent.run)
        owned = run is not None and (run.worker, run.fence) == (parent.worker, parent.fence)
        if run is None or not owned or not self.before.alive(parent.worker):
            return ParentGone(parent.run, False)
        cancelled = run.cancel is not None or parent.run in self.asked_to_end
        return ParentGone(parent.run, True) if cancelled and not parent.cancelled else None

    def _displace(self, ask: StartRun) -> None:
        reason = f"{run_id(ask.id)} was started in its place"
        unfinished = list(self.queues.get(ask.thread_id, ()))
        if ask.if_busy is IfBusy.ROLLBACK:
            self.rolled_back.update(unfinished)
        for id in unfinished:
            if self._may_be_asked(id):
                for each in self._tree(id):
                    self._end(each, reason)

    def _tree(self, id: int) -> list[int]:
        found = [id]
        for each in found:
            found += [run.id for run in self.before.runs.values() if run.parent == each and not run.detached]
            found += [new for new, ask in self.new.items() if ask.parent and ask.parent.run == each
                      and not ask.parent.detached]  # fmt: skip
        return found

    def _may_be_asked(self, id: int) -> bool:
        run = self.before.runs.get(id)
        return id not in self.asked_to_end and (run is None or may_be_asked(run))

    def _end(self, id: int, reason: str) -> None:
        """Ask one run to end; one that nobody has to clean up after is over at once."""
        thread = self.names[id]
        if id not in self.queues.get(thread, ()) or not self._may_be_asked(id):
            return
        self.asked_to_end[id] = reason
        run = self.before.runs.get(id)
        if run is None or run.attempt == 0 or run.state is RunState.HELD:
            self.queues[thread].remove(id)
            if self.heads.get(thread) == id:
                self.heads[thread] = self.queues[thread][0] if self.queues[thread] else None
