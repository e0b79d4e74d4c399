"""The fleet: the processes that are tormented, and the recorder, which is not.

Workers belong to one of two deployments, which are always both there. A client works a lane, and has a successor when
it is killed. Whoever ends without having been asked to is told of; a worker that could not reach the store when it
began (exit code 5) is started again, as any supervisor would.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import PerdureError
from perdure.testing.chaos.client import SETTINGS, Settings
from perdure.testing.chaos.processes import LOOK_S, Child, gone, spawn
from perdure.testing.chaos.telling import BEGUN, DIRECTOR, RECORDER, now, tell
from perdure.testing.chaos.testimony import FILE, Fell

APP: Final = "perdure.testing.chaos.agents:app"
DEPLOYMENTS: Final = ("old", "new")

CONCURRENCY: Final = 30
"""Runs in a worker's hands: what a kill can cost."""

STORE_UNAVAILABLE: Final = 5
"""Exit code of a worker that could not reach the store when it began."""

PORT: Final = re.compile(r"^\d+(?=\n)", re.MULTILINE)
"""What the recorder prints when it listens."""

END_S: Final = 90.0
"""How long a process may take to end in good order."""

FALLEN_MAX: Final = 20
"""Processes that end by themselves until there is no point in going on."""

RECORDER_S: Final = 20.0
"""How long the recorder may take to begin."""


class ChaosFailed(PerdureError):
    """Chaos itself could not go on; the message says where to look."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What every child is told."""

    url: str
    """The store, by the road that is tormented."""
    name: str
    """Of the whole: queue, tag, prefix of keys, threads and deployments."""
    folder: Path
    seed: int
    lease_s: float
    at_once: int
    pause_s: float

    @property
    def testimony(self) -> Path:
        """The recorder's file."""
        return self.folder / FILE


@dataclass
class Member:
    """A tormented process: a worker of a deployment or the client of a lane."""

    child: Child
    place: str
    busy: bool = False
    """A fault has it in its hands."""
    _begun: bool = False

    @property
    def alive(self) -> bool:
        return self.child.alive

    @property
    def begun(self) -> bool:
        """It has said that it serves; from then on it ends in good order when it is asked to."""
        self._begun = self._begun or BEGUN in self.child.log.read_text(errors="replace")
        return self._begun

    @property
    def ended_well(self) -> bool:
        """It ended as it was asked to, or was asked before it had begun."""
        code = self.child.process.returncode
        return code in (0, -signal.SIGTERM) or (code == STORE_UNAVAILABLE and not self.begun)


class Fleet:
    """All of them."""

    def __init__(self, brief: Brief) -> None:
        self.brief = brief
        self.workers: list[Member] = []
        self.clients: list[Member] = []
        self.recorder: Child | None = None
        self.restarted = 0
        """Workers that were started again because the store was away when they began."""
        self._fallen = 0

    # -- beginning -------------------------------------------------------------------------------------------

    async def start_recorder(self) -> None:
        """Start it, and wait until it listens; this process tells it things too."""
        path = self.brief.testimony
        command = [sys.executable, "-m", "perdure.testing.chaos.recorder", str(path)]
        os.environ[DIRECTOR] = str(os.getpid())
        self.recorder = self._spawn("recorder", command)
        async with asyncio.timeout(RECORDER_S):
            while not (port := PORT.search(self.recorder.log.read_text())):
                if not self.recorder.alive:
                    raise ChaosFailed(f"the recorder did not begin: {self.recorder.last_words()}")
                await asyncio.sleep(LOOK_S)
        os.environ[RECORDER] = port[0]

    def fill_up(self, *, workers: int, clients: int) -> None:
        """Have at least so many: workers of both deployments in turn, and a client in each lane."""
        count = Counter(worker.place for worker in self.free(self.workers))
        while count.total() < workers:
            deployment = min(DEPLOYMENTS, key=lambda each: count[each])
            self.hire(deployment)
            count[deployment] += 1
        for deployment in DEPLOYMENTS:
            if not count[deployment]:
                self.hire(deployment)
        for lane in range(1, clients + 1):
            self.engage(str(lane))

    async def begun(self, *, within_s: float) -> None:
        """Wait until every worker serves."""
        give_up_at = time.monotonic() + within_s
        while silent := [worker.child for worker in self.workers if not worker.begun and not worker.child.dismissed]:
            if time.monotonic() > give_up_at:
                raise ChaosFailed(f"{silent[0].name} did not begin within {within_s:g} s: {silent[0].last_words()}")
            await self.look()
            await asyncio.sleep(LOOK_S)

    def hire(self, deployment: str) -> Member:
        """Start a worker."""
        brief = self.brief
        name = f"worker-{len(self.workers) + 1}"
        command = [
            sys.executable, "-m", "perdure", "worker", APP, "--queue", brief.name, "--name", f"{brief.name} {name}",
            "--deployment", f"{brief.name}-{deployment}", "--concurrency", str(CONCURRENCY),
        ]  # fmt: skip
        member = Member(self._spawn(name, command), deployment)
        self.workers.append(member)
        return member

    def engage(self, lane: str, *, to_settle: bool = False) -> Member:
        """Start a client; of a lane that had one, its successor. `to_settle`: it asks for nothing new, and ends."""
        brief = self.brief
        at_once = 0 if to_settle else brief.at_once
        settings = Settings(brief.seed, brief.name, lane, str(brief.testimony), at_once, brief.pause_s)
        command = [sys.executable, "-m", "perdure.testing.chaos.client"]
        name = f"client-{len(self.clients) + 1}"
        member = Member(self._spawn(name, command, {SETTINGS: msgspec.json.encode(settings).decode()}), lane)
        member.child.dismissed = to_settle
        self.clients.append(member)
        return member

    def _spawn(self, name: str, command: list[str], environ: dict[str, str] | None = None) -> Child:
        brief = self.brief
        common = {"PERDURE_STORE": brief.url, "PERDURE_LEASE_S": str(brief.lease_s), "PERDURE_LOG": "info"}
        log = brief.folder / f"{name}.log"
        return spawn(name, command, log=log, environ=common | (environ or {}), apart=True)

    # -- looking ---------------------------------------------------------------------------------------------

    def alive(self, members: list[Member]) -> list[Member]:
        """Those that live."""
        return [member for member in members if member.alive]

    def free(self, members: list[Member]) -> list[Member]:
        """Those that live and that no fault has in its hands."""
        return [member for member in members if member.alive and not member.busy and not member.child.dismissed]

    async def look(self) -> None:
        """Tell of those that ended by themselves, and put others in their places."""
        if self.recorder is not None and not self.recorder.alive:
            raise ChaosFailed(f"the recorder has ended: {self.recorder.last_words()}")
        for members, replace in ((self.workers, self.hire), (self.clients, self.engage)):
            for member in [member for member in members if member.child.broken]:
                member.child.dismissed = True
                if members is self.workers and member.child.process.returncode == STORE_UNAVAILABLE:
                    self.restarted += 1
                else:
                    await self._tell_of(member)
                replace(member.place)

    async def _tell_of(self, member: Member, why: str | None = None) -> None:
        child = member.child
        self._fallen += 1
        words = "\n".join(filter(None, [why, child.last_words()]))
        await tell(Fell(*now(), child.name, child.pid, child.process.returncode, words))
        if self._fallen >= FALLEN_MAX:
            raise ChaosFailed(f"{FALLEN_MAX} processes ended by themselves, the last one: {child.last_words()}")

    # -- ending ----------------------------------------------------------------------------------------------

    async def end_clients(self) -> None:
        """Have every client settle what it has asked for and end; then, in each lane, a last one what was left."""
        await self._end(self.clients)
        last = [self.engage(lane, to_settle=True) for lane in sorted({client.place for client in self.clients})]
        await gone([client.child for client in last])
        for client in last:
            if client.child.process.returncode != 0:
                await self._tell_of(client)

    async def end_workers(self) -> None:
        """Have every worker drain and end, and every client that is left end at once."""
        self._kill(self.clients)
        await self._end(self.workers)

    async def _end(self, members: list[Member]) -> None:
        """Have these end in good order."""
        living = self.alive(members)
        for member in living:
            if not member.child.dismissed:  # asked twice, it would be ended in the middle of ending
                member.child.ask_to_end()
        await gone([member.child for member in living], within_s=END_S)
        for member in living:
            if member.alive:
                member.child.kill()
                await self._tell_of(member, f"it was asked to end, and had not after {END_S:g} s")
            elif not member.ended_well:
                await self._tell_of(member)

    def _kill(self, members: list[Member]) -> None:
        for member in self.alive(members):
            member.child.kill()

    def kill_all(self) -> None:
        """End everybody, at once."""
        self._kill([*self.workers, *self.clients])
        if self.recorder is not None and self.recorder.alive:
            self.recorder.kill()
        for variable in (RECORDER, DIRECTOR):
            os.environ.pop(variable, None)
