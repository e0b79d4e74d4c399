"""Seeds: lives of whole systems, in which nothing may happen that a rule forbids."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from perdure.testing.simulation import StoreKind, simulate
from perdure.testing.simulation.orders import Theme

MEMORY = 200
SQLITE = 30
MEMORY_A_TEST = 20
SQLITE_A_TEST = 5


@dataclass(frozen=True, slots=True)
class Shown:
    """A seed that shows a fault which was there once, whenever somebody brings it back. When the generator changes, its
    seeds mean other worlds: `make prove` finds new ones, and each of these faults has a test by itself as well."""

    store: StoreKind
    seed: int
    what: str
    theme: Theme | None = None

    def __str__(self) -> str:
        return f"{self.store} {self.seed}"


REGRESSIONS = (
    Shown("memory", 59, "a claim that came after the give-back it was sent before took runs that nobody executed"),
    Shown("memory", 109, "a body whose try was put on disk first began 4.9 s after the last renewal of a 3 s lease"),
    Shown("memory", 8, "a body ran attempts + 2 times: its dead worker had been in the super-step after the disk's"),
    Shown("memory", 97, "a failed run was sent on from a state of its own, and undid what later runs had added"),
    Shown("memory", 59, "a time-out fell between a record and its return: a replay, which finds the record, diverged"),
    Shown(
        "memory",
        648,
        "an execution whose run its own worker had claimed again was told nothing, and parked without end",
    ),
    Shown(
        "memory",
        1121,
        "a parking, sent again since its answer was lost, was taken for one that a cancellation had refused",
        Theme.BOTH,
    ),
    Shown("memory", 582, "the witness took two times that were rounded for a deadline a microsecond early"),
    Shown("memory", 0, "a run whose cancellation had won over its end ended without undoing", Theme.EFFECTS),
    Shown("memory", 4, "an effect's body began after a pause between its intent and its first line", Theme.EFFECTS),
    Shown("memory", 6, "what a person had found out was recorded as done a second time, and refused", Theme.EFFECTS),
    Shown("memory", 101, "a run that was held while it undid something was cancelled and left it so", Theme.EFFECTS),
    Shown("memory", 424, "a second bill said that it was the first: both claims had one fence", Theme.OUTBOX),
    Shown("memory", 180, "a relay never asked for what a claim without an answer had given it", Theme.OUTBOX),
    Shown("memory", 2, "a run that was told to stop at a budget went on, and was never parked", Theme.BUDGETS),
    Shown("sqlite", 59, "the first of these, over SQLite"),
)


def lived_well(store: StoreKind, seeds: range, theme: Theme | None = None) -> None:
    for seed in seeds:
        report = simulate(seed, store=store, theme=theme)
        assert report.ok, str(report)


@pytest.mark.parametrize("first", range(0, MEMORY, MEMORY_A_TEST))
def test_no_rule_is_broken_over_the_store_in_memory(first: int) -> None:
    lived_well("memory", range(first, first + MEMORY_A_TEST))


@pytest.mark.parametrize("first", range(0, SQLITE, SQLITE_A_TEST))
def test_no_rule_is_broken_over_sqlite(first: int) -> None:
    lived_well("sqlite", range(first, first + SQLITE_A_TEST))


@pytest.mark.parametrize("shown", REGRESSIONS, ids=str)
def test_what_a_seed_once_showed_it_shows_no_more(shown: Shown) -> None:
    lived_well(shown.store, range(shown.seed, shown.seed + 1), shown.theme)
