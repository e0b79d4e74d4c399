"""Durable waits of one super-step.

A wait is a step whose record says what came. Until then a row in the store says what the run waits for (`OpenWait`),
and the task stands at a `Durable` future. What makes the wait ready is found by looking at the store: at the claim,
when a hint comes, or at the next poll (`waker.py`); then the verb reads what came and writes the record, which deletes
the row (`CloseWait`).

When the run has come to rest (`rest.py`), it is parked: the store lets go of it first, unless something has come
meanwhile, and then its code is unwound. A branch that agent code cancels withdraws its wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import TYPE_CHECKING, TypedDict, Unpack

from perdure.core.changes import (
    AppendCheckpoint,
    Change,
    CloseWait,
    CommitOutcome,
    NewInterrupt,
    OpenWait,
    ParkRun,
)
from perdure.core.endings import Held
from perdure.core.records import Blob, HeldReason, Wait, WaitKind
from perdure.errors import Unwind
from perdure.runtime.group import Batch
from perdure.runtime.known import Durable, at_places

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep


class What(TypedDict, total=False):
    """What a wait is for, as `OpenWait` has it."""

    delay_us: int | None
    due_at: int | None
    target: int | None
    labels: tuple[str, ...]
    interrupt: NewInterrupt | None
    blobs: tuple[Blob, ...]


EARLY_S = 0.005
"""How long to wait before the next look at a time that should have come: the store's clock has not got there yet."""


class Pending:
    """A wait that is open, and who stands at it."""

    __slots__ = ("due_s", "future", "key", "on_ready", "opened")

    def __init__(self, key: str, due_s: float | None, opened: Batch[Change, CommitOutcome] | None = None) -> None:
        self.key = key
        self.opened = opened
        """What puts its row on disk; None where the claim found it there."""
        self.due_s = due_s
        """When to look at the latest, on the machine's monotonic clock."""
        self.future: Durable | None = None
        self.on_ready: Callable[[Wait], None] | None = None

    @property
    def on_disk(self) -> bool:
        """Whether there is anything to look at."""
        return self.opened is None or self.opened.done.done()


class Waiting:
    """The waits of one super-step."""

    def __init__(self, at: SuperStep, waits: tuple[Wait, ...]) -> None:
        self._at = at
        self._known = {wait.key: wait for wait in waits}
        """As the claim found them, until somebody comes to them."""
        self.pending: dict[str, Pending] = {}
        self._followers: dict[str, list[Durable]] = {}
        """Who waits for somebody else's wait to be over, by its key."""
        self.used = bool(waits)
        """Whether this super-step has rows to be deleted at its end."""
        self.came_s = float("-inf")
        """When something last came, on the machine's monotonic clock."""
        self.parking = False
        self._knows = False
        """Whether the run that is being parked knows of its cancellation."""
        self.awake = False
        """The store would not let go of the run: it is not asked again before the waker has looked."""
        self._awake_since = 0
        """The last look of the waker that had begun by then."""
        self._rows = {wait.key: self._time_s(wait.due_at) for wait in waits}
        """The waits that have a row, or are about to: their times on the machine's monotonic clock, about."""
        self._opened: Batch[Change, CommitOutcome] | None = None
        """What puts the newest of them on disk."""

    @property
    def futures(self) -> list[Durable]:
        """What tasks stand at now."""
        standing = [each.future for each in self.pending.values() if each.future is not None]
        return standing + [each for crowd in self._followers.values() for each in crowd if not each.done()]

    @property
    def timed(self) -> bool:
        """Whether one of its waits has a time."""
        return any(each.due_s is not None for each in self.pending.values())

    def knows(self, key: str) -> bool:
        """Whether the claim found a wait under this key that nobody has come to yet."""
        return key in self._known

    async def until(self, key: str, kind: WaitKind, **what: Unpack[What]) -> Wait:
        """Wait until this is ready, and return it as it is then; the caller writes the record. Again for a wait that
        was ready and, seen closer, was not: then without arguments that count."""
        at = self._at
        at.check()
        asked = self._change(key, kind, **what)
        found = self._open(asked)
        if found is not None:
            return self._same(found, asked)
        pending = self.pending[key]
        pending.future = Durable()
        at.rest.look_soon()
        try:
            return self._same(await pending.future, asked)
        except asyncio.CancelledError:
            self.withdraw(key)
            raise
        finally:
            self.pending.pop(key, None)
            pending.future = None  # it holds what it raised, and that this frame
            del pending

    @contextmanager
    def leading(self, key: str) -> Iterator[None]:
        """A block that waits under this key, also for those who `follow`: they go on when it has ended."""
        self._followers[key] = []
        try:
            yield
        finally:
            for follower in self._followers.pop(key):
                if not follower.done():
                    follower.set_result(None)

    def is_led(self, key: str) -> bool:
        """Whether there is such a block."""
        return key in self._followers

    async def follow(self, key: str) -> None:
        """Wait until that block has ended."""
        follower = Durable()
        self._followers[key].append(follower)
        self._at.rest.look_soon()
        await follower

    def _same(self, wait: Wait, asked: OpenWait) -> Wait:
        """The wait, if it is for what the code waits for now. A replay that comes to it with something else has
        diverged, as one that comes to a step with other arguments has."""
        if wait.kind is asked.kind and asked.target in (None, wait.target):
            return wait
        detail = (
            f"under {wait.key!r} the run waited for {wait.kind.name} {wait.target or ''}, and its code now waits there "
            f"for {asked.kind.name} {asked.target or ''}: it does not do the same each time it is replayed"
        )
        self._at.close(Held(HeldReason.DIVERGED, detail))
        self._at.check()
        raise AssertionError("that refuses")

    def watch(self, key: str, on_ready: Callable[[Wait], None], *, delay_us: int) -> None:
        """Have `on_ready` called when this time has come, or at once; no task stands there."""
        found = self._open(self._change(key, WaitKind.TIMER, delay_us=delay_us))
        if found is not None:
            on_ready(found)
            return
        self.pending[key].on_ready = on_ready

    def close(
        self, key: str, record: AppendCheckpoint | None = None, *, take: int | None = None, expired: bool = False
    ) -> CloseWait:
        """The change that ends a wait."""
        claimed = self._at.claimed
        self.pending.pop(key, None)
        self._known.pop(key, None)
        self._rows.pop(key, None)
        return CloseWait(claimed.run, claimed.fence, claimed.thread, self._at.number, key, record, take, expired)

    def withdraw(self, key: str) -> None:
        """The branch that waited was cancelled by its own code: nobody waits any more."""
        if self._at.ending is None and key in self._rows:
            self._at.submit(self.close(key))

    def take_opened(self) -> Batch[Change, CommitOutcome] | None:
        """What puts on disk the waits that have been opened since this was asked last."""
        opened, self._opened = self._opened, None
        return opened

    def feed(self, wait: Wait) -> None:
        """The store says that this is ready; a time that has not come is looked at again."""
        if wait.super_step != self._at.number or self.parking:
            return
        pending = self.pending.get(wait.key)
        if pending is None:
            return
        if not wait.ready:
            pending.due_s = self._not_yet(self._time_s(wait.due_at))
            return
        del self.pending[wait.key]
        self.came_s = self._at.host.clock.monotonic()
        if pending.on_ready is not None:
            pending.on_ready(wait)
        elif pending.future is not None and not pending.future.done():
            pending.future.set_result(wait)

    def stay_awake(self) -> None:
        """The store would not let go of the run: something has come, which the next look finds."""
        self.awake = True
        self._awake_since = self._at.host.waker.looks
        self._at.host.waker.look()

    def looked(self, look: int) -> None:
        """This look of the waker's has delivered what had come; perhaps before the store was asked."""
        if self.awake and look > self._awake_since:
            self.awake = False
            self._at.rest.look_soon()

    def unwind(self, error: Unwind) -> None:
        """Have every wait raise this: the run is parked, and its code is to end. So do the locks and the like at which
        other tasks stand meanwhile."""
        for future in [*self.futures, *at_places(self._at.tasks.unfinished())]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # where nobody stands at it any more

    def ask_to_park(self) -> Batch[Change, CommitOutcome]:
        """Ask the store to let go of the run. Until it has answered, nothing is delivered here, so nothing goes on."""
        at = self._at
        claimed = at.claimed
        for key in tuple(self._known):  # where no code comes to any more: they would keep it awake
            at.submit(self.close(key))
        self.parking = True
        self._knows = at.knows_of_cancellation
        return at.submit(ParkRun(claimed.run, claimed.fence, claimed.thread, self._knows))

    async def parked(self, asked: Batch[Change, CommitOutcome]) -> bool:
        """Whether the store has let go of it; False where something has come."""
        try:
            outcome = await asyncio.shield(asked.done)
            run = self._at.claimed.run
            if run in outcome.awake:
                return False
            return self._knows or run not in outcome.cancelled or not await self.is_here()
        finally:
            self.parking = False

    async def is_here(self) -> bool:
        """Whether the run is still in this worker's hands. A parking that had been written, and was sent again since
        its answer was lost, is answered as one that was not where the run's cancellation was requested meanwhile."""
        claimed, host = self._at.claimed, self._at.host
        row = await host.reads.runs.one(claimed.run)
        return row is not None and (row.worker, row.fence) == (host.worker, claimed.fence)

    def _change(self, key: str, kind: WaitKind, **what: Unpack[What]) -> OpenWait:
        claimed = self._at.claimed
        return OpenWait(claimed.run, claimed.fence, claimed.thread, self._at.number, key, kind, **what)

    def _open(self, asked: OpenWait) -> Wait | None:
        """Make it pending, with a row in the store; or return it, where the claim found it ready."""
        at, key = self._at, asked.key
        known = self._known.pop(key, None)
        if known is not None:
            if known.ready:
                self.came_s = at.host.clock.monotonic()
                return known
            self.pending[key] = Pending(key, self._not_yet(self._rows[key]))
            at.host.waker.look_at(self.pending[key].due_s)
            return None
        self.used = True
        if key not in self._rows:  # else it has a row, and the time that this says
            delayed_s = None if asked.delay_us is None else at.host.clock.monotonic() + asked.delay_us / 1e6
            self._rows[key] = _first(self._time_s(asked.due_at), delayed_s)
        self._opened = opened = at.submit(asked)
        self.pending[key] = pending = Pending(key, self._not_yet(self._rows[key]), opened)
        if pending.due_s is not None:  # before its row is on disk there is nothing to look at
            opened.done.add_done_callback(lambda _: at.host.waker.look_at(pending.due_s), context=Context())
        return None

    def _time_s(self, due_at: int | None) -> float | None:
        """When a time on the store's clock comes on the machine's, about."""
        return None if due_at is None else self._at.claimed_s + (due_at - self._at.claimed.now) / 1e6

    def _not_yet(self, at_s: float | None) -> float | None:
        """When to look at a time that has not come by the store's clock; not at once."""
        return None if at_s is None else max(at_s, self._at.host.clock.monotonic() + EARLY_S)


def _first(*times_s: float | None) -> float | None:
    return min((time_s for time_s in times_s if time_s is not None), default=None)
