"""A seed repeats its story to the letter: that is what makes what it shows worth anything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure.testing.simulation import StoreKind, simulate

DIGESTS = """
from perdure.testing.simulation import simulate
print(*(simulate(seed, store="{store}").digest for seed in range({seeds})))
"""


def digests(store: StoreKind, seeds: int, hash_seed: str) -> list[int]:
    """The stories of some seeds, as a process of its own tells them."""
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS.format(store=store, seeds=seeds)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize(("store", "seeds"), [("memory", 8), ("sqlite", 3)])
def test_a_seed_tells_the_same_story_in_every_process(store: StoreKind, seeds: int) -> None:
    told = digests(store, seeds, "1")
    assert len(told) == seeds
    assert digests(store, seeds, "2") == told


def test_a_seed_tells_the_same_story_twice_in_one_process() -> None:
    assert simulate(5).story == simulate(5).story


def test_seeds_differ() -> None:
    assert len({simulate(seed).digest for seed in range(5)}) == 5
