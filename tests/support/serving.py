"""`python -m tests.support.serving`: a worker process of the crash tests.

What `app.serve()` does, with every telemetry event in the side log. Settings come as JSON in `$PERDURE_TEST_SETTINGS`.
`$PERDURE_TEST_AGENTS` names the module of the app, if it is another than `agents`; its `prepare` is called before.
`$PERDURE_TEST_CLOCK_S` moves this process's wall clocks by that many seconds; `$PERDURE_TEST_MACHINE_CLOCK` names a
file that says how far off the machine's clock is.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path

from perdure import clock, telemetry
from tests.support.sidelog import say


def move_clocks(seconds: float) -> None:
    """Put this process's wall clocks ahead (or behind). The clock of a SQLite store is the machine's, which all
    processes share; it stays where it is, as Postgres's does."""
    wall, wall_ns = time.time, time.time_ns
    time.time = lambda: wall() + seconds
    clock.SystemClock.wall_us = lambda self: wall_ns() // 1000 + int(seconds * 1_000_000)  # type: ignore[method-assign]
    if not os.environ["PERDURE_STORE"].startswith("sqlite"):
        time.time_ns = lambda: wall_ns() + int(seconds * 1_000_000_000)


def follow_clock(path: Path) -> None:
    """Let this process's wall clocks be off by as many seconds as that file says at the moment: a machine whose clock a
    test sets. All processes that follow the same file are on the same machine."""
    wall, wall_ns = time.time, time.time_ns

    def off_s() -> float:
        return float(path.read_text())

    time.time = lambda: wall() + off_s()
    time.time_ns = lambda: wall_ns() + int(off_s() * 1_000_000_000)


def main() -> None:
    """Serve until signalled."""
    move_clocks(float(os.environ.get("PERDURE_TEST_CLOCK_S", "0")))
    if machine := os.environ.get("PERDURE_TEST_MACHINE_CLOCK"):
        follow_clock(Path(machine))
    from tests.support.agents import witness

    agents = importlib.import_module(os.environ.get("PERDURE_TEST_AGENTS", "tests.support.agents"))
    getattr(agents, "prepare", lambda: None)()
    telemetry.subscribe(witness)
    agents.app.serve(**json.loads(os.environ.get("PERDURE_TEST_SETTINGS", "{}")))
    say("ended")


if __name__ == "__main__":
    main()
