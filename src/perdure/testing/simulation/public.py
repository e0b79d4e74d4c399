"""The public of a simulated world: people who answer questions, write messages, cancel runs and fork threads.

They do so with the real app, at times of their own, and through the same weather as everybody else: an answer may come
late, twice, or from two people who do not agree. Whoever dies of it comes back. When the storm is over they stop what
nobody needs, and give what runs wait for, so that everything comes to its end.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.app import App
from perdure.client.inbox import InterruptInfo
from perdure.core.changes import EndRun, ParkRun
from perdure.core.records import Wait, WaitKind, run_id
from perdure.core.states import UNFINISHED
from perdure.errors import (
    AlreadyAnswered,
    Conflict,
    InterruptClosed,
    MailboxFull,
    NotFound,
    StoreError,
    StoreUnavailable,
    ThreadBusy,
)
from perdure.testing.simulation import playbook
from perdure.testing.simulation.correspondents import THREADS, BadLetter, Letter
from perdure.testing.simulation.orders import Theme
from perdure.testing.simulation.played import PlayedWorld
from perdure.testing.simulation.recipients import BILLS
from perdure.testing.simulation.stewards import Treasurer
from perdure.testing.simulation.wire import Database, Request
from perdure.testing.simulation.witness import Witness
from perdure.testing.simulation.world import Process

SPAWN_S: Final = (0.05, 2.0)
PAUSE_S: Final = (0.1, 1.2)
FORKS_MAX: Final = 3
"""In one world: each brings another run."""
CANCELLED_MAX: Final = 6
RACES: Final = 0.1
"""How often somebody cancels a run at the moment in which it ends or is parked."""
RACES_MAX: Final = 4
QUIET_S: Final = (0.0, 0.0, 0.0, 22.0)
"""So long a silence shows who is not parked, and who does not see what has come."""

EMPTIES: Final = {"reader": (3, 0.1), "picky": (0.1,), "sharing": (0.1,)}
"""What readers are started with to empty a mailbox."""

Life = Callable[[App, str], Awaitable[None]]


@dataclass
class Public:
    """Who lives here besides workers, clients and the operator."""

    world: PlayedWorld
    database: Database
    witness: Witness
    theme: Theme
    _quiet_s: float = 0.0
    """For so long nobody says anything, when it has become calm."""
    _canceller: tuple[asyncio.AbstractEventLoop, App] | None = None
    """Where the canceller lives now."""
    _left: Counter[str] = field(default_factory=Counter)
    """How often something may still be done."""
    _names: Counter[str] = field(default_factory=Counter)

    def settle(self) -> None:
        """Begin."""
        chance = self.world.random
        self._left.update(fork=FORKS_MAX, cancel=CANCELLED_MAX, race=RACES_MAX)
        waiting = self.theme is not Theme.WORK
        self._quiet_s = chance.choice(QUIET_S) if waiting else 0.0
        if waiting:
            self._spawn("alice", self._answers)
            self._spawn("postman", self._writes)
            self._spawn("caretaker", self._reads)
        if waiting and chance.random() < 0.6:
            self._spawn("bob", self._answers)
        if waiting and chance.random() < 0.3:
            self._spawn("pen friend", self._writes)
        if chance.random() < (0.4 if waiting else 0.1) or self.theme is Theme.EFFECTS:
            self._spawn("canceller", self._cancels)
            self.database.overheard = self._overhear
        if chance.random() < (0.3 if waiting else 0.1):
            self._spawn("forker", self._forks)
        if self.theme is Theme.BUDGETS:
            treasurer = Treasurer(self.world, self.witness)
            self._spawn("treasurer", treasurer.look_after)
            self.database.overheard = functools.partial(treasurer.overhear, self.database.overheard)

    def _spawn(self, name: str, life: Life) -> None:
        process = self.world.process(name)
        process.at_end.append(lambda: self._spawn_later(name, life))
        process.start(self._live(process, name, life))

    def _spawn_later(self, name: str, life: Life) -> None:
        delay_s = self.world.random.uniform(*SPAWN_S)
        self.database.loop.call_later(delay_s, self._spawn, name, life)

    def _overhear(self, request: Request) -> None:
        """Somebody is about to let go of a run: who cancels it now, races with that."""
        if request.verb != "commit" or self.calm or self._canceller is None:
            return
        ends = [change.run for change in request.args[1] if isinstance(change, EndRun | ParkRun)]
        if ends and self.world.random.random() < RACES:
            loop, app = self._canceller
            race = self._race(app, self.world.random.choice(ends))
            loop.call_soon_threadsafe(loop.create_task, race, context=contextvars.Context())

    async def _race(self, app: App, run: int) -> None:
        if self._left["race"]:
            self._left["race"] -= 1
            with suppress(StoreError):
                await self._cancel(app, run)

    async def _live(self, process: Process, name: str, life: Life) -> None:
        app = app_of(self.database, process)
        while True:
            await asyncio.sleep(self.world.random.uniform(*PAUSE_S))
            since = self.witness.readiness.calm_since
            if since is not None and self.world.now < since + self._quiet_s:
                continue
            try:
                await life(app, name)
            except (StoreError, ThreadBusy):
                continue

    @property
    def calm(self) -> bool:
        """Whether the storm is over."""
        return self.witness.readiness.calm_since is not None

    # -- what they do ----------------------------------------------------------------------------------------

    async def _answers(self, app: App, name: str) -> None:
        """Answer what is asked: late at times, twice at times, and not always as the other one does."""
        for asked in await app.interrupts(limit=20):
            if self.calm or self.world.random.random() < 0.5:
                await self._answer(app, name, asked)

    async def _answer(self, app: App, name: str, asked: InterruptInfo) -> None:
        chance = self.world.random
        if asked.name.startswith("effect:"):
            await self._tell(app, name, asked)
            return
        if asked.name == "budget":  # the treasurer's
            return
        answer = chance.choice(("yes", f"{name} says {self.world.next_token()}"))
        for _ in range(chance.choice((1, 1, 2))):
            where = asked.thread_id if chance.random() < 0.2 else asked.id
            try:
                told = await app.resume(where, answer, by=name)
            except AlreadyAnswered as lost:
                self.witness.answered(int(lost.interrupt_id[1:]), lost.answer)
            except (InterruptClosed, Conflict, NotFound):
                return
            else:
                self.witness.answered(int(told.id[1:]), answer)

    async def _tell(self, app: App, name: str, asked: InterruptInfo) -> None:
        """Say of an effect what is true; as long as the provider is at it, nobody knows."""
        provider = self.world.provider
        answer = provider.answer(asked.payload["idempotency_key"])
        if answer is None:
            return
        try:
            if answer["happened"] is not None and provider.chance.random() < 0.3:
                await app.resolve_effect(asked.payload["effect"], by=name, **answer)
            else:
                await app.resume(asked.id, answer, by=name)
        except (AlreadyAnswered, InterruptClosed, Conflict, NotFound):
            return

    async def _writes(self, app: App, name: str) -> None:
        """Write to those who read. Whoever was not told that a message has arrived goes on under another name: it may
        still come, after his next one."""
        chance = self.world.random
        for to in sorted(self._wanting_mail()) if self.calm else [chance.choice(self._boxes())]:
            by = f"{name} {self._names[name]}"
            n = self.world.times(by)
            message: Any = chance.choice((Letter(by, n), {"by": by, "n": n}, {"by": by, "n": n}))
            if not self.calm and chance.random() < 0.1:
                message = BadLetter("nonsense")
            try:
                told = await app.send(to, message)
            except (NotFound, MailboxFull):
                continue
            except StoreUnavailable:
                self._names[name] += 1
            else:
                self.witness.mailed(int(told[1:]))
        if not self.calm and chance.random() < 0.2:
            for dead in await app.dead_letters(limit=1):
                await app.replay_dead_letter(dead.id)

    def _boxes(self) -> list[str]:
        """Threads that are read, and some that may not be there."""
        threads = self.witness.look.threads.values()
        read = [row.thread_id for row in threads if playbook.ROLES[row.agent].reads]
        return read * 4 + list(THREADS)

    def _wanting_mail(self) -> set[str]:
        """Threads whose runs wait for a message for ever."""
        look = self.witness.look
        waits = [wait for some in look.waits.values() for wait in some.values()]
        return {look.runs[wait.run].thread_id for wait in waits if _is_for_mail(wait) and wait.due_at is None}

    async def _reads(self, app: App, name: str) -> None:
        """When all is calm, have somebody read where a mailbox is full and a sender waits for room."""
        look = self.witness.look
        waits = [wait for some in look.waits.values() for wait in some.values()]
        for thread in sorted({wait.target or 0 for wait in waits if wait.kind is WaitKind.ROOM}) if self.calm else ():
            row = look.threads[thread]
            if row.head is None:
                agent = playbook.ROLES[row.agent].agent
                handle = await app.start(agent, *EMPTIES[row.agent], thread_id=row.thread_id, if_busy="reject")
                self.witness.ordered.add(int(handle.run_id[1:]))

    async def _cancels(self, app: App, name: str) -> None:
        """Cancel somebody."""
        self._canceller = asyncio.get_running_loop(), app
        found = [run for run in await app.runs(limit=30) if run.state in UNFINISHED]
        if not found or self.calm or not self._left["cancel"]:
            return
        self._left["cancel"] -= 1
        tidy = [run for run in found if playbook.ROLES[run.agent].cleans_up]
        chosen = self.world.random.choice(tidy if tidy and self.world.random.random() < 0.5 else found)
        await self._cancel(app, int(chosen.run_id[1:]))

    async def _cancel(self, app: App, run: int) -> None:
        self.witness.cancelled(run, await app.cancel(run_id(run), reason="nobody wants it any more"))

    async def _forks(self, app: App, name: str) -> None:
        """Fork a thread at a checkpoint of one of its runs."""
        chance = self.world.random
        found = await app.runs(limit=30)
        if not found or self.calm or not self._left["fork"]:
            return
        chosen = chance.choice(found)
        log = await app.handle(chosen.run_id).history()
        if not log or chosen.agent in ("poisonous", "held"):
            return
        at = chance.choice(log)
        self._left["fork"] -= 1
        try:
            handle = await app.thread(chosen.thread_id).fork(
                min(at.super_step, chosen.super_step), at.key or None, run_id=chosen.run_id
            )
        except (Conflict, NotFound):
            return
        self.witness.forked(int(handle.run_id[1:]), int(chosen.run_id[1:]), at.super_step, at.key)


def app_of(database: Database, process: Process) -> App:
    """The app in a process of its own."""
    world = process.world
    assert isinstance(world, PlayedWorld)
    app = App("simulated", store=database.connect(process), billing=BILLS if world.hands_over else None)
    if world.hands_over:
        app.sinks.update(world.recipients.sinks(world.witness))
    app.agents.update({name: role.agent for name, role in playbook.ROLES.items()})
    return app


def _is_for_mail(wait: Wait) -> bool:
    return wait.kind is WaitKind.MESSAGE
