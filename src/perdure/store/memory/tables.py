"""The rows, the indexes over them, and the moves that keep the two together.

Rows are replaced, never changed, so whoever has read one has a snapshot. Every change of a run goes through `move`,
which keeps the indexes and notes what listeners should hear; `writing` sends it when the verb is done.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from perdure.core.deliveries import Billing
from perdure.core.effects import Effect, EffectEvent, Undoing
from perdure.core.limits import NEVER_US
from perdure.core.meters import MeterRow
from perdure.core.records import (
    Attempt,
    Blob,
    Checkpoint,
    Interrupt,
    Kind,
    Message,
    Run,
    RunState,
    Thread,
    Wait,
    WaitKind,
    Worker,
    WorkerState,
)
from perdure.core.states import TERMINAL, may_move
from perdure.store.memory.accounts import Accounts
from perdure.store.memory.outbox import Outbox
from perdure.store.protocol import Hint

StepKey = tuple[int, str]
"""A checkpoint within its run: super-step and key."""


class Listener:
    """A callback and the event loop it belongs to. Compared by identity: one callback may listen twice."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_hint: Callable[[Hint], None]) -> None:
        self.loop = loop
        self.on_hint = on_hint


class Presence:
    """An open store's sign of life. It ends when that store is closed or crashes, and never comes back."""

    def __init__(self) -> None:
        self.alive = True


class Entry(msgspec.Struct, frozen=True):
    """An effect in the ledger: its row, and the events of its writes. The row's state is as it was written."""

    row: Effect
    events: tuple[EffectEvent, ...]


class Tables:
    """What all clones of a store share. Whoever reads or writes holds `lock`."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self.time = 0
        """The time of the verb that writes, or was the last to write."""
        self.lock = threading.RLock()
        self.next_id = 1
        self.workers: dict[int, Worker] = {}
        self.presences: dict[int, Presence] = {}
        self.tickets: dict[int, int] = defaultdict(int)
        """A worker's last `give_back`."""
        self.threads: dict[int, Thread] = {}
        self.thread_by_name: dict[str, int] = {}
        self.runs: dict[int, Run] = {}
        self.started: dict[str, tuple[int, bytes]] = {}
        """Start key to run and digest."""
        self.checkpoints: dict[int, dict[StepKey, Checkpoint]] = defaultdict(dict)
        self.attempts: dict[int, dict[tuple[int, str, int], Attempt]] = defaultdict(dict)
        self.blobs: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.order: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """A thread's unfinished runs, as sorted pairs of ordinal and run."""
        self.waiting: set[int] = set()
        """Runs that a claim may take, at once or from a time on: queued ones that are ready, and parked ones."""
        self.held_by: dict[int, set[int]] = defaultdict(set)
        """A worker's running runs."""
        self.watched: set[int] = set()
        self.children: dict[int, list[int]] = defaultdict(list)
        self.bases: dict[int, tuple[int | None, int | None]] = {}
        """Where a thread's newest state was before this run moved it."""
        self.waits: dict[int, dict[StepKey, Wait]] = defaultdict(dict)
        """What a run waits for, as it was opened; `waits.py` knows whether it has come."""
        self.waiters: dict[tuple[WaitKind, int], set[tuple[int, StepKey]]] = defaultdict(set)
        """Who waits for something: a kind and what it is about (for a message, the thread) to runs and their steps."""
        self.interrupts: dict[int, Interrupt] = {}
        self.asked: dict[int, dict[StepKey, int]] = defaultdict(dict)
        """A run's interrupts."""
        self.mail: dict[int, dict[int, Message]] = defaultdict(dict)
        """A thread's mailbox, by `seq`, in order."""
        self.last_message: dict[int, int] = defaultdict(int)
        self.dead_letters: dict[int, Message] = {}
        self.arrived: dict[int, tuple[int, int]] = {}
        """Messages that are known by their ids: thread and `seq`."""
        self.received: deque[tuple[int, int]] = deque()
        """When which messages left their mailboxes, oldest first, as long as they are known."""
        self.effects: dict[int, Entry] = {}
        self.ledger: dict[int, dict[StepKey, int]] = defaultdict(dict)
        """A run's effects."""
        self.undoing: dict[int, Undoing] = {}
        self.message_keys: dict[tuple[int, str], tuple[int, int]] = {}
        """Thread and key to `seq` and id, of every message that has had a key."""
        self.outbox = Outbox(lambda: self._hints.add(Hint.DELIVER))
        self.billing: dict[int, Billing] = {}
        """Where a run's bill goes."""
        self.meters: dict[int, dict[tuple[int, str, int, int, int], MeterRow]] = defaultdict(dict)
        """A run's meters, by super-step, key, attempt, fence and number."""
        self.accounts = Accounts()
        self.listeners: list[Listener] = []
        self._hints: set[Hint] = set()

    # -- transactions ----------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[int]:
        """Hold the lock; the value is the time. Hints go out at the end."""
        with self.lock:
            self.time = self.now_us()
            yield self.time
            hints, self._hints = self._hints, set()
            for hint in sorted(hints, key=lambda hint: hint.value):
                if hint is not Hint.WORK or self.somebody_idle():
                    self.send(hint)

    def send(self, hint: Hint) -> None:
        """Tell every listener, each on its own loop; one whose loop is closed is forgotten."""
        for listener in list(self.listeners):
            try:
                listener.loop.call_soon_threadsafe(listener.on_hint, hint)
            except RuntimeError:
                if not listener.loop.is_closed():
                    raise
                self.listeners.remove(listener)

    # -- workers ---------------------------------------------------------------------------------------------

    def is_alive(self, worker: int) -> bool:
        row = self.workers.get(worker)
        return row is not None and row.state is WorkerState.ALIVE

    def somebody_idle(self) -> bool:
        return any(row.idle and row.state is WorkerState.ALIVE for row in self.workers.values())

    def end_worker(self, worker: int, state: WorkerState, now: int) -> None:
        self.workers[worker] = msgspec.structs.replace(self.workers[worker], state=state, idle=False, ended_at=now)
        self.presences.pop(worker, None)

    # -- runs ------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        """File a new run at the end of its thread's order."""
        assert run.id not in self.runs and run.state is RunState.QUEUED
        self.runs[run.id] = run
        insort(self.order[run.thread], (run.ordinal, run.id))
        if run.parent is not None:
            self.children[run.parent].append(run.id)
        self._index(run)

    def move(self, run: int, **fields: Any) -> Run:
        """Replace a run's row by one with these fields changed."""
        before = self.runs[run]
        after = msgspec.structs.replace(before, **fields)
        assert before.state is after.state or may_move(before.state, after.state), (before.state, after.state)
        assert (after.state is RunState.RUNNING) == (after.worker is not None)
        assert after.fence >= before.fence
        if before.worker is not None:
            self.held_by[before.worker].discard(run)
        self.runs[run] = after
        self._index(after)
        if before.state is not after.state and (after.state in TERMINAL or after.state is RunState.HELD):
            self._note_ended(after)
        return after

    def _index(self, run: Run) -> None:
        if run.worker is not None:
            self.held_by[run.worker].add(run.id)
        parked = run.state is RunState.WAITING and run.ready_at < NEVER_US
        if not run.ready or not (parked or run.state is RunState.QUEUED):
            self.waiting.discard(run.id)
            return
        self.waiting.add(run.id)
        if run.ready_at <= self.now_us():
            self._hints.add(Hint.WORK)

    def _note_ended(self, run: Run) -> None:
        self.wake_all(WaitKind.RUN, run.id)
        if run.id in self.watched:
            self._hints.add(Hint.ENDED)
        if run.state in TERMINAL:
            self.watched.discard(run.id)
            self._bill(run)
            self.accounts.close(run.id)

    def _bill(self, run: Run) -> None:
        if (billing := self.billing.get(run.id)) is not None:
            id, self.next_id = self.next_id, self.next_id + 1
            self.outbox.bill(run, billing, id, now=self.time)

    # -- waits -----------------------------------------------------------------------------------------------

    def add_wait(self, wait: Wait) -> None:
        at = wait.super_step, wait.key
        self.waits[wait.run][at] = wait
        if (subject := self._subject(wait)) is not None:
            self.waiters[wait.kind, subject].add((wait.run, at))

    def drop_wait(self, run: int, at: StepKey) -> Wait | None:
        wait = self.waits[run].pop(at, None)
        if wait is not None and (subject := self._subject(wait)) is not None:
            self.waiters[wait.kind, subject].discard((run, at))
        return wait

    def _subject(self, wait: Wait) -> int | None:
        return self.runs[wait.run].thread if wait.kind is WaitKind.MESSAGE else wait.target

    def wake_all(self, kind: WaitKind, subject: int) -> None:
        """What these runs wait for has come."""
        for run in sorted({run for run, _ in self.waiters.get((kind, subject), ())}):
            self.wake(run)

    def wake(self, run: int) -> None:
        """Something that the run waits for has come: a parked one is queued, a running one hears of it."""
        match self.runs[run].state:
            case RunState.WAITING:
                self.move(run, state=RunState.QUEUED, ready_at=self.time)
            case RunState.RUNNING:
                self._hints.add(Hint.WAKE)
            case _:
                """A queued one looks when it is claimed, and a held one waits for a person."""

    # -- threads ---------------------------------------------------------------------------------------------

    def enter(self, run: Run) -> None:
        """Put a run that is unfinished again into its place in its thread's order."""
        insort(self.order[run.thread], (run.ordinal, run.id))
        self.settle(run.thread)

    def leave(self, run: Run) -> None:
        """Take an ended run out of its thread's order and give its turn to the next."""
        self.order[run.thread].remove((run.ordinal, run.id))
        self.settle(run.thread)

    def settle(self, thread: int) -> None:
        """Make the first unfinished run of a thread its head, and only the head ready.

        A head that has begun keeps its turn, even when a retried run comes back before it.
        """
        row, order = self.threads[thread], self.order[thread]
        first = order[0][1] if order else None
        head = first if row.head is None else self._keep_or_pass_turn(self.runs[row.head], first)
        if head is not None and not self.runs[head].ready:
            self.move(head, ready=True)
        self.threads[thread] = msgspec.structs.replace(row, head=head, depth=len(order))

    def _keep_or_pass_turn(self, head: Run, first: int | None) -> int | None:
        if head.state in TERMINAL or head.id == first:
            return first
        if first is None or not _gives_way(head, self.runs[first].ordinal):
            return head.id
        self.move(head.id, ready=False)
        return first

    def would_undo(self, run: Run) -> bool:
        """Whether an ended run, if it went on from the state at its own boundary, would undo that of later runs."""
        thread = self.threads[run.thread]
        if run.super_step == 1 or self.checkpoints[run.id][run.super_step, ""].state is None:
            return False
        head = None if thread.head is None else self.runs[thread.head]
        return thread.snapshot_run != run.id or (head is not None and not _gives_way(head, run.ordinal))

    def point(self, thread: int, run: int | None, super_step: int | None) -> None:
        """Let the thread's newest state be the one at this checkpoint; None where it has none."""
        row = self.threads[thread]
        self.threads[thread] = msgspec.structs.replace(row, snapshot_run=run, snapshot_step=super_step)

    # -- logs ------------------------------------------------------------------------------------------------

    def forget_unfinished_tries(self, run: Run) -> None:
        """Forget the tries of the run's super-step of which nobody knows how they ended."""
        attempts = self.attempts[run.id]
        for at in [at for at, row in attempts.items() if at[0] == run.super_step and row.error is None]:
            del attempts[at]

    def drop_failures(self, run: Run, keys: Iterable[str]) -> None:
        """Delete the failed records of these steps in the current super-step, and the tries before them."""
        log, attempts = self.checkpoints[run.id], self.attempts[run.id]
        for key in keys:
            record = log.get((run.super_step, key))
            if record is None or record.kind is not Kind.STEP or not record.failed:
                continue
            del log[run.super_step, key]
            for tried in [at for at in attempts if at[:2] == (run.super_step, key)]:
                del attempts[tried]

    def file(self, entry: Entry) -> None:
        """Put an effect into the ledger, in the place of what it was before."""
        self.effects[entry.row.id] = entry
        self.ledger[entry.row.run][entry.row.super_step, entry.row.key] = entry.row.id

    def begin_undo(self, run: int, undoing: Undoing) -> bool:
        """Decide how a run ends once its effects have been undone; False where that is decided."""
        if run in self.undoing:
            return False
        self.undoing[run] = undoing
        self.move(run, undoing=True)
        return True

    def put_blobs(self, thread: int, blobs: Iterable[Blob]) -> None:
        self.blobs[thread].update((blob.digest, blob.data) for blob in blobs)


def _gives_way(head: Run, ordinal: int) -> bool:
    """Whether an unfinished head lets an older run of its thread go first: only one that nobody has begun."""
    return head.state is RunState.QUEUED and head.started_at is None and ordinal < head.ordinal
