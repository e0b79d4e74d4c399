"""The checker is checked: everything that is broken here, one at a time, must show in some seed.

    python -m tests.simulation.mutations            # all of them, 2,000 seeds each at most
    python -m tests.simulation.mutations claim      # those whose names say so

A mutation that survives is a hole in the checker.
"""

from __future__ import annotations

import logging
import re
import sys
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.testing.simulation import simulate
from tests.simulation.breaking import Mutation
from tests.simulation.claim_mutations import CLAIMS
from tests.simulation.effect_mutations import EFFECTS
from tests.simulation.outbox_mutations import OUTBOX
from tests.simulation.ownership_mutations import OWNERSHIP
from tests.simulation.parking_mutations import PARKING
from tests.simulation.runtime_mutations import RUNTIME
from tests.simulation.sqlite_mutations import SQLITE
from tests.simulation.thread_mutations import THREADS
from tests.simulation.waiting_mutations import WAITING

MUTATIONS = (*RUNTIME, *PARKING, *OWNERSHIP, *CLAIMS, *THREADS, *WAITING, *EFFECTS, *OUTBOX, *SQLITE)

SEEDS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Caught:
    """A mutation that showed."""

    seed: int
    violation: str
    """The first that is of the expected kind."""


def caught(mutation: Mutation, seeds: Iterable[int] = range(SEEDS_MAX)) -> Caught | None:
    """The first seed that shows the mutation by the kind of violation that is expected of it; None if none does."""
    for seed in seeds:
        with mutation.breaking():
            violations = simulate(seed, store=mutation.store, theme=mutation.theme).violations
        for violation in violations:
            if re.search(mutation.expected, violation):
                return Caught(seed, violation)
    return None


def main(words: list[str]) -> int:
    """Print what became of each mutation; 1 if one survived."""
    logging.disable(logging.CRITICAL)
    chosen = [each for each in MUTATIONS if all(word in f"{each.store} {each.name}" for word in words)]
    survived = 0
    for mutation in chosen:
        began = time.monotonic()
        found = caught(mutation)
        survived += found is None
        where = "SURVIVED" if found is None else f"seed {found.seed}"
        print(f"{mutation.store:<6}  {mutation.name:<71}  {where:>9}  {time.monotonic() - began:>5.0f} s")
        if found is not None:
            print(f"        {textwrap.shorten(found.violation, 92, placeholder=' …')}", flush=True)
    print(f"{len(chosen)} mutations, {survived or 'none'} of them survived {SEEDS_MAX:,} seeds")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
