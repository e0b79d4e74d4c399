"""The wire: a process's open store, and the database at its other end.

What a process holds is a `RemoteStore`. A verb becomes a request that travels for a moment, is done by the database's
own store, one request at a time, and is answered by a reply that travels back. Each message meets its fate on the way:
late, lost, or the end of its sender. A request that has left a process is done even if the process has died since, as
the one in a socket's buffer is.

The database is the real store (in memory, or SQLite on a file), opened on a loop that no fault touches; its clock is
the world's, plus jumps.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, cast

from perdure.core.changes import ParkRun
from perdure.errors import StoreUnavailable
from perdure.store.protocol import Hint, Store
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.weather import CALM, Weather
from perdure.testing.simulation.world import Process, World

WRITES: Final = frozenset(
    {"start", "claim", "commit", "register", "renew", "attend", "take_over", "retire", "give_back", "retry", "release",
     "set_idle", "cancel", "answer", "send", "revive", "fork", "resolve", "claim_deliveries", "settle_deliveries",
     "redeliver", "set_budget"}
)  # fmt: skip
"""The verbs after which rows may differ."""

WORDS: Final = frozenset({"cancel", "answer", "send", "revive", "fork", "resolve", "redeliver", "set_budget"})
"""The verbs by which people (and agents) say what a run may wait for, or has done."""

DEATHS: Final = WORDS | {
    "start", "claim", "commit", "register", "retire", "take_over", "give_back", "claim_deliveries", "settle_deliveries"
}  # fmt: skip
"""The verbs around which a process may die."""

GIVES_UP_S: Final = (0.5, 6.0)
"""After how long a caller learns that its connection is gone."""
LATE_S: Final = (0.2, 9.0)
"""By how much a late request comes after that, at most; leases are of this order."""
SLOW_S: Final = (0.5, 5.0)
BURIED_S: Final = (0.0, 4.0)
"""After how long the database notices that a client is gone."""


class Fate(Enum):
    """What becomes of a request."""

    WELL = "well"
    SLOW = "slow"
    REFUSED = "refused"
    REQUEST_LOST = "request lost"
    REPLY_LOST = "reply lost"
    REQUEST_LATE = "request late"
    DIES_BEFORE = "died before a write"
    DIES_UNDER_WAY = "died, its write on the way"
    DIES_BEFORE_REPLY = "died after a write, before the reply"
    DIES_AFTER_REPLY = "died after a reply"


_DEADLY: Final = (
    (Fate.DIES_BEFORE, "dies_before"),
    (Fate.DIES_UNDER_WAY, "dies_with_request_on_its_way"),
    (Fate.DIES_BEFORE_REPLY, "dies_before_reply"),
    (Fate.DIES_AFTER_REPLY, "dies_after_reply"),
)
_OTHERS: Final = (
    (Fate.SLOW, "slow"),
    (Fate.REFUSED, "refused"),
    (Fate.REQUEST_LOST, "request_lost"),
    (Fate.REPLY_LOST, "reply_lost"),
    (Fate.REQUEST_LATE, "request_late"),
)


@dataclass(slots=True)
class Request:
    """One call of a verb."""

    caller: RemoteStore
    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loop: VirtualLoop
    answer: asyncio.Future[Any]
    sent_at: float
    fate: Fate = Fate.WELL


class Witness(Protocol):
    """Sees every request that is done, in order, with what it gave."""

    async def saw(self, request: Request, answer: Any) -> None: ...


@dataclass(slots=True)
class Database:
    """The store that everybody shares, on its own loop."""

    world: World
    root: Store
    witness: Witness | None = None
    weather: Weather = CALM
    down: bool = False
    """An outage: whatever arrives is refused."""
    silent: bool = False
    """No hint comes through."""
    unseen: set[int] = field(default_factory=set)
    """Workers whose sign of life is gone although they live: their connections broke, and they do not know yet."""
    ahead_us: int = 0
    """By how much its clock is off."""
    faults: Counter[str] = field(default_factory=Counter)
    overheard: Callable[[Request], None] = lambda request: None
    """Called with each request when it is sent, for who wants to be there at the same time."""
    loop: VirtualLoop = field(init=False)
    turn: asyncio.Lock = field(init=False)
    requests: int = 0

    def __post_init__(self) -> None:
        self.loop = self.world.loop("database")
        self.turn = asyncio.Lock()

    def now_us(self) -> int:
        """Its clock."""
        return self.world.wall_us() + self.ahead_us

    def connect(self, process: Process) -> Store:
        """An unopened store for a process."""
        return cast(Store, RemoteStore(self, process))

    # -- messages --------------------------------------------------------------------------------------------

    def send(self, request: Request) -> None:
        """Let a request meet its fate."""
        self.overheard(request)
        fate = request.fate = self._fate(request)
        if fate is not Fate.WELL:
            self.faults[fate.value] += 1
        there_s = self._latency()
        uniform = self.world.random.uniform
        match fate:
            case Fate.DIES_BEFORE:
                request.caller.process.kill()
            case Fate.DIES_UNDER_WAY:
                self._arrive_in(there_s + self.world.random.choice((0.0, uniform(*LATE_S))), request)
                request.caller.process.kill()
            case Fate.REFUSED:
                self._reply(request, StoreUnavailable("the simulated store refuses connections"))
            case Fate.REQUEST_LOST:
                self._reply_in(uniform(*GIVES_UP_S), request, _unknown())
            case Fate.REQUEST_LATE:
                gives_up_s = uniform(*GIVES_UP_S)
                self._reply_in(gives_up_s, request, _unknown())
                self._arrive_in(gives_up_s + uniform(*LATE_S), request)
            case Fate.SLOW:
                self._arrive_in(there_s + uniform(*SLOW_S), request)
            case _:
                self._arrive_in(there_s, request)

    def _fate(self, request: Request) -> Fate:
        weather, draw = self.weather, self.world.random.random()
        if weather is CALM:
            return Fate.WELL
        if request.verb in DEATHS and request.caller.process.mortal:
            for fate, name in _DEADLY:
                draw -= getattr(weather, name) + (weather.dies_parking / len(_DEADLY) if _parks(request) else 0.0)
                if draw < 0:
                    return fate
        for fate, name in _OTHERS:
            draw -= getattr(weather, name)
            if draw < 0:
                return fate
        if request.verb in WORDS and draw < weather.word_unheard:
            return Fate.REPLY_LOST
        return Fate.REQUEST_LATE if _parks(request) and draw < weather.parking_late else Fate.WELL

    def _latency(self) -> float:
        mean = self.weather.latency_s
        return self.world.random.expovariate(1 / mean) if mean else 0.0

    def _arrive_in(self, delay_s: float, request: Request) -> None:
        context = contextvars.Context()  # the other end knows nothing of who has asked
        self.loop.call_later(delay_s, lambda: self.loop.create_task(self._serve(request)), context=context)

    async def _serve(self, request: Request) -> None:
        """Do one request; nobody else is served meanwhile, and the witness has seen it before the next."""
        async with self.turn:
            self.requests += 1
            if self.down:
                self._reply(request, StoreUnavailable("the simulated store is down"))
                return
            try:
                answer = await request.caller.do(request)
            except StoreUnavailable as error:
                self._reply(request, error)
                return
            except Exception as error:  # a refusal is an answer like any other
                answer = error
            if self.witness is not None:
                await self.witness.saw(request, answer)
        if request.fate is Fate.DIES_BEFORE_REPLY:
            request.caller.process.kill()
        elif request.fate is Fate.REPLY_LOST:
            self._reply_in(self.world.random.uniform(*GIVES_UP_S), request, _unknown())
        else:
            self._reply_in(self._latency(), request, answer)

    def _reply_in(self, delay_s: float, request: Request, answer: Any) -> None:
        self.loop.call_later(delay_s, self._reply, request, answer)

    def _reply(self, request: Request, answer: Any) -> None:
        request.loop.call_soon_threadsafe(_settle, request.answer, answer)
        if request.fate is Fate.DIES_AFTER_REPLY:
            delay_s = self.world.random.choice((0.0, 0.0001, 0.01))
            self.loop.call_later(delay_s, request.caller.process.kill)

    def hint(self, caller: RemoteStore, loop: VirtualLoop, deliver: Callable[[Hint], None], hint: Hint) -> None:
        """Send a hint on its way; it may never come."""
        chance = self.world.random
        if self.silent or chance.random() < self.weather.hint_lost:
            self.faults["hint lost"] += 1
            return
        delay_s = self._latency()
        if chance.random() < self.weather.hint_late:
            self.faults["hint late"] += 1
            delay_s += chance.uniform(*SLOW_S)
        self.loop.call_later(delay_s, lambda: loop.is_closed() or loop.call_soon_threadsafe(deliver, hint))


def _parks(request: Request) -> bool:
    return request.verb == "commit" and any(isinstance(change, ParkRun) for change in request.args[1])


def _unknown() -> StoreUnavailable:
    return StoreUnavailable("the simulated connection was lost; nobody knows what was done")


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)


class RemoteStore:
    """What a process of the world has of the store."""

    def __init__(self, database: Database, process: Process) -> None:
        self.database = database
        self.process = process
        self.attended: set[int] = set()
        self._real: Store | None = None
        self._deaf: list[Callable[[], None]] = []
        process.at_end.append(self._bury)

    def __repr__(self) -> str:
        return f"<store of {self.process.name}>"

    @property
    def url(self) -> str:
        return self.database.root.url

    def clone(self) -> RemoteStore:
        return RemoteStore(self.database, self.process)

    def abandon(self) -> None:
        self._bury()

    async def open(self) -> None:
        await self._call("open")

    async def close(self) -> None:
        self._hang_up()
        if self._real is not None:
            real, self._real = self._real, None
            self.database.loop.call_soon(real.abandon)

    def listen(self, on_hint: Callable[[Hint], None]) -> Callable[[], None]:
        loop = _here()
        if self._real is None:
            raise StoreUnavailable("the store is not open")
        deaf = self._real.listen(lambda hint: self.database.hint(self, loop, on_hint, hint))
        self._deaf.append(deaf)
        return deaf

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda *args, **kwargs: self._call(verb, *args, **kwargs)

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        if not self.process.alive:
            raise StoreUnavailable("this process is gone")
        loop = _here()
        request = Request(self, verb, args, kwargs, loop, loop.create_future(), self.process.world.now)
        self.database.send(request)
        return await request.answer

    async def do(self, request: Request) -> Any:
        """At the other end: what the verb does."""
        if request.verb == "open":
            if self._real is None:
                real = self.database.root.clone()
                await real.open()
                self._real = real
            return None
        if self._real is None:
            raise StoreUnavailable("this connection is closed")
        if request.verb == "attend" and self.process.hidden:
            return False
        answer = await getattr(self._real, request.verb)(*request.args, **request.kwargs)
        return sorted({*answer, *self.database.unseen}) if request.verb == "silent_workers" else answer

    # -- the end ---------------------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        for deaf in self._deaf:
            deaf()
        self._deaf.clear()

    def _bury(self) -> None:
        """The process is gone; the database notices after a while."""
        self._hang_up()
        delay_s = self.database.world.random.uniform(*BURIED_S)
        self.database.loop.call_later(delay_s, self._drop)

    def _drop(self) -> None:
        if self._real is not None:
            real, self._real = self._real, None
            real.abandon()


def _here() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
