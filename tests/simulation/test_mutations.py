"""The checker is checked: what is broken on purpose shows. Here are those mutations that show within a few seeds;
`make prove` has all of them, and gives each 2,000."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import perdure
from perdure.testing.simulation import StoreKind
from tests.simulation.breaking import Mutation
from tests.simulation.mutations import MUTATIONS, caught

SEEDS_MAX = 60

MUTATIONS_MIN = 200

QUICK: tuple[tuple[StoreKind, str, int], ...] = (
    ("memory", "A commit is reported durable before it is flushed", 0),
    ("memory", "A start is answered before it is on disk", 0),
    ("memory", "Batches are flushed newest first", 0),
    ("memory", "A try that may not be the first is not recorded ahead of its body", 0),
    ("memory", 'A step with durability="sync" returns before its record is on disk', 4),
    ("memory", "Trust in the lease never lapses", 3),
    ("memory", "The keeper takes nothing over", 0),
    ("memory", "A super-step that has ended still acts", 5),
    ("memory", "An agent gets what a body returned, not what was recorded", 0),
    ("memory", "A recorded step is not found again", 0),
    ("memory", "A run's end wakes whoever waits and is not committed", 0),
    ("memory", "A worker has as many slots as there are runs", 0),
    ("memory", "A body where a dead worker may have been is not written ahead", 8),
    ("memory", "A commit of a worker that is dead is taken", 8),
    ("memory", "A batch that comes again is not recognised", 4),
    ("memory", "A batch is acknowledged and not written", 0),
    ("memory", "A claim does not raise the fence", 0),
    ("memory", "A take-over is not counted", 0),
    ("memory", "A death is no strike", 0),
    ("memory", "A renewal revives a dead worker", 0),
    ("memory", "A claim takes what is not due", 0),
    ("memory", "A claim comes without the records", 0),
    ("memory", "A thread's next run is forgotten", 0),
    ("memory", "A start key is forgotten", 0),
    ("memory", "Sending on forgets successes too", 0),
    ("memory", "A run that is handed back goes to the end of the queue", 5),
    ("memory", "A time has come by the worker's clock", 158),
    ("memory", "A branch that is unwound withdraws its wait", 23),
    ("memory", "A run is parked while a body runs", 2),
    ("memory", "A run that only waits is not parked", 14),
    ("memory", "A worker fails whenever it looks, and goes on", 0),
    ("memory", "An interruption does not wait for the replay", 19),
    ("memory", "What has no record does not wait for an interruption", 7),
    ("memory", "The youngest message is received first", 112),
    ("memory", "A child has more time than its parent", 14),
    ("memory", "A fork runs on from a step too late", 3),
    ("memory", "A run is parked though what it waits for has come", 10),
    ("memory", "An answer wakes nobody", 0),
    ("memory", "A run's end wakes nobody", 0),
    ("memory", "Room in a mailbox wakes nobody", 32),
    ("memory", "A message wakes nobody", 2),
    ("memory", "A record does not end its wait", 2),
    ("memory", "A super-step's end leaves its waits", 0),
    ("memory", "A question that is asked again is another one", 7),
    ("memory", "An expired question takes an answer", 7),
    ("memory", "A message that was received stays", 2),
    ("memory", "A cancelled run completes", 0),
    ("memory", "A run is parked and does not know that it is cancelled", 2),
    ("memory", "A claim does not say that the run is cancelled", 0),
    ("memory", "A cancellation does not go down the tree", 0),
    ("memory", "An effect is dispatched before its intent is on disk", 0),
    ("memory", "An intent that a cancellation has refused is dispatched all the same", 4),
    ("memory", "An effect that waited for its intent does not ask for trust again", 4),
    ("memory", "An intent that was found is taken for what did not happen", 2),
    ("memory", "A new key is made for each try", 0),
    ("memory", "An effect's outcome is recorded twice", 0),
    ("memory", "What was done first is undone first", 0),
    ("memory", "What is undone does not wait for what is in flight", 2),
    ("memory", "Nothing is ever undone", 0),
    ("memory", "An intent is written whoever owns the run", 6),
    ("memory", "The audit leaves an outcome out", 0),
    ("memory", "A delivery is said to be delivered before its sink has taken it", 0),
    ("memory", "A relay looks only when it hears a hint", 2),
    ("memory", "A relay does not say what it has in hand", 0),
    ("memory", "A relay takes all suspects at once", 99),
    ("memory", "A bill counts from the beginning", 0),
    ("memory", "A delivery is not written with its record", 0),
    ("memory", "A dead delivery holds up its lane", 2),
    ("memory", "A worker that is gone keeps its deliveries", 0),
    ("memory", "A cancelled run has no bill", 2),
    ("memory", "A try that has failed has used nothing", 0),
    ("memory", "A step reserves nothing", 0),
    ("memory", "A try that its code has cancelled keeps what it has reserved", 9),
    ("memory", "A run asks for more though only what is in flight is in its way", 0),
    ("memory", "What is in flight does not count", 0),
    ("memory", "What a lost claim had reserved is free again", 0),
    ("memory", "Setting a budget wakes nobody", 0),
    ("memory", "A question is asked about a budget that was set since", 0),
    ("sqlite", "A claim does not raise the fence", 0),
    ("sqlite", "A take-over is not counted", 0),
    ("sqlite", "A renewal revives a dead worker", 0),
    ("sqlite", "An operation is acknowledged and undone", 0),
    ("sqlite", "An answer wakes nobody", 0),
    ("sqlite", "A message that was received stays", 2),
    ("sqlite", "A cancellation wakes nobody", 2),
    ("sqlite", "A lane's next is not made ready", 0),
    ("sqlite", "What was reserved is not released", 0),
)
"""What is broken, over which store, and the seed that shows it, which is tried first."""


def mutation(store: StoreKind, name: str) -> Mutation:
    return next(each for each in MUTATIONS if (each.store, each.name) == (store, name))


@pytest.mark.parametrize(("store", "name", "seen"), QUICK)
def test_it_shows_within_a_few_seeds_when(store: StoreKind, name: str, seen: int) -> None:
    found = caught(mutation(store, name), (seen, *range(SEEDS_MAX)))
    assert found is not None, f"{name}: no seed shows it; the checker has a hole"


def test_no_mutation_reaches_for_a_private_name_that_is_gone() -> None:
    """It would break the run by an AttributeError of its own, and be caught for that."""
    sources = "\n".join(path.read_text() for path in Path(perdure.__file__).parent.rglob("*.py"))
    known = set(re.findall(r"\b_[a-z]\w*", sources))
    for path in Path(__file__).parent.glob("*_mutations.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        reached = {node.attr for node in nodes if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr)}
        assert reached - known - {"_replace"} == set(), path.name


def test_there_are_many_mutations_on_both_stores_and_no_two_have_one_name() -> None:
    names = [(each.store, each.name) for each in MUTATIONS]
    assert len(names) == len(set(names)) >= MUTATIONS_MIN
    assert sum(store == "sqlite" for store, _ in names) >= 4
