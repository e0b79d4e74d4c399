"""The tormentor: faults, one after the other and some at once, as a seed says.

The schedule is a bag: each kind of fault that this store allows is drawn once or twice, in random order, before any is
drawn again. Between two there is a pause; a fault that lasts (a stopped worker, a black hole) goes on while the next
begins.
Every fault undoes itself, also when it is cancelled; what it killed has a successor.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from perdure.core.limits import MIB
from perdure.errors import StoreUnavailable, UsageError
from perdure.store import open_url
from perdure.testing.chaos.fleet import DEPLOYMENTS, ChaosFailed, Fleet, Member
from perdure.testing.chaos.processes import LOOK_S, gone
from perdure.testing.chaos.roads import Road
from perdure.testing.chaos.telling import now, tell
from perdure.testing.chaos.testimony import Struck

DRAIN_S: Final = 60.0
"""How long a worker may take to drain."""

RESTART_S: Final = 120.0
"""How long the command that restarts the server may take."""

WRITES: Final = r"\.(append|commit|claim|start|retire|give_back|take_over)\("
"""Statements whose answers are lost: those by which runs move."""

FILL_BYTES_MAX: Final = 4096 * MIB
"""A file system with more room than this is not meant to be filled."""


class Fault(StrEnum):
    """What is done to them."""

    KILL_WORKER = "kill -9 of a worker"
    KILL_CLIENT = "kill -9 of a client"
    PAUSE_WORKER = "worker stopped for less than its lease"
    FREEZE_WORKER = "worker stopped for longer than its lease"
    FREEZE_CLIENT = "client stopped"
    DEPLOY = "worker drained, another deployment's in its place"
    CUT = "all connections cut"
    BLACK_HOLE = "black hole between all and the server"
    VANISH = "connections that pass nothing any more"
    DELAY = "slow network"
    LOSE_ANSWERS = "answers to commits lost"
    TERMINATE = "backends terminated"
    RESTART = "server restarted"
    FILL = "disk full"


@dataclass(frozen=True, slots=True)
class Arms:
    """What the user has given the tormentor."""

    restart_command: str | None = None
    filler: Path | None = None
    terminate: Callable[[set[int]], Awaitable[None]] | None = None
    """Ends these backends of the server."""


class Tormentor:
    """Draws faults and does them."""

    def __init__(self, fleet: Fleet, road: Road, arms: Arms, *, pause_s: float) -> None:
        self.fleet = fleet
        self.road = road
        self.arms = arms
        self.pause_s = pause_s
        self.chance = random.Random(fleet.brief.seed)
        self.done: Counter[Fault] = Counter()
        self.lease_s = fleet.brief.lease_s

    def kinds(self) -> list[Fault]:
        """The faults that this store and these arms allow."""
        kinds = [
            Fault.KILL_WORKER, Fault.KILL_WORKER, Fault.FREEZE_WORKER, Fault.FREEZE_WORKER, Fault.PAUSE_WORKER,
            Fault.KILL_CLIENT, Fault.FREEZE_CLIENT, Fault.DEPLOY,
        ]  # fmt: skip
        if self.road.proxy is not None:
            kinds += [Fault.CUT, Fault.BLACK_HOLE, Fault.VANISH, Fault.DELAY, Fault.LOSE_ANSWERS]
            kinds.append(Fault.RESTART if self.arms.restart_command else Fault.TERMINATE)
        if self.arms.filler is not None:
            kinds.append(Fault.FILL)
        return kinds

    async def torment(self, until: asyncio.Event) -> None:
        """Do faults until told to stop, and return when none is left that lasts."""
        async with asyncio.TaskGroup() as group:
            bag: list[Fault] = []
            while not until.is_set():
                if not bag:
                    bag = self.kinds()
                    self.chance.shuffle(bag)
                group.create_task(self._do(bag.pop()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.pause_s * self.chance.uniform(0.5, 1.5)):
                        await until.wait()

    async def _do(self, fault: Fault) -> None:
        chance = random.Random(self.chance.random())  # its own: how long others take does not change what it does
        match fault:
            case Fault.KILL_WORKER | Fault.KILL_CLIENT:
                await self._kill(fault, chance)
            case Fault.PAUSE_WORKER:
                await self._stop(fault, chance, self.lease_s * chance.uniform(0.1, 0.8))
            case Fault.FREEZE_WORKER | Fault.FREEZE_CLIENT:
                await self._stop(fault, chance, self.lease_s * chance.uniform(1.2, 2.2))
            case Fault.DEPLOY:
                await self._deploy(chance)
            case Fault.FILL:
                await self._fill(chance)
            case Fault.RESTART:
                await self._restart()
            case _:
                await self._disturb(fault, chance)

    def _begun(self, members: list[Member]) -> list[Member]:
        return [member for member in self.fleet.free(members) if member.begun]

    async def _victim(self, choice: Callable[[], list[Member]], chance: random.Random) -> Member | None:
        """One of these, in the hands of this fault from now on; if there is none for a while, None."""
        give_up_at = time.monotonic() + self.lease_s
        while time.monotonic() < give_up_at:
            if members := choice():
                victim = chance.choice(members)
                victim.busy = True
                return victim
            await asyncio.sleep(LOOK_S)
        return None

    async def _struck(self, fault: Fault, victim: Member | None = None, detail: str = "") -> None:
        self.done[fault] += 1
        pid = None if victim is None else victim.child.pid
        await tell(Struck(*now(), fault, pid, detail))

    # -- processes -------------------------------------------------------------------------------------------

    async def _kill(self, fault: Fault, chance: random.Random) -> None:
        fleet = self.fleet
        is_worker = fault is Fault.KILL_WORKER
        victim = await self._victim(lambda: fleet.free(fleet.workers if is_worker else fleet.clients), chance)
        if victim is None:
            return
        await self._struck(fault, victim)
        victim.child.kill()
        try:
            await asyncio.sleep(chance.uniform(0, 1))
        finally:
            (fleet.hire if is_worker else fleet.engage)(victim.place)

    async def _stop(self, fault: Fault, chance: random.Random, seconds: float) -> None:
        fleet = self.fleet
        client = fault is Fault.FREEZE_CLIENT
        # One that has begun: a worker that is only starting has nothing that others could take over.
        victim = await self._victim(lambda: self._begun(fleet.clients if client else fleet.workers), chance)
        if victim is None:
            return
        await self._struck(fault, victim, f"{seconds:.2f} s")
        victim.child.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            victim.child.wake()
            victim.busy = False

    async def _deploy(self, chance: random.Random) -> None:
        """Another deployment's worker beside one, which then drains. One of each deployment stays: it has runs."""
        fleet = self.fleet

        def spare() -> list[Member]:
            staying = [worker.place for worker in fleet.alive(fleet.workers) if not worker.child.dismissed]
            return [worker for worker in self._begun(fleet.workers) if staying.count(worker.place) > 1]

        victim = await self._victim(spare, chance)
        if victim is None:
            return
        fleet.hire(next(each for each in DEPLOYMENTS if each != victim.place))
        await self._struck(Fault.DEPLOY, victim)
        victim.child.ask_to_end()
        if not await gone([victim.child], within_s=DRAIN_S):
            victim.child.kill()
        if not victim.ended_well:
            victim.child.dismissed = False  # it did not end as it was asked to: it fell

    # -- the way to the server -------------------------------------------------------------------------------

    async def _disturb(self, fault: Fault, chance: random.Random) -> None:
        proxy, speech = self.road.proxy, self.road.speech
        assert proxy is not None and speech is not None
        seconds = self.lease_s * chance.uniform(0.3, 2.0)
        await self._struck(fault, detail=f"{len(proxy)} connections, {seconds:.2f} s where it lasts")
        try:
            match fault:
                case Fault.CUT:
                    proxy.cut()
                case Fault.TERMINATE if self.arms.terminate is not None:
                    with suppress(StoreUnavailable):
                        await self.arms.terminate(set(speech.backends))
                case Fault.BLACK_HOLE:
                    proxy.black_hole()
                    await asyncio.sleep(seconds)
                case Fault.VANISH:
                    proxy.swallow()
                    await asyncio.sleep(seconds)
                    proxy.cut()
                case Fault.DELAY:
                    proxy.delay_s = chance.uniform(0.02, 0.2)
                    await asyncio.sleep(seconds)
                case Fault.LOSE_ANSWERS:
                    speech.lose(WRITES, every=chance.randint(2, 20))
                    await asyncio.sleep(seconds)
        finally:
            match fault:
                case Fault.BLACK_HOLE:
                    proxy.lift()
                case Fault.DELAY:
                    proxy.delay_s = 0.0
                case Fault.LOSE_ANSWERS:
                    speech.lose(None)

    async def _restart(self) -> None:
        command = self.arms.restart_command
        assert command is not None
        await self._struck(Fault.RESTART)
        log = self.fleet.brief.folder / "restart.log"
        with log.open("ab") as out:  # a file: the server would keep a pipe open
            process = await asyncio.create_subprocess_shell(
                command, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            waiting = asyncio.ensure_future(process.wait())
            try:
                async with asyncio.timeout(RESTART_S):
                    code = await asyncio.shield(waiting)
            except TimeoutError:
                process.kill()
                raise ChaosFailed(f"the restart command took longer than {RESTART_S:g} s; see {log}") from None
            finally:
                await waiting  # also when this is broken off: what is half restarted cannot be judged
        if code != 0:
            raise ChaosFailed(f"the restart command ended with {code}; see {log}")

    # -- the disk --------------------------------------------------------------------------------------------

    async def _fill(self, chance: random.Random) -> None:
        assert self.arms.filler is not None
        seconds = self.lease_s * chance.uniform(0.3, 1.5)
        ballast = self.arms.filler / f".{self.fleet.brief.name}-ballast"
        await self._struck(Fault.FILL, detail=f"{seconds:.2f} s")
        try:
            with ballast.open("wb") as file:
                end = asyncio.get_running_loop().time() + seconds
                while asyncio.get_running_loop().time() < end:
                    await asyncio.to_thread(fill, file.fileno())  # again and again: what others freed is taken too
                    await asyncio.sleep(0.1)
        finally:
            ballast.unlink(missing_ok=True)


def fill(file: int) -> None:
    """Write until the disk is full."""
    for block in (MIB, 4096, 1):
        try:
            while os.write(file, bytes(block)):
                pass
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise


def check_filler(filler: Path, url: str, folder: Path) -> None:
    """Refuse to fill a file system that is not made for it."""
    advice = "mount a small file system (mount -t tmpfs -o size=256m tmpfs DIR), and put the store on it"
    if not filler.is_dir():
        raise UsageError(f"--filler {filler} is no directory; {advice}")
    device = filler.stat().st_dev
    if device == folder.stat().st_dev:
        raise UsageError(f"--filler {filler} is the file system of {folder}, where chaos keeps its own files; {advice}")
    if device != Path(open_url(url).url.removeprefix("sqlite:///")).resolve().parent.stat().st_dev:
        raise UsageError(f"--filler {filler} is another file system than the store's; {advice}")
    stat = os.statvfs(filler)
    if stat.f_frsize * stat.f_bavail > FILL_BYTES_MAX:
        raise UsageError(f"--filler {filler} has {stat.f_frsize * stat.f_bavail // MIB:,} MiB of room; {advice}")
