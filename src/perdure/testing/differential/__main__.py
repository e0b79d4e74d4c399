"""`python -m perdure.testing.differential --seeds 1000 --stores memory,sqlite,postgresql://user@host/database`

Tells the programs of so many seeds to every store, and prints each difference with a short program that shows it. Exits
with 1 if there was one. A Postgres database gets a schema for the purpose, which is dropped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from perdure.errors import UsageError
from perdure.testing.differential.comparing import Difference
from perdure.testing.differential.grounds import StoreGround, ground_of
from perdure.testing.differential.search import LEVELS, Level, differ, shortened

PROGRESS_S = 5.0
SHOWN_MAX = 5
"""Differences after which it stops: they tend to be the same one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    given = _parser().parse_args(arguments)
    logging.getLogger("perdure").setLevel(logging.CRITICAL)  # agents fail on purpose
    try:
        grounds = [ground_of(text) for text in given.stores.split(",")]
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    return asyncio.run(
        search(LEVELS[given.level], range(given.first, given.first + given.seeds), grounds, given.stores)
    )


async def search(level: Level, seeds: range, grounds: Sequence[StoreGround], stores: str) -> int:
    """Tell every seed's program to every store; 1 if they differ, else 0."""
    found = 0
    progress = Progress(level, len(seeds))
    try:
        for seed in seeds:
            difference = await differ(level, seed, grounds)
            progress.one_more()
            if difference is not None:
                found += 1
                again = f"--seeds 1 --first {seed} --level {level.name} --stores '{stores}'"
                print(report(seed, difference, await shortened(level, difference, grounds), again))
            if found == SHOWN_MAX:
                break
    finally:
        for ground in grounds:
            await ground.close()
    progress.end(found)
    return 1 if found else 0


def report(seed: int, found: Difference[Any], short: Difference[Any], again: str) -> str:
    """What is printed of a difference."""
    return "\n".join(
        [
            f"seed {seed}: the stores differ at operation {found.number} of {len(found.program)}, {found.operation}",
            *found.parted(),
            f"again: python -m perdure.testing.differential {again}",
            f"a short program that shows it, of {len(short.program)} operation(s):",
            short.described(),
            "",
        ]
    )


class Progress:
    """A line every few seconds, and one at the end."""

    def __init__(self, level: Level, seeds: int) -> None:
        self._level = level
        self._seeds = seeds
        self._done = 0
        self._began = self._told = time.monotonic()

    def one_more(self) -> None:
        self._done += 1
        if time.monotonic() - self._told >= PROGRESS_S:
            self._told = time.monotonic()
            print(f"{self._done} of {self._seeds} seeds, {self._rate():.1f} a second", file=sys.stderr)

    def end(self, found: int) -> None:
        differ = "no difference" if not found else f"{found} differ"
        print(f"{self._done} seeds of {self._level.length} operations ({self._level.name}): {differ}; "
              f"{self._rate():.1f} seeds a second")  # fmt: skip

    def _rate(self) -> float:
        return self._done / max(time.monotonic() - self._began, 1e-9)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perdure.testing.differential", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many programs")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--stores", default="memory,sqlite", help="memory, sqlite, postgresql://…, with commas between")
    parser.add_argument("--level", choices=sorted(LEVELS), default="store", help="a store's verbs, or an app on it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
