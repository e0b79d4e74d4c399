"""`python -m perdure.testing.simulation`: live through seeds, and say what was wrong with those that were.

Exit code 1 if a seed showed a violation; each prints the line that repeats it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

from perdure.testing.simulation.orders import Theme
from perdure.testing.simulation.report import Report
from perdure.testing.simulation.simulation import simulate

FAILURES_MAX = 10
PROGRESS_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(argv)
    if not options.log:
        logging.disable(logging.CRITICAL)
    theme = None if options.about is None else Theme(options.about)
    if options.seed is not None:
        return _one(options.seed, options.store, theme, story=options.story)
    return _many(range(options.first, options.first + options.seeds), options.store, theme)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perdure.testing.simulation",
        description="Live through simulated worlds: real workers, clients and an operator, bad weather, virtual time.",
    )
    parser.add_argument("--seeds", type=int, default=500, help="how many (default 500)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory", help="the store underneath")
    parser.add_argument("--about", choices=[*Theme], help="what all of the worlds are about (else each draws it)")
    parser.add_argument("--story", action="store_true", help="with --seed: tell all that happened, in order")
    parser.add_argument("--log", action="store_true", help="show the runtime's own log")
    return parser


def _one(seed: int, store: str, theme: Theme | None, *, story: bool) -> int:
    report = simulate(seed, store="sqlite" if store == "sqlite" else "memory", theme=theme)
    if story:
        print("\n".join(report.story))
    print(report)
    print(
        f"  {report.turns:,} turns, {report.requests:,} requests in {report.seconds:.1f} s; story {report.digest:08x}"
    )
    _summary([report.faults], [report.events], runs=report.runs, bodies=report.bodies, repeated=report.repeated)
    return 0 if report.ok else 1


def _many(seeds: range, store: str, theme: Theme | None) -> int:
    began = told = time.monotonic()
    bad: list[Report] = []
    faults: list[Counter[str]] = []
    events: list[Counter[str]] = []
    runs = bodies = repeated = done = 0
    for seed in seeds:
        report = simulate(seed, store="sqlite" if store == "sqlite" else "memory", theme=theme)
        done += 1
        faults.append(report.faults)
        events.append(report.events)
        runs, bodies, repeated = runs + report.runs, bodies + report.bodies, repeated + report.repeated
        if not report.ok:
            bad.append(report)
            print(report)
        if len(bad) >= FAILURES_MAX:
            break
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            _progress(done, len(seeds), told - began)
    seconds = time.monotonic() - began
    print(f"{done} seeds on {store} in {seconds:.1f} s ({done / seconds:.0f} seeds/s): {len(bad) or 'none'} went wrong")
    _summary(faults, events, runs=runs, bodies=bodies, repeated=repeated)
    return 1 if bad else 0


def _progress(done: int, of: int, seconds: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} seeds, {done / seconds:.0f} seeds/s ", end="", file=sys.stderr, flush=True)


def _summary(faults: list[Counter[str]], events: list[Counter[str]], *, runs: int, bodies: int, repeated: int) -> None:
    total = sum(faults, Counter[str]())
    print(f"  {runs:,} runs, {bodies:,} bodies of steps, {repeated:,} of them again; {total.total():,} faults:")
    _counted(total)
    print("  and what happened under them:")
    _counted(sum(events, Counter[str]()))


def _counted(total: Counter[str]) -> None:
    for what, count in sorted(total.items(), key=lambda pair: -pair[1]):
        print(f"  {count:>9,}  {what}")


if __name__ == "__main__":
    sys.exit(main())
