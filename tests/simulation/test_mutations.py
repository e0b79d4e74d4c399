"""The checker is checked: what is broken on purpose shows. Here are those mutations that show within a few seeds;
`make prove` has all of them, and gives each 2,000."""

from __future__ import annotations

import pytest

from perdure.testing.simulation import StoreKind
from tests.simulation.breaking import Mutation
from tests.simulation.mutations import MUTATIONS, caught

SEEDS_MAX = 60

MUTATIONS_MIN = 60

QUICK: tuple[tuple[StoreKind, str], ...] = (
    ("memory", "A commit is reported durable before it is flushed"),
    ("memory", "A start is answered before it is on disk"),
    ("memory", "Batches are flushed newest first"),
    ("memory", "A try that may not be the first is not recorded ahead of its body"),
    ("memory", 'A step with durability="sync" returns before its record is on disk'),
    ("memory", "Trust in the lease never lapses"),
    ("memory", "The keeper takes nothing over"),
    ("memory", "A super-step that has ended still acts"),
    ("memory", "An agent gets what a body returned, not what was recorded"),
    ("memory", "A recorded step is not found again"),
    ("memory", "A run's end wakes whoever waits and is not committed"),
    ("memory", "A worker has as many slots as there are runs"),
    ("memory", "A body where a dead worker may have been is not written ahead"),
    ("memory", "A commit of a worker that is dead is taken"),
    ("memory", "A batch that comes again is not recognised"),
    ("memory", "A batch is acknowledged and not written"),
    ("memory", "A claim does not raise the fence"),
    ("memory", "A take-over is not counted"),
    ("memory", "A death is no strike"),
    ("memory", "A renewal revives a dead worker"),
    ("memory", "A claim takes what is not due"),
    ("memory", "A claim comes without the records"),
    ("memory", "A thread's next run is forgotten"),
    ("memory", "A start key is forgotten"),
    ("memory", "Sending on forgets successes too"),
    ("memory", "A run that is handed back goes to the end of the queue"),
    ("sqlite", "A claim does not raise the fence"),
    ("sqlite", "A take-over is not counted"),
    ("sqlite", "A renewal revives a dead worker"),
    ("sqlite", "An operation is acknowledged and undone"),
)


def mutation(store: StoreKind, name: str) -> Mutation:
    return next(each for each in MUTATIONS if (each.store, each.name) == (store, name))


@pytest.mark.parametrize(("store", "name"), QUICK)
def test_it_shows_within_a_few_seeds_when(store: StoreKind, name: str) -> None:
    assert caught(mutation(store, name), SEEDS_MAX) is not None, f"{name}: no seed shows it; the checker has a hole"


def test_there_are_many_mutations_on_both_stores_and_no_two_have_one_name() -> None:
    names = [(each.store, each.name) for each in MUTATIONS]
    assert len(names) == len(set(names)) >= MUTATIONS_MIN
    assert sum(store == "sqlite" for store, _ in names) >= 4
