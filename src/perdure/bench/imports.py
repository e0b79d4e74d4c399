"""Start-up: whole processes, from nothing to their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from perdure.bench.goals import Reading
from perdure.bench.laps import Laps

PROCESSES: Final = 7


def start_up_ms(*, processes: int = PROCESSES) -> list[Reading]:
    """P10: a process that imports perdure, and one that prints its help, beside one that does nothing."""
    commands: dict[str, Sequence[str]] = {
        "raw": ("-c", "pass"),
        "P10 import": ("-c", "import perdure"),
        "P10 help": ("-m", "perdure", "--help"),
    }
    laps = {name: Laps() for name in commands}
    for _ in range(processes):
        for name, arguments in commands.items():
            with laps[name]:
                subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    raw = laps.pop("raw").median
    return [Reading(row, found.median, raw) for row, found in laps.items()]
