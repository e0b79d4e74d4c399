"""A simulation: a seeded world with workers, clients and an operator, bad weather for a while, and then calm.

While the weather lasts, nature kills, stops, blocks and drains processes, moves clocks and takes the store away. Then
it calms down, and within a bounded time every run that was ever started must have ended, with a result that its log
explains.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from perdure.core import limits
from perdure.core.records import run_id
from perdure.errors import StoreUnavailable
from perdure.runtime.effect import KNOWN
from perdure.runtime.service import Backoff
from perdure.runtime.step import Step
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.store.sqlite import SQLiteStore
from perdure.store.sqlite.line import InlineLine
from perdure.testing.simulation import buyers, playbook, spenders
from perdure.testing.simulation.account import settle_accounts
from perdure.testing.simulation.auditor import Auditor
from perdure.testing.simulation.events import total
from perdure.testing.simulation.eyes import Eyes
from perdure.testing.simulation.ledger import left_over, settle_ledger
from perdure.testing.simulation.nature import Nature
from perdure.testing.simulation.orders import Theme, draw_orders, draw_theme
from perdure.testing.simulation.outgoings import settle_outgoings, still_open
from perdure.testing.simulation.people import LEASE_S, People
from perdure.testing.simulation.played import PlayedWorld
from perdure.testing.simulation.report import Report, StoreKind
from perdure.testing.simulation.rules.operators import is_over
from perdure.testing.simulation.steps import STEPS
from perdure.testing.simulation.weather import Weather, draw
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.witness import Witness
from perdure.testing.simulation.world import Stuck

STORM_S: Final = (4.0, 14.0)
"""How long the weather lasts."""
CALM_S: Final = 180.0
"""Within so much time after it, everything must have ended. Backoffs and suspects, one at a time, take a while."""
MAILBOXES: Final = (2, 4, limits.MAILBOX_MAX)
"""How many messages a mailbox holds."""
_EXECUTED: Final[tuple[Step[..., Any], ...]] = (*STEPS, *buyers.EFFECTS, *spenders.SPENDING, *spenders.BUYING)
_TRIES: Final = {step.settings.name: step.settings.retry.attempts for step in _EXECUTED} | {
    effect.settings.name: buyers.PEOPLE_SAY for effect in buyers.EFFECTS if effect.plan.policy == "ask"
}
"""How often each step, and each effect, may be tried."""
HANDED_OVER_S: Final = 60.0
"""Within so much time after the recipients have come to themselves, nothing waits for them."""
FOLLOWS_S: Final = 2.0
"""How long a world in which a rule was broken goes on, for what follows."""


def simulate(
    seed: int, *, store: StoreKind = "memory", weather: Weather | None = None, theme: Theme | None = None
) -> Report:
    """Live through one seed. Meanwhile the module `random` is seeded, and nothing is collected: what a collector ends,
    it ends at moments of its own."""
    state, collects = random.getstate(), gc.isenabled()
    random.seed(seed)
    gc.disable()
    world = PlayedWorld(seed)
    bounds = patch.multiple(limits, MAILBOX_MAX=world.random.choice(MAILBOXES), LANE_MAX=world.recipients.lane_max)
    try:
        with _root(store, world) as root, bounds:
            return Simulation(world, seed, store, root, weather or draw(world.random), theme).live()
    finally:
        world.close()
        random.setstate(state)
        if collects:
            gc.enable()


@contextmanager
def _root(kind: StoreKind, world: PlayedWorld) -> Iterator[Callable[[Callable[[], int]], Store]]:
    """Makes the store that everybody shares, given its clock."""
    if kind == "memory":
        yield lambda now_us: MemoryStore(now_us=now_us)
        return
    with tempfile.TemporaryDirectory(prefix="perdure-simulation-") as folder:
        path = Path(folder) / "world.db"
        yield lambda now_us: SQLiteStore(path, synchronous="off", now_us=now_us, line=InlineLine)


@contextmanager
def _overheard(bugs: list[str]) -> Iterator[None]:
    """Meanwhile, what a service logs as a bug and tries again is noted here."""
    original = Backoff.failed

    def failed(backoff: Backoff, error: Exception) -> float:
        if not isinstance(error, StoreUnavailable):
            bugs.append(f"{backoff._service} failed and went on: {error!r}")
        return original(backoff, error)

    with patch.object(Backoff, "failed", failed):
        yield


@contextmanager
def _code_about(theme: Theme) -> Iterator[None]:
    """Meanwhile, the code of a world that is not about effects has none: its runs end without a look at them."""
    with patch.dict(KNOWN, {}, clear=theme is not Theme.EFFECTS):
        yield


class Simulation:
    """One life of a world."""

    def __init__(
        self, world: PlayedWorld, seed: int, kind: StoreKind, make_root: Callable[[Callable[[], int]], Store],
        weather: Weather, theme: Theme | None,
    ) -> None:  # fmt: skip
        self.world = world
        self.seed = seed
        self.kind = kind
        self.weather = weather
        self.theme = theme
        self.database = Database(world, make_root(lambda: self.database.now_us()), weather=weather)
        self.witness = world.witness = self.database.witness = Witness(
            world, Eyes(self.database.root), LEASE_S, self.database.now_us,
            steps=_TRIES, roles=playbook.ROLES,
        )  # fmt: skip

        self.witness.readiness.raw = frozenset(name for name, role in playbook.ROLES.items() if role.raw)

    def live(self) -> Report:
        """A whole life."""
        world, chance = self.world, self.world.random
        self._in_database(self.database.root.open())
        drawn = draw_theme(chance, self.seed)
        theme = self.theme = self.theme or drawn
        self.orders = draw_orders(chance, self.weather.poison, theme)
        self.names = len({order.name for order in self.orders})
        world.hands_over = theme in (Theme.OUTBOX, Theme.BUDGETS)
        self.people = People(
            world, self.database, self.witness, self.orders, theme, auditor=Auditor(world, self.witness)
        )
        world.provider.settle()
        if world.hands_over:
            world.recipients.settle()
        self.people.settle()
        nature = Nature(
            world, self.database, self.people.workers, self.witness.note, lease_s=LEASE_S, next_due_us=self._next_due_us
        )
        bugs: list[str] = []
        try:
            with _overheard(bugs), _code_about(theme):
                self._weather(nature, chance.uniform(*STORM_S))
        except Stuck as stuck:
            self.witness.blame(f"stuck: {stuck}")
        left = world.close()
        self.witness.violations += [f"a loop of {name} did not end" for name in left]
        self.witness.violations += dict.fromkeys(bugs)
        self._blame_uncaught()
        return self._report()

    def _weather(self, nature: Nature, storm_s: float) -> None:
        """Storm, calm, and the account, if it comes to that."""
        world = self.world
        world.run(self._is_lost, deadline_s=storm_s)
        nature.calm_down()
        world.provider.calm_down()
        world.recipients.spare_lives()
        self.witness.readiness.calm_since = world.now
        ended = world.run(lambda: self._is_lost() or self._all_is_done(), deadline_s=CALM_S)
        world.recipients.calm_down()
        if not ended:
            self._blame_unfinished()
        elif not world.run(lambda: self._is_lost() or not still_open(self.witness.look), deadline_s=HANDED_OVER_S):
            self._blame_open()
        elif not self.witness.violations:
            settle_accounts(self.witness, self.orders, self.weather)
            settle_ledger(self.witness, world.provider)
            settle_outgoings(self.witness, world.recipients)

    def _in_database(self, act: Any) -> None:
        task = self.database.loop.create_task(act)
        self.world.run(task.done, deadline_s=1.0)
        task.result()

    def _next_due_us(self) -> int | None:
        """The next time that a run waits for."""
        now_us = self.database.now_us()
        waits = (wait for some in self.witness.look.waits.values() for wait in some.values())
        times = (wait.due_at for wait in waits if wait.due_at is not None and wait.due_at > now_us)
        return min(times, default=None)

    def _is_lost(self) -> bool:
        """Whether a violation has been seen, and what followed at once: the rest would tell nothing new."""
        first = self.witness.first_at
        return first is not None and self.world.now > first + FOLLOWS_S

    def _all_is_done(self) -> bool:
        if len(self.witness.told) < self.names:
            return False
        look = self.witness.look
        if not all(is_over(look, run) for run in look.runs.values()):
            return False
        if left_over(look):
            return False
        return self.people.all_served() and not self.people.out_of_service()

    def _blame_unfinished(self) -> None:
        for run in self.witness.look.runs.values():
            if not is_over(self.witness.look, run):
                self.witness.blame(
                    f"run {run_id(run.id)} of {run.agent} is {run.state} {CALM_S:g} s after the storm: worker "
                    f"{run.worker}, ready {run.ready}, fence {run.fence}, pinned to {run.deployment}, {run.reason}"
                )
        for order in self.orders:
            if order.name not in self.witness.told:
                self.witness.blame(f"no client was told of a run for {order.name}")
        for row in left_over(self.witness.look):
            self.witness.blame(f"effect e{row.id} of run r{row.run} is {row.state}, and nobody undoes it")
        for name in self.people.out_of_service():
            self.witness.blame(f"{name} lives and does not serve {CALM_S:g} s after the storm")
        if not self.witness.violations:
            self.witness.blame("all runs have completed, and a client still waits")

    def _blame_open(self) -> None:
        for row in still_open(self.witness.look):
            self.witness.blame(
                f"delivery d{row.id} ({row.key!r} to {row.sink}) is {row.state} {HANDED_OVER_S:g} s after all take it: "
                f"w{row.worker}, {'' if row.ready else 'not '}ready, tried {row.attempts} times, {row.error}"
            )

    def _blame_uncaught(self) -> None:
        """What nobody caught in the loops."""
        loops = [self.database.loop, *(loop for process in self.world.processes for loop in process.loops)]
        for loop in loops:
            for context in loop.failures:
                error = context.get("exception")
                if error is not None and not isinstance(error, StoreUnavailable | asyncio.CancelledError):
                    self.witness.blame(f"nobody caught {error!r} in {loop.name}: {context.get('message')}")

    def _report(self) -> Report:
        witness, database = self.witness, self.database
        return Report(
            seed=self.seed, store=self.kind, weather=self.weather, theme=str(self.theme),
            violations=tuple(witness.violations),
            faults=database.faults,
            events=total(
                witness.events + self.world.provider.events + self.world.recipients.events, witness.annals, witness.look
            ),
            runs=len(witness.look.runs), bodies=witness.bodies_all, repeated=witness.repeated,
            requests=database.requests, turns=self.world.turns, seconds=self.world.now, story=tuple(witness.history),
            digest=zlib.crc32("\n".join(witness.history).encode()),
        )  # fmt: skip
