"""The director: starts everybody, lets the faults happen, heals, and has the rest judged.

Four parts. *Faults*: the tormentor at work; meanwhile the director looks after processes that end, and sends held runs
on. *Settling*: no more faults, every lane and every deployment is there; the clients finish what they have asked for,
and every run must become terminal within `SETTLE_S`. *Asking again*: every acknowledged key, which must give the same
run. *Judging*: when all processes have ended. Ctrl-C and SIGTERM leave out what has not been done yet, but not the
judging (`signals`).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from perdure.app import App
from perdure.core.records import RunState
from perdure.errors import PerdureError, StoreUnavailable
from perdure.store import open_url
from perdure.store.protocol import Store
from perdure.testing.chaos.account import account_of
from perdure.testing.chaos.agents import app_on
from perdure.testing.chaos.books import read_books, runs_of
from perdure.testing.chaos.case import Case
from perdure.testing.chaos.client import insist, number_of, start
from perdure.testing.chaos.faults import Arms, Tormentor
from perdure.testing.chaos.fleet import Brief, Fleet
from perdure.testing.chaos.orders import Order
from perdure.testing.chaos.reconcile import reconcile
from perdure.testing.chaos.roads import is_postgres, road_to
from perdure.testing.chaos.script import Progress, Script, Verdict
from perdure.testing.chaos.signals import leading_to
from perdure.testing.chaos.telling import now, tell
from perdure.testing.chaos.testimony import Asked, Held, Phase, Refused, Started, read
from perdure.testing.chaos.vacancy import check_vacant

SETTLE_S: Final = 120.0
"""How long everything may take to become terminal once the faults have stopped."""

LOOK_S: Final = 0.25
RELEASE_S: Final = 1.0
ASKED_AT_ONCE: Final = 200

AT_ONCE: Final = 24
PAUSE_S: Final = 0.4
"""A client's orders at a time, and the pause after each: some 30 runs a second, so that an hour can be judged."""

BEGIN_S: Final = 30.0
"""How long the workers may take to begin."""


class Director:
    """One performance."""

    def __init__(self, script: Script, show: Callable[[Progress], None]) -> None:
        self.script = script
        self.show = show
        self.part = "starting"
        self.interrupted = asyncio.Event()
        self.faults_s = self.settled_s = 0.0
        self._part_began = time.monotonic()
        self._told = 0
        self._read_to = 0

    async def perform(self) -> Verdict:
        """From the first process to the verdict."""
        script = self.script
        store = open_url(script.store)
        await store.open()
        try:
            if not script.force:
                await check_vacant(store)
            async with road_to(script.store) as road, app_on(script.store) as app:
                brief = Brief(road.url, script.name, script.folder, script.seed, script.lease_s, AT_ONCE, PAUSE_S)
                self.fleet = Fleet(brief)
                arms = Arms(script.restart_command, script.filler, terminator(script.store))
                self.tormentor = Tormentor(self.fleet, road, arms, pause_s=script.pause_s)
                with leading_to(self.interrupted):
                    await self._play(store, app)
                return await self._judge(store, app)
        finally:
            await store.close()

    async def _play(self, store: Store, app: App) -> None:
        """All parts, or as many as there was time for; whatever happens, nobody is left behind."""
        try:
            await self.fleet.start_recorder()
            await unless(self.interrupted, self._parts(store, app))
            self._begin("ending")
            await self.fleet.end_workers()
        except ExceptionGroup as group:
            raise first_of(group) from group
        finally:
            self.fleet.kill_all()

    async def _parts(self, store: Store, app: App) -> None:
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look_after(store), name="chaos-looking")
            await self._torment()
            await self._settle(store)
            await self._ask_again(app)
            looking.cancel()

    def _begin(self, part: str) -> None:
        self.part, self._part_began = part, time.monotonic()

    @property
    def _part_s(self) -> float:
        return time.monotonic() - self._part_began

    # -- the parts -------------------------------------------------------------------------------------------

    async def _torment(self) -> None:
        """Everybody begins, and then the tormentor."""
        await tell(Phase(*now(), "faults"))
        self.fleet.fill_up(workers=self.script.workers, clients=self.script.clients)
        await self.fleet.begun(within_s=BEGIN_S)
        self._begin("faults")
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(self.script.seconds, over.set)
        try:
            await self.tormentor.torment(over)
        finally:
            self.faults_s = self._part_s

    async def _settle(self, store: Store) -> None:
        """Heal, let clients finish, and wait until nothing is unfinished and no dead worker's row is alive."""
        self._begin("settling")
        await tell(Phase(*now(), "settling"))
        fleet = self.fleet
        fleet.fill_up(workers=self.script.workers, clients=0)
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await fleet.end_clients()
                while not await self._settled(store):  # noqa: ASYNC110  # rows that others write
                    await asyncio.sleep(LOOK_S)
        self.settled_s = self._part_s
        await tell(Phase(*now(), "settled"))

    async def _settled(self, store: Store) -> bool:
        name = self.script.name
        for state in (RunState.QUEUED, RunState.RUNNING, RunState.WAITING, RunState.HELD):
            if await insist(functools.partial(runs_of, store, name, state)):
                return False
        pids = {worker.child.pid for worker in self.fleet.workers if worker.alive}
        alive = await insist(store.workers)
        return all(worker.pid in pids for worker in alive if worker.name.startswith(name))

    async def _ask_again(self, app: App) -> None:
        """Every acknowledged key must still give its run."""
        self._begin("asking again")
        orders = await asyncio.to_thread(acknowledged, self.fleet.brief.testimony)
        for at in range(0, len(orders), ASKED_AT_ONCE):
            await asyncio.gather(*(self._ask_for(app, each) for each in orders[at : at + ASKED_AT_ONCE]))

    async def _ask_for(self, app: App, order: Order) -> None:
        try:
            handle = await insist(lambda: start(app, order, name=self.script.name))
        except PerdureError as error:
            await tell(Refused(*now(), order.key, type(error).__name__))
        else:
            await tell(Started(*now(), order.key, number_of(handle)))

    async def _judge(self, store: Store, app: App) -> Verdict:
        """Read both witnesses, and compare them."""
        self._begin("judging")
        self.show(self.progress)
        account = await asyncio.to_thread(lambda: account_of(read(self.fleet.brief.testimony)))
        case = Case(account, await read_books(store, app, self.script.name), over=not self.interrupted.is_set())
        return Verdict(case, reconcile(case), self.faults_s, self.settled_s, self.fleet.restarted)

    # -- meanwhile -------------------------------------------------------------------------------------------

    async def _look_after(self, store: Store) -> None:
        """See who has ended, send on what is held, and say how far it is."""
        released_at = 0.0
        while True:
            await self.fleet.look()
            if time.monotonic() - released_at >= RELEASE_S:
                released_at = time.monotonic()
                with suppress(StoreUnavailable):
                    await self._release(store)
            self.show(self.progress)
            await asyncio.sleep(LOOK_S)  # between two looks

    async def _release(self, store: Store) -> None:
        """What a person would do: look at what is held, and send it on."""
        for run in await runs_of(store, self.script.name, RunState.HELD):
            tries = await store.attempts(run.id)
            cut_short = sum(each.error is None for each in tries)
            await tell(Held(*now(), run.id, run.reason or "", run.detail or "", run.strikes, cut_short))
            await store.release(run.id)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        fleet = self.fleet
        faults = self.tormentor.done.total()
        return Progress(
            self.part, self._part_s, faults, self._told_so_far(), len(fleet.alive(fleet.workers)),
            len(fleet.alive(fleet.clients)),
        )  # fmt: skip

    def _told_so_far(self) -> int:
        with self.fleet.brief.testimony.open("rb") as file:
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")[0]
        self._read_to += len(whole)
        self._told += whole.count(b'"what":"told"')
        return self._told


def acknowledged(testimony: Path) -> list[Order]:
    """The orders whose keys were acknowledged, each once. (Only these lines are kept: the file may be long.)"""
    asked, started = dict[str, Asked](), dict[str, None]()
    for line in read(testimony):
        match line:
            case Asked():
                asked.setdefault(line.key, line)
            case Started():
                started[line.key] = None
    return [order_of(asked[key]) for key in started]


def order_of(asked: Asked) -> Order:
    """What was asked for, to be asked for again."""
    return Order(
        asked.key, asked.lane, asked.number, asked.agent, asked.args, asked.thread_id, asked.if_busy, asked.delay_s,
        asked.priority,
    )  # fmt: skip


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do the work to its end, or break it off when the event comes."""
    doing, coming = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({doing, coming}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        coming.cancel()
        doing.cancel()
        await asyncio.wait({doing, coming})
    if not doing.cancelled():
        doing.result()


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of a group's errors."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def terminator(url: str) -> Callable[[set[int]], Awaitable[None]] | None:
    """What ends backends of the server at this URL; None where there is no server."""
    if not is_postgres(url):
        return None

    async def terminate(backends: set[int]) -> None:
        from perdure.store.postgres.address import parse
        from perdure.store.postgres.lines import Line

        line = Line(parse(url))
        try:
            await line.fetch(Path(__file__).with_name("backends.sql").read_text(encoding="utf-8"), sorted(backends))
        finally:
            await line.close()

    return terminate
