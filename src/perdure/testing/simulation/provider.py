"""The provider of a simulated world: what effects ask it to do, it does in its own time, whoever has died meanwhile.

It sees a request at once, or never. From then on it knows of it, and says so when it is asked. Where it honours keys,
the work of one is done once, and whoever comes with it again is told what came of it, or that it is at work; where it
does not, each request is work. It may refuse, fail before the work or after it, answer late or not at all.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

from perdure import DidNotHappen, Happened, StillUnknown
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.world import Process, World

WORK_S: Final = 0.05
LATE_S: Final = (0.5, 7.0)
GIVES_UP_S: Final = (0.2, 2.0)
HONEST: Final = 0.5
"""In how many worlds it honours keys."""


class Receipt(msgspec.Struct, frozen=True):
    """What a piece of work gives."""

    number: int
    label: str


class Refusal(Exception):
    """The provider's answer to what it has not done, or not yet, or does not know of."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status_code = status


@dataclass(frozen=True, slots=True)
class Manners:
    """Chances of what becomes of a request."""

    never_comes: float = 0.0
    """Nobody will ever have heard of it, and the connection breaks."""
    not_connected: float = 0.0
    busy: float = 0.0
    refuses: float = 0.0
    fails_before: float = 0.0
    """It says 500, and nothing was done."""
    fails_after: float = 0.0
    """It was done, and the answer is 503, or none."""
    late: float = 0.0
    """It is done when whoever asked for it has given up, or would have."""
    slow: float = 0.0
    kills_before: float = 0.0
    """Whoever asks dies before it has come."""
    kills: float = 0.0
    """Whoever asks dies of something else, the request on its way."""
    cannot_tell: float = 0.0
    sticks: float = 0.0
    """What it is to do under a key it refuses for a while, whoever asks; of undos only."""


STRANGE: Final = Manners(
    never_comes=0.06, not_connected=0.05, busy=0.08, refuses=0.04, fails_before=0.06, fails_after=0.1, late=0.1,
    slow=0.05, kills_before=0.04, kills=0.08, cannot_tell=0.2, sticks=0.15,
)  # fmt: skip
WELL: Final = Manners()
NO_FATES: Final = frozenset({"cannot_tell", "sticks"})
STUCK: Final = (1, 3, 5, 6)


@dataclass(slots=True)
class Account:
    """What was done under one key."""

    what: str
    works: list[Receipt] = field(default_factory=list)
    at_work: int = 0
    """Requests that it has, and has not done."""
    stuck: int = 0
    """So often it still fails."""
    by_hand: bool = False
    """Somebody has done it without a request."""


class Provider:
    """The outside world. Its chances are its own: they disturb nobody else's."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(f"provider {seed}")
        self.honest = self.chance.random() < HONEST
        self.manners = _drawn(self.chance)
        self.accounts: dict[str, Account] = {}
        self.events: Counter[str] = Counter()
        self._loop: VirtualLoop | None = None
        self._numbers = 0

    def calm_down(self) -> None:
        """From here on it does what it is asked to do, at once."""
        self.manners = WELL

    def settle(self) -> None:
        """Begin."""
        self._loop = self.world.loop("provider")

    # -- requests --------------------------------------------------------------------------------------------

    async def do(self, key: str, what: str) -> Receipt:
        """Have it do this, under this key."""
        if key not in self.accounts:
            sticks = key.endswith("-undo") and self.chance.random() < self.manners.sticks
            self.accounts[key] = Account(what, stuck=self.chance.choice(STUCK) if sticks else 0)
        account = self.accounts[key]
        fate = self._fate()
        self.events[f"effect: {fate}"] += 1
        if fate == "kills_before":
            await die()
        if fate in ("never_comes", "not_connected"):
            await self._pass(GIVES_UP_S if fate == "never_comes" else (0.0, 0.1))
            raise ConnectionResetError("nothing came back") if fate == "never_comes" else ConnectionRefusedError("shut")
        if fate == "kills":
            self._soon(self.chance.expovariate(1 / WORK_S), owner_here().kill)
        return await self._receive(account, fate)

    async def _receive(self, account: Account, fate: str) -> Receipt:
        """It has come."""
        if account.stuck:
            account.stuck -= 1
            raise Refusal(500)
        if self.honest and account.works:
            await self._pass((0.0, 0.1))
            return account.works[0]
        if self.honest and account.at_work:
            await self._pass((0.0, 0.1))
            raise Refusal(409)
        if fate in ("busy", "refuses", "fails_before"):
            await self._pass((0.0, 0.3))
            raise Refusal({"busy": 429, "refuses": 402, "fails_before": 500}[fate])
        return await self._have_done(account, fate)

    async def _have_done(self, account: Account, fate: str) -> Receipt:
        account.at_work += 1
        takes_s = self.chance.uniform(*LATE_S) if fate in ("late", "slow") else self.chance.expovariate(1 / WORK_S)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Receipt] = loop.create_future()
        self._soon(takes_s, lambda: loop.call_soon_threadsafe(_answer, done, self._work(account)))
        if fate == "late":
            await self._pass(GIVES_UP_S)
            raise TimeoutError("it takes too long")
        receipt = await done
        if fate == "fails_after":
            raise self.chance.choice((Refusal(503), ConnectionResetError("the answer was lost"), TimeoutError("late")))
        return receipt

    def _work(self, account: Account) -> Receipt:
        account.at_work -= 1
        self._numbers += 1
        account.works.append(Receipt(self._numbers, account.what))
        return account.works[-1]

    def _soon(self, delay_s: float, act: Any) -> None:
        assert self._loop is not None
        self._loop.call_later(delay_s, act, context=contextvars.Context())

    async def _pass(self, between: tuple[float, float]) -> None:
        await asyncio.sleep(self.chance.uniform(*between))

    def _fate(self) -> str:
        draw = self.chance.random()
        for each in fields(Manners):
            draw -= getattr(self.manners, each.name) if each.name not in NO_FATES else 0.0
            if draw < 0:
                return each.name
        return "well"

    # -- questions -------------------------------------------------------------------------------------------

    async def tell(self, key: str) -> Happened | DidNotHappen | StillUnknown:
        """What it says of a key, in its own words."""
        await self._pass((0.0, 0.2))
        if self.chance.random() < self.manners.kills:
            await die()
        if self.chance.random() < self.manners.cannot_tell:
            if self.chance.random() < 0.5:
                raise ConnectionResetError("nobody there")
            return StillUnknown("ask again")
        account = self.accounts.get(key)
        if account is not None and account.at_work:
            return StillUnknown("it is at work")
        return Happened(account.works[0]) if account is not None and account.works else DidNotHappen()

    def at_work(self, key: str) -> bool:
        """Whether it still has a request under this key."""
        return key in self.accounts and self.accounts[key].at_work > 0

    def receipt(self, key: str) -> Receipt | None:
        """What was done under this key."""
        account = self.accounts.get(key)
        return account.works[0] if account is not None and account.works else None

    def works(self, key: str) -> int:
        """How often it has done the work of this key."""
        return len(self.accounts[key].works) if key in self.accounts else 0

    def answer(self, key: str) -> dict[str, Any] | None:
        """What a person who has asked it says of a key; None while there is nothing to be said."""
        if self.at_work(key):
            return None
        if self.chance.random() < self.manners.cannot_tell / 2:
            return {"happened": None}
        receipt = self.receipt(key)
        return {"happened": False} if receipt is None else {"happened": True, "result": msgspec.to_builtins(receipt)}

    def by_hand(self, key: str) -> None:
        """Somebody sees to what no request has done."""
        self.accounts.setdefault(key, Account("by hand")).by_hand = True


def _drawn(chance: random.Random) -> Manners:
    """The manners of a world: mostly a few kinds, some of them a lot."""
    strength = chance.choice((0.0, 0.5, 1.0, 1.0, 2.0))
    share = chance.choice((0.3, 0.7, 1.0))
    return Manners(
        **{each.name: strength * getattr(STRANGE, each.name) for each in fields(Manners) if chance.random() < share}
    )


def _answer(future: asyncio.Future[Receipt], receipt: Receipt) -> None:
    if not future.done():
        future.set_result(receipt)


def owner_here() -> Process:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop) and isinstance(loop.owner, Process)
    return loop.owner


async def die() -> None:
    """The process that runs this ends."""
    owner_here().kill()
    await asyncio.sleep(0)
