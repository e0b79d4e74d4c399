"""The store's clock, on a machine whose own clock may step.

Leases and due times are compared with the store's time. Were that the machine's, a clock that is set back by two hours
would keep every queued run waiting, and every lease of a dead worker alive, for two hours. So the file remembers a
`Mark`: the store's time at the last write, and what the machine's clocks said then. Each transaction that writes
something makes a new one. From the mark, any process tells the time now:

- It never goes back. The time since the mark is counted on the ticks of the machine, which all its processes share and
  nobody sets; where they cannot be compared (after a reboot, in a copied file, on a system that does not name its
  boots) the wall clock counts it, as far as it went forwards.
- It never is behind the machine's wall clock: a step forwards is followed at once, and what was due at a time of day is
  due. Every living worker's lease is moved on by the same step, since no worker has been silent for that long. (The
  same goes for a machine that slept: ticks do not count it.)
- Where it is ahead of the wall clock, because that was set back, it goes at nine tenths of its pace until they agree
  again. Two hours take twenty; a delay of a minute takes six seconds more.

NTP's slewing is the model for the last point; that a state in the database carries the clock over from one process to
the next, that of CockroachDB's and other hybrid clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from perdure.store.sqlite.transaction import Reader, Transaction

SLEW: Final = 10
"""Ahead of the wall clock, one part in so many of the time that passes is used to get back to it."""

STEP_US: Final = 1_000_000
"""From this much on, a step forwards moves the leases: below it, what is measured is how long a process was off its
processor between two readings, and no lease is that short."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE: Final = Path("/proc/self/ns/time")


@dataclass(frozen=True, slots=True)
class MachineClock:
    """The clocks of the machine, as a process reads them."""

    wall_us: Callable[[], int]
    """Microseconds since the epoch; may step."""
    ticks_us: Callable[[], int] | None = None
    """Microseconds since some moment that `counter` names; they never go back. None where there are none."""
    counter: str = ""
    """Ticks of the same counter can be compared; those of no name with nothing."""

    def read(self) -> tuple[int, int, str]:
        """Wall clock, ticks, and whose ticks they are."""
        return (self.wall_us(), 0 if self.ticks_us is None else self.ticks_us(), self.counter)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a write has left: the store's time, and what the machine's clocks said at that moment."""

    at: int
    wall: int
    ticks: int
    counter: str


@dataclass(frozen=True, slots=True)
class Moment:
    """The store's time, and the mark that a write at that time leaves."""

    now: int
    mark: Mark
    stepped_us: int
    """How far the wall clock has stepped forwards since the mark before; 0 where nobody can tell."""

    @property
    def ahead_us(self) -> int:
        """How far the store's time is ahead of the machine's wall clock."""
        return self.now - self.mark.wall


def moment(mark: Mark, wall: int, ticks: int, counter: str) -> Moment:
    """The time, by a mark and by what the machine's clocks say now."""
    counted = counter != "" and counter == mark.counter and ticks >= mark.ticks
    passed = ticks - mark.ticks if counted else max(wall - mark.wall, 0)
    settled = min(max(mark.at - mark.wall, 0), passed // SLEW)
    gone_on = mark.at + passed - settled
    now = max(wall, gone_on)
    return Moment(now, Mark(now, wall, ticks, counter), now - gone_on if counted else 0)


def look(reader: Reader, clock: MachineClock) -> Moment:
    """The time now, for who only reads."""
    return moment(Mark(*reader.row("clock")), *clock.read())


def begin(tx: Transaction, clock: MachineClock) -> Moment:
    """The time of a transaction; the first thing it does, before it compares a lease with anything."""
    found = look(tx, clock)
    if found.stepped_us >= STEP_US:
        tx.run("move_leases", step=found.stepped_us)
    return found


def leave(tx: Transaction, mark: Mark) -> None:
    """Leave the mark of a transaction that has written; the last thing it does."""
    tx.run("set_clock", at=mark.at, wall=mark.wall, ticks=mark.ticks, counter=mark.counter)


@cache
def machine_clock() -> MachineClock:
    """This machine's. On Linux the ticks of all processes of one boot are the same; elsewhere nobody says which boot
    they belong to, and the wall clock has to do."""
    return MachineClock(_wall_us, _ticks_us, _boot())


def _wall_us() -> int:
    return time.time_ns() // 1000


def _ticks_us() -> int:
    return time.monotonic_ns() // 1000


def _boot() -> str:
    """The name of this boot, with that of the time namespace, in which the ticks may be other ones; "" without one."""
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot} {TIME_NAMESPACE.readlink()}"
    except OSError:  # a kernel that has no such namespaces
        return boot
