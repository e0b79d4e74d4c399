"""Putting runs on disk.

Under the write lock, what exists is read once as sets (run ids, parents, keys, threads, open questions). Then each
start is decided in its order against what is there and what the starts before it made, and the new rows are written as
sets. A start that displaces others looks at what is on disk by then: the ones before it are written first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from perdure.core import limits
from perdure.core.budgets import NewBudget
from perdure.core.records import IfBusy, Kind, budget_name, run_id
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
from perdure.store.protocol import Hint
from perdure.store.sqlite.budgets import budget_rows, named
from perdure.store.sqlite.cancel import cancel_all
from perdure.store.sqlite.transaction import Transaction, decode, encode

DISPLACING: Final = frozenset({IfBusy.INTERRUPT, IfBusy.ROLLBACK})


class ThreadQueue(msgspec.Struct):
    """A thread's queue while starts are decided."""

    id: int
    agent: str
    head: int | None = None
    depth: int = 0
    last_ordinal: int = 0
    changed: bool = False


class NewRun(msgspec.Struct):
    """A start that is put on disk."""

    asked: StartRun
    thread: ThreadQueue
    ordinal: int
    ready: bool
    budgets: tuple[int, ...] = ()


def start(tx: Transaction, starts: Sequence[StartRun]) -> list[StartOutcome]:
    """Decide each start in order, then write what is new."""
    group = Group(tx, starts)
    outcomes = [group.decide(each) for each in starts]
    group.write()
    return outcomes


class Group:
    """Starts that are put on disk together."""

    def __init__(self, tx: Transaction, starts: Sequence[StartRun]) -> None:
        self.tx = tx
        self.starts = starts
        self.new: list[NewRun] = []
        self.new_keys: list[tuple[str, int, bytes]] = []
        self._read()

    def _read(self) -> None:
        """What is on disk."""
        starts = self.starts
        self.runs: set[int] = set(self.tx.array("known_runs", runs=encode([each.id for each in starts])))
        self.parents: dict[int, tuple[int, int, bool]] = {}
        self.given: dict[int, list[int]] = {}
        """What parents count against."""
        self.keys: dict[str, tuple[int, bytes, str]] = {}
        self.threads: dict[str, ThreadQueue] = {}
        self._read_parents({each.parent.run for each in starts if each.parent is not None})
        self._read_keys({each.key for each in starts if each.key is not None})
        self._read_threads({each.thread_id for each in starts})
        self.own = named(self.tx, {budget_name(each.id) for each in starts if each.budget is not None})
        """Budgets that were set for runs before there were these."""
        self.questions = self._read_questions({each.thread_id for each in starts if _minds_questions(each)})

    def _read_parents(self, runs: set[int]) -> None:
        if runs:
            found = self.tx.array("parents", runs=encode(sorted(runs)))
            shared = named(self.tx, {name for row in found for name in _shared(*row[5:])})
            for run, fence, worker, cancelled, budgets, *whose in found:
                self.parents[run] = (fence, worker, bool(cancelled))
                self.given[run] = (budgets or []) + [shared[name] for name in _shared(*whose) if name in shared]

    def _read_keys(self, keys: set[str]) -> None:
        for cursor in self.tx.spread("known_starts", [(key,) for key in keys]):
            for key, run, digest, thread_id in decode(cursor.fetchone()[0]):
                self.keys[key] = (run, bytes.fromhex(digest), thread_id)

    def _read_threads(self, names: set[str]) -> None:
        for cursor in self.tx.spread("known_threads", [(name,) for name in names]):
            for name, *fields in decode(cursor.fetchone()[0]):
                self.threads[name] = ThreadQueue(*fields)

    def _read_questions(self, names: set[str]) -> dict[int, int]:
        """The oldest open questions of the heads of these threads, by run."""
        heads = [thread.head for name, thread in self.threads.items() if name in names and thread.head is not None]
        return dict(self.tx.array("open_questions", runs=encode(heads), now=self.tx.now)) if heads else {}

    def known(self, asked: StartRun) -> StartOutcome | None:
        """The answer in which the thread has no part: the run is there, its parent is not, or its key is."""
        if asked.id in self.runs:
            return Started(asked.id, asked.thread_id, True)
        if asked.parent is not None and (gone := self._gone(asked.parent)):
            return gone
        if asked.key is not None and (known := self.keys.get(asked.key)):
            run, digest, thread_id = known
            return Started(run, thread_id, False) if digest == asked.digest else KeyTaken(run)
        return None

    def _gone(self, parent: Parent) -> ParentGone | None:
        fence, worker, cancelled = self.parents.get(parent.run, (None, None, False))
        if (fence, worker) != (parent.fence, parent.worker):
            return ParentGone(parent.run, False)
        return ParentGone(parent.run, True) if cancelled and not parent.cancelled else None

    def decide(self, asked: StartRun) -> StartOutcome:
        """What becomes of one start, given all before it."""
        if known := self.known(asked):
            return known
        thread = self.threads.get(asked.thread_id)
        if thread is None:
            thread = ThreadQueue(asked.thread, asked.agent)
        if thread.agent != asked.agent:
            return OtherAgent(thread.agent)
        if thread.head is not None:
            if refused := self._refuse(asked, thread, thread.head):
                return refused
            if asked.if_busy in DISPLACING:
                thread = self._displace(asked, thread)
        self.add(asked, thread)
        return Started(asked.id, asked.thread_id, True)

    def _refuse(self, asked: StartRun, thread: ThreadQueue, head: int) -> StartOutcome | None:
        """Why a busy thread takes no new run, or the run that is joined; None if it takes one."""
        if asked.if_busy in DISPLACING:
            return None
        if _minds_questions(asked) and (question := self.questions.get(head)):
            return QuestionOpen(head, question)
        if asked.if_busy is IfBusy.JOIN:
            self._remember(asked, head)
            return Started(head, asked.thread_id, False)
        if asked.if_busy is IfBusy.REJECT or thread.depth >= limits.THREAD_QUEUE_MAX:
            return ThreadHeld(head, thread.depth)
        return None

    def _displace(self, asked: StartRun, thread: ThreadQueue) -> ThreadQueue:
        """Request the cancellation of the thread's unfinished runs, and look again at what is there."""
        self.write()
        unfinished = self.tx.array("unfinished_runs", thread=thread.id)
        if asked.if_busy is IfBusy.ROLLBACK:
            self.tx.run("mark_rollback", runs=encode(unfinished))
        cancel_all(self.tx, unfinished, f"{run_id(asked.id)} was started in its place", asked.displaced)
        self._read()
        return self.threads[asked.thread_id]

    def add(self, asked: StartRun, thread: ThreadQueue) -> None:
        """Put a run behind the others of its thread."""
        ready = thread.head is None
        thread.last_ordinal += 1
        thread.depth += 1
        thread.changed = True
        if ready:
            thread.head = asked.id
        self.threads[asked.thread_id] = thread
        self.runs.add(asked.id)
        self.new.append(NewRun(asked, thread, thread.last_ordinal, ready, self._budgets(asked)))
        self._remember(asked, asked.id)

    def _budgets(self, asked: StartRun) -> tuple[int, ...]:
        """What a new run is given: its own budget, and its parent's."""
        if asked.budget is None and asked.parent is None:
            return ()
        inherited = () if asked.parent is None else self.given.get(asked.parent.run, ())
        own = () if asked.budget is None else (self.own.get(budget_name(asked.id), asked.budget.id),)
        return tuple(sorted({*own, *inherited}))

    def _remember(self, asked: StartRun, run: int) -> None:
        """The key stands for this run from now on."""
        if asked.key is not None:
            self.keys[asked.key] = (run, asked.digest, asked.thread_id)
            self.new_keys.append((asked.key, run, asked.digest))

    def write(self, boundaries: Sequence[tuple[Any, ...]] | None = None) -> None:
        """The rows of all that are new; they begin at these boundaries, or at those of their first super-steps."""
        tx = self.tx
        tx.write("insert_starts", self.new_keys)
        self.new_keys = []
        if not self.new:
            return
        new, self.new = self.new, []
        changed = [(name, thread) for name, thread in self.threads.items() if thread.changed]
        tx.write("put_threads", [_thread_row(name, thread, tx.now) for name, thread in changed])
        tx.write("insert_runs", [_run_row(each, tx.now) for each in new])
        tx.write("insert_budgets", budget_rows(filter(None, map(_own_budget, new)), tx.now))
        tx.write("append_checkpoints", boundaries or [boundary_row(each.asked, tx.now) for each in new])
        tx.write("put_blobs", [(run.thread.id, blob.digest, blob.data) for run in new for blob in run.asked.blobs])
        if any(each.ready for each in new):
            tx.hints.add(Hint.WORK)


def _minds_questions(asked: StartRun) -> bool:
    return asked.if_busy is IfBusy.UNLESS_ASKED


def _thread_row(name: str, thread: ThreadQueue, now: int) -> tuple[Any, ...]:
    return (thread.id, name, thread.agent, thread.head, thread.depth, thread.last_ordinal, now)


def _run_row(new: NewRun, now: int) -> tuple[Any, ...]:
    a = new.asked
    tags = msgspec.json.encode(a.tags).decode()
    deadline_at = earliest(None if a.deadline_us is None else now + a.deadline_us, a.deadline_at)
    at = (a.id, new.thread.id, new.ordinal, a.agent, a.queue, new.ready, earliest(now + a.delay_us, deadline_at))
    parent = (None, False) if a.parent is None else (a.parent.run, a.parent.detached)
    budgets = encode(new.budgets) if new.budgets else None
    billing = (None, None) if a.billing is None else (a.billing.sink, a.billing.key)
    return (*at, a.priority, a.key, a.tenant, tags, now, *parent, deadline_at, budgets, *billing)


def _shared(agent: str, tenant: str | None) -> list[str]:
    """The names of the budgets that a run shares with others."""
    return [f"agent:{agent}"] if tenant is None else [f"agent:{agent}", f"tenant:{tenant}"]


def _own_budget(new: NewRun) -> NewBudget | None:
    """The run's own budget, by its name."""
    budget = new.asked.budget
    return None if budget is None else msgspec.structs.replace(budget, name=budget_name(new.asked.id))


def boundary_row(asked: StartRun, now: int, super_step: int = 1, state: bytes | None = None) -> tuple[Any, ...]:
    """The start of a run: of its first super-step, or, where it is a fork, of the one at which it goes on, with its
    state. It is recorded by nobody's claim: worker 0, fence 0."""
    return (asked.id, super_step, "", int(Kind.BOUNDARY), 0, 0, 0, 0, 0, False, asked.payload, state, now, now)
