"""The recipients of a simulated world: who gets what runs hand over, at the other end of every worker's sinks.

A recipient sees a delivery or does not; whoever hands it over may be told otherwise, or nothing, or die of it. It may
be away for longer than anybody tries, refuse for good, and take what its relay has given up long ago. It stays as it is
when the storm is over, until all runs have ended: no run waits for it. From then on it takes all.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from dataclasses import dataclass, fields
from typing import Any, Final

import perdure
from perdure.core.limits import LANE_MAX
from perdure.core.retry import Retry
from perdure.runtime.sinks import Outgoing, Sink
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.provider import Refusal, die, owner_here
from perdure.testing.simulation.world import Process, World

BILLS: Final = "bills"
SINKS: Final = ("orders", "mails", BILLS)
TIMEOUT_S: Final = 2.0
RETRIES: Final = (
    Retry(attempts=3, delay_s=0.1, max_delay_s=1.0),
    Retry(attempts=8, delay_s=0.2, max_delay_s=3.0),
    Retry(attempts=40, delay_s=0.2, max_delay_s=3.0),
)
"""How often a sink's relay tries, in three kinds of world."""
AT_ONCE: Final = (1, 2, 8)
AWAY_S: Final = (3.0, 60.0)
LANES: Final = (2, 4, LANE_MAX, LANE_MAX)
"""How many deliveries wait in a lane of the outbox."""
FOR_EVER_S: Final = 1e9
LATE_S: Final = (2.5, 9.0)


@dataclass(frozen=True, slots=True)
class Manners:
    """Chances of what becomes of a try."""

    fails: float = 0.0
    """It raises, and the recipient has seen nothing."""
    fails_after: float = 0.0
    """The recipient has it, and whoever hands it over hears of an error."""
    hangs: float = 0.0
    late: float = 0.0
    """The recipient gets it when the relay has given the try up."""
    slow: float = 0.0
    refuses: float = 0.0
    """For good."""
    breaks_off: float = 0.0
    """What it raises is no ordinary error."""
    kills_before: float = 0.0
    kills_after: float = 0.0
    goes_away: float = 0.0
    """From now on nobody is there, for a while."""


STRANGE: Final = Manners(
    fails=0.15, fails_after=0.1, hangs=0.05, late=0.08, slow=0.1, refuses=0.05, breaks_off=0.03, kills_before=0.03,
    kills_after=0.05, goes_away=0.04,
)  # fmt: skip
WELL: Final = Manners()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A recipient has got this."""

    at_s: float
    item: Outgoing


class Recipients:
    """All of them. Their chances are their own: they disturb nobody else's."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.chance = random.Random(f"recipients {seed}")
        self.manners = _drawn(self.chance)
        self.retry = self.chance.choice(RETRIES)
        self.at_once = self.chance.choice(AT_ONCE)
        self.lane_max = self.chance.choice(LANES)
        if self.lane_max < LANE_MAX:  # runs fail where a lane is full: it is not to be so for ever
            self.retry = RETRIES[0]
        self.comes_back = self.chance.random() < 0.6 or self.lane_max < LANE_MAX
        """Whether who has gone away comes back before all runs have ended; who finds a lane full waits for that."""
        self.sightings: dict[tuple[str, str], list[Sighting]] = {}
        """By sink and key."""
        self.events: Counter[str] = Counter()
        self.calm_since: float | None = None
        self._away_until: dict[str, float] = {}
        self._loop: VirtualLoop | None = None

    def settle(self) -> None:
        """Begin."""
        self._loop = self.world.loop("recipients")

    def sinks(self, witness: Any) -> dict[str, Sink]:
        """What a worker hands its deliveries to."""
        return {name: Door(self, witness) for name in SINKS}

    def spare_lives(self) -> None:
        """From here on nobody dies of them."""
        kinds = {each.name: getattr(self.manners, each.name) for each in fields(Manners)}
        self.manners = Manners(**kinds | {"kills_before": 0.0, "kills_after": 0.0})

    def calm_down(self) -> None:
        """From here on they take what they are given, at once."""
        self.manners = WELL
        self._away_until.clear()
        self.calm_since = self.world.now

    async def take(self, item: Outgoing, witness: Any) -> None:
        """Somebody hands this over."""
        fate = self._fate()
        if self._away_until.get(item.sink, 0.0) > self.world.now:
            fate = "away"
        self.events[f"delivery: {fate}"] += 1
        match fate:
            case "kills_before":
                await die()
            case "goes_away" | "away":
                if fate == "goes_away":
                    away_s = self.chance.uniform(*AWAY_S) if self.comes_back else FOR_EVER_S
                    self._away_until[item.sink] = self.world.now + away_s
                raise ConnectionRefusedError("nobody there")
            case "fails":
                raise self.chance.choice((Refusal(503), Refusal(400), ConnectionResetError("gone"), ValueError("no")))
            case "refuses":
                raise perdure.Undeliverable("not for us")
            case "breaks_off":
                raise self.chance.choice((SystemExit(1), asyncio.CancelledError()))
            case "hangs":
                await asyncio.sleep(3600)
            case "late":
                await self._take_late(item, witness)
            case _:
                await self._take(item, witness, fate)

    async def _take(self, item: Outgoing, witness: Any, fate: str) -> None:
        await asyncio.sleep(self.chance.uniform(0.3, 1.8) if fate == "slow" else self.chance.expovariate(100))
        self._see(item, witness)
        if fate == "kills_after":
            owner_here().kill()
            await asyncio.sleep(0)
        if fate == "fails_after":
            raise self.chance.choice((Refusal(504), ConnectionResetError("the answer was lost")))

    async def _take_late(self, item: Outgoing, witness: Any) -> None:
        assert self._loop is not None
        late_s = self.chance.uniform(*LATE_S)
        self._loop.call_later(late_s, self._see, item, witness, context=contextvars.Context())
        await asyncio.sleep(3600)

    def _see(self, item: Outgoing, witness: Any) -> None:
        seen = self.sightings.setdefault((item.sink, item.key), [])
        witness.sighted(item, first=not seen)
        seen.append(Sighting(self.world.now, item))

    def _fate(self) -> str:
        draw = self.chance.random()
        for each in fields(Manners):
            draw -= getattr(self.manners, each.name)
            if draw < 0:
                return each.name
        return "well"


class Door(Sink):
    """A worker's sink."""

    def __init__(self, recipients: Recipients, witness: Any) -> None:
        self._recipients = recipients
        self._witness = witness
        self.retry, self.timeout_s, self.concurrency = recipients.retry, TIMEOUT_S, recipients.at_once

    async def deliver(self, item: Outgoing) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop) and isinstance(loop.owner, Process)
        this = self._witness.handed_over(loop.owner, item)
        try:
            await self._recipients.take(item, self._witness)
        finally:
            self._witness.handing.discard(this)


def _drawn(chance: random.Random) -> Manners:
    """The manners of a world: mostly a few kinds, some of them a lot."""
    strength = chance.choice((0.0, 0.5, 1.0, 1.0, 2.0))
    share = chance.choice((0.3, 0.7, 1.0))
    return Manners(
        **{each.name: strength * getattr(STRANGE, each.name) for each in fields(Manners) if chance.random() < share}
    )
