"""Nature: what happens to processes, clocks and the store, at random times, until it calms down."""

from __future__ import annotations

from collections.abc import Callable

from perdure.testing.simulation.weather import CALM
from perdure.testing.simulation.wire import Database
from perdure.testing.simulation.world import Process, World


class Nature:
    """What happens to processes, clocks and the store, at random times, until it calms down."""

    def __init__(
        self, world: World, database: Database, workers: list[Process], note: Callable[[str], None], *, lease_s: float,
        next_due_us: Callable[[], int | None] = lambda: None,
    ) -> None:  # fmt: skip
        self.world = world
        self.database = database
        self.workers = workers
        """The worker processes that live, now and later."""
        self.note = note
        self.lease_s = lease_s
        self.next_due_us = next_due_us
        """The next time, on the database's clock, that a run waits for."""
        self.events = {
            "kills": self._kill,
            "pauses": self._pause,
            "blocks": self._block,
            "drains": self._drain,
            "outages": self._outage,
            "wall_jumps": self._wall_jump,
            "store_jumps": self._store_jump,
            "due_jumps": self._due_jump,
            "silences": self._silence,
            "client_kills": self._client_kill,
        }
        self._calm = False
        for name in self.events:
            self._schedule(name)

    def calm_down(self) -> None:
        """No faults from here on; what is stopped goes on."""
        self._calm = True
        self.database.weather = CALM
        self.database.down = self.database.silent = False
        for process in self.world.processes:
            process.hidden = False
            process.resume()

    def _schedule(self, name: str) -> None:
        a_minute = getattr(self.database.weather, name)
        if a_minute and not self._calm:
            self.database.loop.call_later(self.world.random.expovariate(a_minute / 60), self._happen, name)

    def _happen(self, name: str) -> None:
        if not self._calm:
            self.events[name]()
            self._schedule(name)

    def _note(self, fault: str, what: object = "") -> None:
        self.database.faults[fault] += 1
        self.note(f"-- {fault} {what}")

    def _worker(self) -> Process | None:
        running = [process for process in self.workers if process.alive and not process.paused]
        return self.world.random.choice(running) if running else None

    def _kill(self) -> None:
        if (process := self._worker()) is not None:
            self._note("worker killed", process.name)
            process.kill()

    def _client_kill(self) -> None:
        running = [each for each in self.world.processes if each.client and each.alive and not each.served]
        if running:
            process = self.world.random.choice(running)
            self._note("client killed", process.name)
            process.kill()

    def _pause(self) -> None:
        if (process := self._worker()) is not None:
            self._note("worker stopped", process.name)
            process.pause()
            self._resume_later(process)

    def _block(self) -> None:
        if (process := self._worker()) is not None:
            self._note("event loop blocked", process.name)
            process.block()
            self._resume_later(process)

    def _resume_later(self, process: Process) -> None:
        for_s = self.world.random.choice((0.2, 1.0, self.lease_s, 2 * self.lease_s, 3 * self.lease_s))
        self.database.loop.call_later(for_s, process.resume)

    def _drain(self) -> None:
        process = self._worker()
        if process is not None and process.worker is not None:
            self._note("worker drained", process.name)
            self._signal(process)
            if self.world.random.random() < 0.3:
                self.database.loop.call_later(self.world.random.uniform(0.0, 1.0), self._signal, process)

    def _signal(self, process: Process) -> None:
        if process.alive and process.worker is not None:
            process.loops[0].call_soon_threadsafe(process.worker.stop)

    def _outage(self) -> None:
        self._note("store outage")
        self.database.down = True
        self.database.loop.call_later(self.world.random.choice((0.3, 2.0, 2 * self.lease_s)), self._back)

    def _back(self) -> None:
        self.database.down = False

    def _wall_jump(self) -> None:
        process = self._worker()
        if process is not None:
            self._note("wall clock jumped", process.name)
            process.skew_s += self.world.random.choice((-3600.0, -5.0, 5.0, 3600.0))

    def _store_jump(self) -> None:
        self._note("store clock jumped")
        self.database.ahead_us += int(self.world.random.choice((0.5, 5.0, 60.0)) * 1e6)

    def _due_jump(self) -> None:
        """Over the next time that somebody waits for, or to just before it."""
        due_us = self.next_due_us()
        if due_us is not None and due_us > self.database.now_us():
            self._note("clock jumped over a time")
            beyond_us = self.world.random.choice((-1, 0, 1, 2_000_000))
            self.database.ahead_us += max(0, due_us - self.database.now_us() + beyond_us)

    def _silence(self) -> None:
        self._note("hints silenced")
        self.database.silent = True
        self.database.loop.call_later(self.world.random.uniform(4.0, 15.0), self._hear_again)

    def _hear_again(self) -> None:
        self.database.silent = False
