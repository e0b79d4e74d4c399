"""The second scene: waiting for many model calls at once, as tasks and as threads, measured.

Each measurement runs in a fresh process. All calls are begun first and held at a gate, so that they are truly there
at the same time; then each waits its 50 ms, as a call to a model would. Resident memory is what the process really
came to use; reserved memory is the address space it asked for, where a thread's stack counts whole although most of
it is never touched.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

CALL_S: Final = 0.05
COUNTS: Final = (500, 10_000)
KINDS: Final = ("tasks", "threads")
MEASURE_TIMEOUT_S: Final = 120
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: `wall_s` from the first call's begin to the last one's end, memory in bytes above the empty
    process."""

    kind: str
    count: int
    begun: int
    """Calls that could be begun; fewer than `count` where the system allows no more threads."""
    wall_s: float
    resident: int
    reserved: int | None
    """None where the system does not say."""


async def in_tasks(count: int) -> int:
    """All calls as tasks of one loop, one thread."""
    gate = asyncio.Event()

    async def call() -> None:
        await gate.wait()
        await asyncio.sleep(CALL_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(call())
        await asyncio.sleep(0)
        gate.set()
    return count


def in_threads(count: int) -> int:
    """Each call in a thread of its own; returns how many the system allowed."""
    # One passes the gate and opens it for the next: an Event would wake all at once, and at thousands of threads
    # their fight for the interpreter would take longer than everything that is measured here.
    gate = threading.Lock()
    gate.acquire()

    def call() -> None:
        with gate:
            pass
        time.sleep(CALL_S)

    threads: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=call)
            thread.start()
            threads.append(thread)
    except (RuntimeError, MemoryError):
        pass  # The system's limit is itself a result: `begun` tells it.
    gate.release()
    for thread in threads:
        thread.join()
    return len(threads)


def measure(kind: str, count: int) -> Measured:
    """Measure in this process, which must be a fresh one."""
    resident_before, reserved_before = memory(peak=False)
    begun_at = time.perf_counter()
    begun = asyncio.run(in_tasks(count)) if kind == "tasks" else in_threads(count)
    wall_s = time.perf_counter() - begun_at
    resident, reserved = memory(peak=True)
    grown = None if reserved is None or reserved_before is None else reserved - reserved_before
    return Measured(kind, count, begun, wall_s, resident - resident_before, grown)


def memory(*, peak: bool) -> tuple[int, int | None]:
    """Resident and reserved bytes of this process, now or at their highest."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        names = ("VmHWM", "VmPeak") if peak else ("VmRSS", "VmSize")
        resident, reserved = (int(lines[name].split()[0]) * 1024 for name in names)
        return resident, reserved
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None


def measure_apart(kind: str, count: int) -> Measured:
    """The same in a fresh process."""
    command = [sys.executable, "-m", "perdure.demo.threads", kind, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MEASURE_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"measuring {count} {kind} failed ({done.returncode}): {done.stderr.strip()[-500:]}")
    return Measured(**json.loads(done.stdout))


def measurements() -> Iterator[Measured]:
    """All of them, one after the other."""
    for count in COUNTS:
        for kind in KINDS:
            yield measure_apart(kind, count)


def show(console: Console) -> list[Measured]:
    """Measure, and print the table as it fills and what it says."""
    console.print(f"Simulated model calls of {CALL_S * 1000:.0f} ms, all there at once; each row in a fresh process.\n")
    rows: list[Measured] = []
    for row in measurements():
        console.print(f"  measured {row.count:,} {row.kind}", style="dim", highlight=False)
        rows.append(row)
    console.print()
    console.print(table(rows))
    console.print(sentence(rows), highlight=False)
    return rows


def table(rows: list[Measured]) -> Table:
    """One row a measurement."""
    made = Table("calls at once", "as", "wall time", "resident", "reserved", "a call, resident", pad_edge=False)
    for column in (0, 2, 3, 4, 5):
        made.columns[column].justify = "right"
    for row in rows:
        calls = f"{row.count:,}" if row.begun == row.count else f"{row.begun:,} of {row.count:,}"
        reserved = "not told" if row.reserved is None else mib(row.reserved)
        each = f"{row.resident / max(1, row.begun) / 1024:.1f} KiB"
        made.add_row(calls, row.kind, f"{row.wall_s:.2f} s", mib(row.resident), reserved, each)
    return made


def mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB" if size < 10_000 * MIB else f"{size / MIB / 1024:,.0f} GiB"


def sentence(rows: list[Measured]) -> str:
    """What the largest count shows, in a sentence."""
    largest = max(row.count for row in rows)
    tasks, threads = (next(row for row in rows if (row.kind, row.count) == (kind, largest)) for kind in KINDS)
    if threads.begun < largest:
        return f"{largest:,} calls wait easily as tasks; as threads this system stopped at {threads.begun:,}."
    slower, larger = threads.wall_s / tasks.wall_s, threads.resident / max(1, tasks.resident)
    return (
        f"Waiting for {largest:,} calls costs threads {slower:.0f} times the time and {larger:.0f} times the memory "
        "of tasks, which is why agents and steps wait as tasks, and only what computes gets a thread or a process."
    )


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1], int(sys.argv[2])))))
