"""A super-step: one call of the agent function, and what its code may do meanwhile.

The agent runs in a task of its own. Whatever it calls comes here: a step whose key the journal knows returns its
record; any other is executed (`stepping.py`) and recorded. A super-step has one ending. It is closed by whichever
comes first: the agent's return or exception, a lost lease, a drain, a divergence. From then on its verbs raise
`Unwind`, its tasks are cancelled, and nothing it does is recorded.

Where all its tasks wait for something durable it is parked (`waiting.py`), and where its cancellation was requested it
is interrupted (`interruption.py`).

Draining hands a run back at the next checkpoint: bodies in flight finish and are recorded, no new one begins. An
agent that can end without another body ends; one that asks for another is closed once none is in flight.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome
from perdure.core.digests import digest64
from perdure.core.display import divergence
from perdure.core.endings import Ending, HandedBack, Held, Lost, Parked, Raised, Returned, why_over
from perdure.core.failures import failure
from perdure.core.journal import Journal, matches
from perdure.core.keys import Scope, given
from perdure.core.records import Checkpoint, Claimed, HeldReason, run_id
from perdure.core.snapshot import spill, spilled
from perdure.errors import LeaseLost, NotInRun, NotSerializable, StoreError, StoreUnavailable, Unwind, UsageError
from perdure.runtime.frames import AgentFrame, frame, install_task_factory, outside
from perdure.runtime.group import Batch
from perdure.runtime.host import Host
from perdure.runtime.interruption import Cancelled, Gate, Interruption
from perdure.runtime.known import Durable
from perdure.runtime.mailbox import Mailbox
from perdure.runtime.payloads import load_payload
from perdure.runtime.rest import Rest
from perdure.runtime.strays import disown, see, see_all
from perdure.runtime.waiting import Waiting
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.step import Durability, Step

UNWIND_S = 10.0
"""How long cancelled tasks may take to end before the log names them and they are left to themselves."""

REFUSALS_MAX = 1000
"""How often a super-step that has ended raises `Unwind` into code that goes on all the same."""


class SuperStep:
    """One call of the agent function of a claimed run."""

    def __init__(
        self, host: Host, claimed: Claimed, *, number: int, durability: Durability | None, claimed_s: float,
        after: Batch[Change, CommitOutcome] | None = None,
    ) -> None:  # fmt: skip
        resumed = number == claimed.super_step
        self.claimed_s = claimed_s
        """When it was claimed, on the machine's monotonic clock."""
        self._interrupted = False
        self.interruption: Interruption | None = None
        """What ends its code from outside, delivered or about to be."""
        self._waits = claimed.waits if resumed else ()
        self.effects = {effect.key: effect for effect in claimed.effects} if resumed else {}
        """What the ledger says of this super-step, as the claim found it."""
        self._last = after
        """The last that this run has written, at first the boundary before."""
        self.host = host
        self.claimed = claimed
        self.number = number
        self.pools = host.pools
        self.durability = durability or host.durability
        self.journal = Journal(claimed.records, claimed.attempts) if resumed else Journal((), ())
        self.recovered = claimed.recoveries > 0 and number <= claimed.super_step + host.ahead_max
        """Whether a body may have begun here under a claim whose worker died: it was at most so far ahead of the
        disk."""
        self.in_flight = 0
        self._thread = threading.get_ident()
        self._refusals = 0
        self.ending: Ending | None = None
        self._seq = max((record.seq for record in claimed.records), default=0) if resumed else 0
        self._held_up = False
        self._given: set[str] = set()
        self._root: asyncio.Task[Any] | None = None
        self._over: asyncio.Future[None] | None = None
        self._told = False
        self._tasks: dict[asyncio.Future[Any], None] = {}  # in the order of their making, not of their addresses
        self._parking: asyncio.Task[None] | None = None

    # -- the call of the agent -------------------------------------------------------------------------------

    async def run(self, agent: Callable[[], Coroutine[Any, Any, Any]]) -> Ending:
        """Call the agent and see it to its end; returns how it ended."""
        coro = agent()
        root = AgentFrame(self, Scope.root(), coro)
        context = contextvars.copy_context()
        context.run(frame.set, root)
        loop = asyncio.get_running_loop()
        install_task_factory(loop)  # a library may have put its own on the loop, and scopes must not depend on that
        self._over = loop.create_future()
        self._root = loop.create_task(coro, context=context)
        root.coming = None
        self._root.add_done_callback(self._root_ended)
        if self.ending is not None or (self.host.draining and not self.in_flight):
            self.close(self.ending or HandedBack())
        elif self.interruption is not None:
            self.gate.deliver_at_rest(self._deliver)
        try:
            await self._over
        except asyncio.CancelledError:  # the process is going down
            self.close(Lost("the worker was closed"))
            raise
        if self.ending is None:
            self._end(_ending_of(self._root))
        await self._reap()
        if "rest" in self.__dict__:
            self.rest.end()
        assert self.ending is not None
        return self.ending

    def let_go(self) -> None:
        """Part from its tasks and from what watched over them, once it has ended: each holds it in turn, and would stay
        in memory with it until the collector of cycles looks."""
        self._root = self._over = None
        for part in ("rest", "gate", "waiting", "mail"):
            self.__dict__.pop(part, None)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Own a task that agent code started: hold it, and end it with the super-step."""
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        if self.ending is not None:
            task.cancel()

    def close(self, ending: Ending) -> None:
        """End from outside: the first ending stands, and every task is told."""
        self._end(ending)
        if isinstance(self.ending, Parked):
            see_all(self.unfinished())
            self.waiting.unwind(self._unwind())
        else:
            self._tell(self.unfinished())
        self._wake()

    def interrupt(self, why: Interruption) -> None:
        """Cancel the agent's code, which may clean up. A cancellation goes before a deadline; neither comes twice."""
        if self.interruption is None:
            self.interruption = why
            self.gate.deliver_at_rest(self._deliver)
        elif isinstance(why, Cancelled):
            self.interruption = why
            self.rest.look_soon()  # what could not be parked without knowing of it can be now

    @functools.cached_property
    def rest(self) -> Rest:
        """Sees when all its tasks wait."""
        rest = Rest(self.unfinished, self._durables)
        rest.on_rest = self._at_rest
        rest.on_raw = self._at_work
        return rest

    @property
    def knows_of_cancellation(self) -> bool:
        """Whether its code has been told that it is cancelled, and does what it does all the same."""
        return self._interrupted and isinstance(self.interruption, Cancelled)

    @functools.cached_property
    def gate(self) -> Gate:
        """Where what has no record waits for an interruption."""
        return Gate(self.rest)

    @functools.cached_property
    def waiting(self) -> Waiting:
        """What it waits for."""
        return Waiting(self, self._waits)

    @functools.cached_property
    def mail(self) -> Mailbox:
        """Its thread's mailbox."""
        return Mailbox(self)

    def waiting_for(self, key: str) -> bool:
        """Whether there is a wait under this key from an earlier claim."""
        return bool(self._waits) and self.waiting.knows(key)

    @property
    def has_waits(self) -> bool:
        """Whether something was waited for here at all."""
        return "waiting" in self.__dict__

    @property
    def waited(self) -> bool:
        """Whether its end has waits to close."""
        return self.waiting.used if self.has_waits else bool(self._waits)

    def drain(self) -> None:
        """Hand back at the next checkpoint: now, if no body is in flight."""
        if self.in_flight == 0 and self._root is not None:
            self.close(HandedBack())

    # -- verbs -----------------------------------------------------------------------------------------------

    async def call(self, step: Step[..., Any], scope: Scope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A step, called in agent code: its record, or its execution."""
        self._enter()
        if self.ending is not None:
            await self._refuse()
        settings = step.settings
        key = scope.key(settings.name) if settings.key is None else self._given_key(settings.key)
        digest = 0 if settings.ignore_args else digest64((args, kwargs))
        record = self.recorded(key, digest, args, kwargs)
        if record is None:
            await self.fresh()
            return await step.perform(self, key, digest, args, kwargs)
        return await self.replay(record, step.codec.decode)

    def recorded(self, key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Checkpoint | None:
        """The record under this key, of a call with these arguments; None where there is none."""
        record = self.journal.find(key)
        if record is not None and not matches(record, digest):
            self.close(Held(HeldReason.DIVERGED, divergence(record, args, kwargs)))
            raise self._unwind()
        return record

    async def enter(self) -> None:
        """What every verb that may wait does first: refuse the wrong thread, and code that has ended."""
        self._enter()
        if self.ending is not None:
            await self._refuse()

    async def fresh(self) -> None:
        """What comes before anything that has no record: an interruption, if one is to be delivered here."""
        if "gate" in self.__dict__ and self.gate.shut:
            await self.gate.passed()
            self.check()

    @property
    def last(self) -> Batch[Change, CommitOutcome] | None:
        """The last that it has written."""
        return self._last

    async def flushed(self) -> None:
        """Wait until all that this run has written so far is on disk: before anything leaves the process."""
        if self._last is not None:
            await self.durable(self._last)

    def record_value(
        self,
        name: str,
        scope: Scope,
        make: Callable[[], Any],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> Any:
        """A value made here and now, once: the recorded one on replay. For what needs no wait (`now`, `random`)."""
        self._enter()
        self.check()
        key = scope.key(name)
        record = self.journal.find(key)
        if record is not None:
            return decode(record.payload)
        at = self.host.clock.wall_us()
        payload = encode(make())
        self.append(key, 0, 1, payload, failed=False, started_at=at)
        return decode(payload)

    def check(self) -> None:
        """Refuse to act once the super-step has ended."""
        if self.ending is not None:
            raise self._unwind()

    async def admit(self) -> None:
        """Wait until a body may be dispatched: not while the lease is in doubt, the queue of commits is full, or the
        worker drains."""
        host = self.host
        self.check()
        while not host.trust.holds or host.committer.is_full or host.draining:
            if host.draining:
                self._held_up = True
                self.drain()
                await asyncio.get_running_loop().create_future()  # until the bodies in flight are done: then cancelled
            await host.trust.regained()
            await host.committer.room()
            self.check()

    async def trusted(self) -> None:
        """Wait until the lease is believed, for a body that was admitted and had to wait since."""
        while not self.host.trust.holds:
            await self.host.trust.regained()
            self.check()

    def append(
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int
    ) -> Batch[Change, CommitOutcome]:
        """Queue a step's record for the next commit."""
        self.check()
        return self.submit(self.record(key, digest, attempt, payload, failed=failed, started_at=started_at))

    def record(
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int
    ) -> AppendCheckpoint:
        """A step's record, to be filed by whoever asks for it."""
        self._seq += 1
        payload, blobs = spill(payload)
        claimed = self.claimed
        return AppendCheckpoint(
            claimed.run, claimed.fence, claimed.thread, self.number, key, self._seq, attempt, digest, failed,
            payload, started_at, self.host.clock.wall_us(), blobs,
        )  # fmt: skip

    def submit(self, change: Change) -> Batch[Change, CommitOutcome]:
        """Queue a change for the next commit."""
        self.check()
        self._last = self.host.committer.submit(change)
        return self._last

    async def durable(self, batch: Batch[Change, CommitOutcome]) -> None:
        """Wait until a batch is on disk; `Unwind` if this run's part of it was not written."""
        await asyncio.shield(batch.done)
        self.check()

    def hold_unreadable(self, key: str, error: Exception) -> NoReturn:
        """Hold the run: what is on record does not load as what the code declares."""
        self.close(Held(HeldReason.SCHEMA, f"the record of step {key!r} does not load: {error}"))
        raise self._unwind() from error

    async def load(self, payload: bytes) -> bytes:
        """What a record of this run says, also where it lies in a blob."""
        with self.rest.nobody_looking():
            return await load_payload(self.host.store, self.claimed.thread, payload)

    async def kept(self, batch: Batch[Change, CommitOutcome]) -> None:
        """The same for a call's own record. Whoever interrupts the code meanwhile does so after it, where a replay,
        which finds the record, is interrupted as well."""
        with self.rest.nobody_looking():
            await self.durable(batch)

    def body_ended(self) -> None:
        """A body in flight is done and its record queued; a draining super-step closes if another was asked for."""
        self.in_flight -= 1
        if self._held_up:
            self.drain()
        if "rest" in self.__dict__:
            self.rest.look_soon()

    # -- inside ----------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Refuse code that the agent has sent to another thread: nothing here may be touched from there."""
        if threading.get_ident() != self._thread:
            raise NotInRun(
                f"run r{self.claimed.run}: a step or another verb was called on another thread than the agent's; call "
                "it in the agent's own code, or make what needs the thread a step of its own"
            )

    async def _refuse(self) -> None:
        """Refuse to act, as `check` does. Code that catches even that and tries again at once would keep the event loop
        from everybody else; after so many times it waits."""
        self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            await asyncio.get_running_loop().create_future()
        raise self._unwind()

    async def replay(self, record: Checkpoint, decode: Callable[[bytes], Any]) -> Any:
        """What a record says: the value, or the failure, raised."""
        try:
            payload = record.payload
            if spilled(payload) is not None:
                payload = await self.load(payload)
            if not record.failed:
                return decode(payload)
        except (NotSerializable, StoreError) as error:
            self.hold_unreadable(record.key, error)
        raise failure(payload, run=self.claimed.run, key=record.key, attempts=record.attempt)

    def _durables(self) -> list[Durable]:
        held_back = self.gate.waiting if "gate" in self.__dict__ else []
        return [*self.waiting.futures, *held_back]

    def _deliver(self) -> None:
        if self._root is not None and self.ending is None:
            self._interrupted = True
            self._root.cancel(str(self.interruption))

    def _at_rest(self) -> None:
        """All tasks wait: park, if one of them waits for something durable, and nothing else is going on."""
        if self.ending is not None or self._parking is not None or self._root is None or self._root.done():
            return
        if self.in_flight == 0 and self.waiting.futures and not self.waiting.awake and not self.is_overdue():
            self._begin_to_park()

    def _begin_to_park(self) -> None:
        """Ask the store in this very moment: what came in between would be written behind the parking."""
        self.rest.paused += 1
        asked = self.waiting.ask_to_park()
        with outside():
            self._parking = asyncio.get_running_loop().create_task(self._park(asked), name="perdure-park")

    def is_overdue(self) -> bool:
        """Whether its deadline has come: parked, it would be claimable at once, again and again."""
        claimed = self.claimed
        if claimed.deadline_at is None:
            return False
        since_us = (self.host.clock.monotonic() - self.claimed_s) * 1_000_000
        return claimed.now + since_us >= claimed.deadline_at

    def _at_work(self) -> None:
        """Something goes on beside the waits: what came before their rows were there, nobody was told."""
        if self.has_waits and (opened := self.waiting.take_opened()) is not None:
            opened.done.add_done_callback(lambda _: self.host.waker.look())

    async def _park(self, asked: Batch[Change, CommitOutcome]) -> None:
        """Have the store let go of the run. Nothing can go on here meanwhile: whatever comes is delivered after it."""
        try:
            parked = await self.waiting.parked(asked)
        except StoreUnavailable as error:  # this worker writes nothing any more
            if self.ending is None:
                self.close(Lost(str(error)))
            return
        finally:
            self._parking = None
            self.rest.paused -= 1
            self.rest.look_soon()
        if self.ending is not None:
            return
        if parked:
            self.close(Parked(self.waiting.timed or self.claimed.deadline_at is not None))
        else:
            self.waiting.awake = True
            self.host.waker.look()

    def _given_key(self, key: str) -> str:
        if key in self._given:
            raise UsageError(
                f"the step key {key!r} was already used in this super-step; a key given by hand names one call: "
                "put what differs (an index, an id) into it"
            )
        self._given.add(key)
        return given(key)

    def _unwind(self) -> Unwind:
        return LeaseLost(self._why()) if isinstance(self.ending, Lost) else Unwind(self._why())

    def _why(self) -> str:
        return f"run r{self.claimed.run}: {why_over(self.ending, self.number)}"

    def _end(self, ending: Ending) -> None:
        if self.ending is None:
            self.ending = ending

    def _root_ended(self, root: asyncio.Future[Any]) -> None:
        self._forget(root)
        self._wake()

    def _wake(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.pop(task, None)
        if self.ending is not None:
            see(task)  # the super-step has its ending; what a branch raised after it concerns nobody
        elif "rest" in self.__dict__:
            self.rest.look_soon()

    async def _reap(self) -> None:
        """End what the agent left running, so that nothing of this super-step outlives it."""
        left = self.unfinished()
        if isinstance(self.ending, Parked) and left:  # it is unwinding by itself: its waits raise
            await asyncio.wait(left, timeout=UNWIND_S)
            left = self.unfinished()
        if not left:
            return
        if not self._told:  # a second cancellation would break off the cleaning up after the first
            self._tell(left)
        _, stuck = await asyncio.wait(left, timeout=UNWIND_S)
        if stuck:
            emit("run.stuck", run=run_id(self.claimed.run), tasks=[str(task) for task in stuck])
            for task in stuck:
                disown(task)

    def unfinished(self) -> list[asyncio.Future[Any]]:
        """Its tasks that have not ended."""
        return [task for task in (self._root, *self._tasks) if task is not None and not task.done()]

    def _tell(self, tasks: list[asyncio.Future[Any]]) -> None:
        self._told = self._root is not None
        see_all(tasks)
        for task in tasks:
            task.cancel(self._why())


def _ending_of(root: asyncio.Task[Any]) -> Ending:
    """What the agent returned or raised."""
    try:
        return Returned(root.result())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Raised(error)
