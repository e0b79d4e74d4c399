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
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn

from perdure.core.changes import Change, CommitOutcome
from perdure.core.digests import digest64
from perdure.core.display import divergence
from perdure.core.endings import Ending, HandedBack, Held, Lost, Parked, Raised, Returned
from perdure.core.failures import failure
from perdure.core.journal import matches
from perdure.core.keys import Scope, given
from perdure.core.records import Checkpoint, Claimed, HeldReason
from perdure.core.snapshot import spilled
from perdure.errors import NotInRun, NotSerializable, StoreError, UsageError
from perdure.runtime.bodies import Bodies
from perdure.runtime.frames import AgentFrame, frame, install_task_factory
from perdure.runtime.group import Batch
from perdure.runtime.host import Host
from perdure.runtime.interruption import Cancelled, CleaningUp, Interruption
from perdure.runtime.known import Durable
from perdure.runtime.log import Log
from perdure.runtime.mailbox import Mailbox
from perdure.runtime.parking import Parking
from perdure.runtime.payloads import load_payload
from perdure.runtime.rest import Rest
from perdure.runtime.tasks import Tasks
from perdure.runtime.turns import Turns
from perdure.runtime.waiting import Waiting

if TYPE_CHECKING:
    from perdure.runtime.step import Durability, Step

REFUSALS_MAX = 1000
"""How often a super-step that has ended raises `Unwind` into code that goes on all the same."""


class SuperStep(Log):
    """One call of the agent function of a claimed run."""

    def __init__(
        self, host: Host, claimed: Claimed, *, number: int, durability: Durability | None, claimed_s: float,
        after: Batch[Change, CommitOutcome] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(host, claimed, number=number, after=after)
        self.claimed_s = claimed_s
        """When it was claimed, on the machine's monotonic clock."""
        self.replayed_s: float | None = None
        """When its code came to the first thing that has no record, on the same clock."""
        self.cleaning_up: CleaningUp | None = None
        """Its code has been told of an interruption, and does what it does all the same."""
        self.interruption: Interruption | None = None
        """What ends its code from outside, delivered or about to be."""
        self._waits = claimed.waits if number == claimed.super_step else ()
        self.effects = {effect.key: effect for effect in claimed.effects} if number == claimed.super_step else {}
        """What the ledger says of this super-step, as the claim found it."""
        self.used: dict[tuple[int, str], Step[..., Any]] = {}
        """The effects that the run's code has called, by super-step and key."""
        self.dispatched: set[str] = set()
        """The keys of those whose bodies have begun."""
        self.compensated = False
        """Something was undone here: what is on record does not hold any more."""
        self.budget_answers = 0
        """Questions about budgets that its steps have seen answered."""
        self.regrets = False
        """Its code has called `compensate`, and that has not come to its end: what it began is to be seen through."""
        self.bodies = Bodies()
        """What its effects do at the moment."""
        self._undoing: set[asyncio.Task[None]] = set()
        """What its code undoes at the moment."""
        self._taken = False
        """The run is given back or lost, whatever its ending is: nothing is seen to its end any more."""
        self.pools = host.pools
        self.durability = durability or host.durability
        self.recovered = claimed.recoveries > 0 and number <= claimed.super_step + host.ahead_max
        """Whether a body may have begun here under a claim whose worker died: it was at most so far ahead of the
        disk."""
        self.in_flight = 0
        self._thread = threading.get_ident()
        self._refusals = 0
        self._held_up = False
        self._given: set[str] = set()
        self._over: asyncio.Future[None] | None = None
        self.tasks = Tasks(claimed.run, self._moved)

    # -- the call of the agent -------------------------------------------------------------------------------

    async def run(self, agent: Callable[[], Coroutine[Any, Any, Any]]) -> Ending:
        """Call the agent and see it to its end; returns how it ended. Code that takes long to let go may go on for a
        while (`unwound`)."""
        coro = agent()
        root = AgentFrame(self, Scope.root(), coro)
        context = contextvars.copy_context()
        context.run(frame.set, root)
        loop = asyncio.get_running_loop()
        install_task_factory(loop)  # a library may have put its own on the loop, and scopes must not depend on that
        self._over = loop.create_future()
        task = loop.create_task(coro, context=context)
        root.coming = None
        self.tasks.begin(task)
        task.add_done_callback(self._wake)
        if self.ending is not None or (self.host.draining and not self.in_flight):
            self.close(self.ending or HandedBack())
        elif self.interruption is not None:
            self.turns.deliver(self._deliver)
        try:
            await self._over
            await self._ended_with(self._undoing)
        except asyncio.CancelledError:  # the process is going down
            self.close(Lost("the worker was closed"))
            raise
        finally:
            if self.cleaning_up is not None:
                self.cleaning_up.end()
        ending = self._end(_ending_of(task) if self.ending is None else self.ending)
        if not isinstance(ending, Parked):
            self.tasks.tell()
        with self.bodies.seen_out():
            if self._waits_for_bodies:
                await self._ended_with(self.bodies.in_flight, over=True)
        await self.tasks.pause(self.bodies.in_flight)
        self.hears_late = False
        return ending

    def sees_out(self, body: asyncio.Task[Any]) -> bool:
        """Whether this goes on, though the super-step is over: an effect in flight, whose outcome is filed before the
        end is; not where somebody else goes on with the run, or nothing of it can be filed."""
        return body in self.bodies.in_flight and self._waits_for_bodies and not self._taken

    @property
    def _waits_for_bodies(self) -> bool:
        match self.ending:
            case Held(reason):
                return reason is not HeldReason.REFUSED
            case ending:
                return isinstance(ending, Returned | Raised)

    def undoes(self, undoing: asyncio.Task[None]) -> None:
        """Its code undoes something: where that ends before this does, it is waited for."""
        self._undoing.add(undoing)
        undoing.add_done_callback(self._undoing.discard)

    def not_done(self) -> list[str]:
        """The keys of the effects that its code has called, and that were never dispatched."""
        known = self.dispatched | self.effects.keys()
        called = (key for number, key in self.used if number == self.number and key not in known)
        return [key for key in called if self.journal.find(key) is None]

    async def _ended_with(self, tasks: Collection[asyncio.Task[Any]], *, over: bool = False) -> None:
        """Wait until these have ended; not where it is closed meanwhile, or, where it is over, given away."""
        while tasks and not self._taken and (over or self.ending is None):
            self._over = asyncio.get_running_loop().create_future()
            for task in tuple(tasks):
                task.add_done_callback(self._wake)
            await self._over

    @property
    def unwinds(self) -> bool:
        """Whether it has ended, and some of its code has not."""
        return bool(self.tasks.unfinished())

    async def unwound(self) -> None:
        """See to it that nothing of it outlives it; then part from its tasks and from what watched over them: each
        holds it in turn, and would stay in memory with it until the collector of cycles looks."""
        await self.tasks.end()
        if "rest" in self.__dict__:
            self.rest.end()
            self.parking.end()
        self._over = self.cleaning_up = None
        self.tasks.let_go()
        for part in ("rest", "turns", "waiting", "mail", "parking"):
            self.__dict__.pop(part, None)

    def adopt(self, task: asyncio.Future[Any]) -> None:
        """Own a task that agent code started: hold it, and end it with the super-step."""
        self.tasks.adopt(task)

    def close(self, ending: Ending) -> None:
        """End from outside: the first ending stands, and every task is told."""
        ends_here = self.ending is None
        self._taken = self._taken or isinstance(ending, HandedBack | Lost)
        if isinstance(self._end(ending), Parked):
            if ends_here:  # else its code is cleaning up by now, and may wait in it
                self.tasks.see()
                self.waiting.unwind(self._unwind())
        else:
            self.tasks.tell()
        self._wake()

    def interrupt(self, why: Interruption) -> None:
        """Cancel the agent's code, which may clean up. A cancellation goes before a deadline; neither comes twice."""
        if self.interruption is None:
            self.interruption = why
            self.turns.deliver(self._deliver)
        elif isinstance(why, Cancelled):
            self.interruption = why
            self.rest.look_soon()  # what could not be parked without knowing of it can be now

    @functools.cached_property
    def rest(self) -> Rest:
        """Sees when all its tasks wait."""
        return Rest(self.tasks.unfinished, self._durables, on_rest=self._at_rest, on_raw=self._at_work)

    @functools.cached_property
    def parking(self) -> Parking:
        """Lets it leave the memory."""
        return Parking(self)

    @property
    def knows_of_cancellation(self) -> bool:
        """Whether its code has been told that it is cancelled, and does what it does all the same."""
        return self.cleaning_up is not None and isinstance(self.interruption, Cancelled)

    @functools.cached_property
    def undo_lock(self) -> asyncio.Lock:
        """One undoes at a time."""
        return asyncio.Lock()

    @functools.cached_property
    def turns(self) -> Turns:
        """In which order its code gets what is on record."""
        return Turns(self, self.journal.places())

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
        if self.in_flight == 0 and self.tasks.root is not None and self.ending is None:
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
        if step.plan is not None:
            self.used[self.number, key] = step
        record = self.recorded(key, digest, args, kwargs)
        if record is None:
            await self.fresh()
            return await step.perform(self, key, digest, args, kwargs)
        if not self.turns.comes(record.seq):
            await self.turns.stand(record.seq)
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

    def enter_now(self) -> None:
        """The same for a verb that does not wait."""
        self._enter()
        self.check()

    async def fresh(self) -> None:
        """What comes before anything that has no record: all that has one, and an interruption, if there is one."""
        if self.journal or "turns" in self.__dict__:
            await self.turns.begin()
        if self.replayed_s is None:
            self.replayed_s = self.host.clock.monotonic()

    def record_value(
        self,
        name: str,
        scope: Scope,
        make: Callable[[], Any],
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> Any:
        """A value made here and now, once: the recorded one on replay. For what needs no wait (`now`, `random`)."""
        self.enter_now()
        key = scope.key(name)
        record = self.journal.find(key)
        if record is not None:
            self.turns.passed(record.seq)
            return decode(record.payload)
        at = self.host.clock.wall_us()
        payload = encode(make())
        self.append(key, 0, 1, payload, failed=False, started_at=at)
        return decode(payload)

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

    async def owned(self) -> None:
        """Wait until this worker may act for the run, and see that the run is still its own: before it does something
        to another run that no fence guards. (What somebody does in the moment between this and that is not seen.)"""
        await self.admit()
        if not await self.waiting.is_here():
            self.close(Lost("another worker has claimed it"))
        await self.trusted()
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
        self._moved()

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

    def _at_rest(self) -> None:
        """All its tasks are known to wait."""
        if "turns" not in self.__dict__ or not self.turns.stuck():
            self.parking.at_rest()

    def _at_work(self) -> None:
        """Some of them do not, or nobody knows what for."""
        if "turns" in self.__dict__:
            self.turns.unknown()
        self.parking.at_work()

    def _durables(self) -> list[Durable]:
        held_back = self.turns.waiting if "turns" in self.__dict__ else []
        return [*self.waiting.futures, *held_back]

    def _deliver(self) -> None:
        if self.tasks.root is not None and self.ending is None:
            self.cleaning_up = self.cleaning_up or CleaningUp(self)
            self.tasks.root.cancel(str(self.interruption))

    def is_overdue(self) -> bool:
        """Whether its deadline has come: parked, it would be claimable at once, again and again, so it is not."""
        claimed = self.claimed
        if claimed.deadline_at is None:
            return False
        since_us = (self.host.clock.monotonic() - self.claimed_s) * 1_000_000
        return claimed.now + since_us >= claimed.deadline_at

    def _given_key(self, key: str) -> str:
        if key in self._given:
            raise UsageError(
                f"the step key {key!r} was already used in this super-step; a key given by hand names one call: "
                "put what differs (an index, an id) into it"
            )
        self._given.add(key)
        return given(key)

    def _end(self, ending: Ending) -> Ending:
        """End like this, unless it has ended; returns how it ends."""
        if self.ending is None:
            self.ending = ending
            self.tasks.over = self._why()
        return self.ending

    def _wake(self, _: object = None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _moved(self) -> None:
        if "rest" in self.__dict__:
            self.rest.look_soon()


def _ending_of(root: asyncio.Task[Any]) -> Ending:
    """What the agent returned or raised."""
    try:
        return Returned(root.result())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Raised(error)
