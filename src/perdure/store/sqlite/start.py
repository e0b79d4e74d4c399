"""Putting runs on disk.

Under the write lock, what exists is read once as three sets (run ids, keys, threads). Then each start is decided in
its order against what is there and what the starts before it made, and the new rows are written as sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.core import limits
from perdure.core.changes import KeyTaken, OtherAgent, Started, StartOutcome, StartRun, ThreadHeld
from perdure.core.records import IfBusy, Kind, RunState
from perdure.store.protocol import Hint
from perdure.store.sqlite.transaction import Transaction, decode, encode


class ThreadQueue(msgspec.Struct):
    """A thread's queue while starts are decided."""

    id: int
    agent: str
    head: int | None = None
    depth: int = 0
    last_ordinal: int = 0
    changed: bool = False


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
        self.runs: set[int] = set(tx.array("known_runs", runs=encode([each.id for each in starts])))
        self.keys: dict[str, tuple[int, bytes, str]] = {}
        self.threads: dict[str, ThreadQueue] = {}
        self.new: list[tuple[StartRun, ThreadQueue, int, bool]] = []
        self.new_keys: list[tuple[str, int, bytes]] = []
        self._read_keys({each.key for each in starts if each.key is not None})
        self._read_threads({each.thread_id for each in starts})

    def _read_keys(self, keys: set[str]) -> None:
        for cursor in self.tx.spread("known_starts", [(key,) for key in keys]):
            for key, run, digest, thread_id in decode(cursor.fetchone()[0]):
                self.keys[key] = (run, bytes.fromhex(digest), thread_id)

    def _read_threads(self, names: set[str]) -> None:
        for cursor in self.tx.spread("known_threads", [(name,) for name in names]):
            for name, *fields in decode(cursor.fetchone()[0]):
                self.threads[name] = ThreadQueue(*fields)

    def decide(self, asked: StartRun) -> StartOutcome:
        """What becomes of one start, given all before it."""
        if asked.id in self.runs:
            return Started(asked.id, asked.thread_id, True)
        if asked.key is not None and (known := self.keys.get(asked.key)):
            run, digest, thread_id = known
            return Started(run, thread_id, False) if digest == asked.digest else KeyTaken(run)
        thread = self.threads.get(asked.thread_id)
        if thread is None:
            thread = ThreadQueue(asked.thread, asked.agent)
        if thread.agent != asked.agent:
            return OtherAgent(thread.agent)
        if thread.head is not None:
            if asked.if_busy is IfBusy.JOIN:
                self._remember(asked, thread.head)
                return Started(thread.head, asked.thread_id, False)
            if asked.if_busy is IfBusy.REJECT or thread.depth >= limits.THREAD_QUEUE_MAX:
                return ThreadHeld(thread.head, thread.depth)
        self._add(asked, thread)
        return Started(asked.id, asked.thread_id, True)

    def _add(self, asked: StartRun, thread: ThreadQueue) -> None:
        ready = thread.head is None
        thread.last_ordinal += 1
        thread.depth += 1
        thread.changed = True
        if ready:
            thread.head = asked.id
        self.threads[asked.thread_id] = thread
        self.runs.add(asked.id)
        self.new.append((asked, thread, thread.last_ordinal, ready))
        self._remember(asked, asked.id)

    def _remember(self, asked: StartRun, run: int) -> None:
        """The key stands for this run from now on."""
        if asked.key is not None:
            self.keys[asked.key] = (run, asked.digest, asked.thread_id)
            self.new_keys.append((asked.key, run, asked.digest))

    def write(self) -> None:
        """The rows of all that are new."""
        tx = self.tx
        tx.write("insert_starts", self.new_keys)
        if not self.new:
            return
        changed = [(name, thread) for name, thread in self.threads.items() if thread.changed]
        tx.write("put_threads", [_thread_row(name, thread, tx.now) for name, thread in changed])
        tx.write("insert_runs", [_run_row(*new, tx.now) for new in self.new])
        tx.write("append_checkpoints", [_boundary_row(asked, tx.now) for asked, *_ in self.new])
        blobs = [(thread.id, blob.digest, blob.data) for asked, thread, *_ in self.new for blob in asked.blobs]
        tx.write("put_blobs", blobs)
        if any(ready for *_, ready in self.new):
            tx.hints.add(Hint.WORK)


def _thread_row(name: str, thread: ThreadQueue, now: int) -> tuple[Any, ...]:
    return (thread.id, name, thread.agent, thread.head, thread.depth, thread.last_ordinal, now)


def _run_row(asked: StartRun, thread: ThreadQueue, ordinal: int, ready: bool, now: int) -> tuple[Any, ...]:
    a = asked
    tags = msgspec.json.encode(a.tags).decode()
    at = (a.id, thread.id, ordinal, a.agent, a.queue, RunState.QUEUED, ready, now + a.delay_us, a.priority)
    return (*at, a.key, a.tenant, tags, now)


def _boundary_row(asked: StartRun, now: int) -> tuple[Any, ...]:
    """The start of super-step 1, recorded by nobody's claim: worker 0, fence 0."""
    return (asked.id, 1, "", int(Kind.BOUNDARY), 0, 0, 0, 0, 0, False, asked.payload, None, now, now)
