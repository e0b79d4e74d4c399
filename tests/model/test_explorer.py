"""The explorer, on models small enough to be seen through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from perdure.testing.model import ENDS, Explored, Invariant, Label, Refuted, TooManyStates, explore


@dataclass(frozen=True)
class Graph:
    """Numbers, and where one may go from each. A negative target is reached by a fault."""

    edges: dict[int, list[int]]
    good: frozenset[int] = frozenset()
    invariants: Sequence[Invariant[int]] = field(default=())

    def initial(self) -> Iterable[int]:
        yield 0

    def moves(self, state: int) -> Iterable[tuple[Label, int]]:
        for target in self.edges.get(state, []):
            yield Label("walker", f"goes to {abs(target)}", fault=target < 0), abs(target)

    def is_good_end(self, state: int) -> bool:
        return state in self.good

    def describe(self, before: int | None, after: int) -> str:
        return f"it stands at {after}"


DIAMOND = {0: [1, 2], 1: [3], 2: [3], 3: [4]}


def never(number: int) -> Invariant[int]:
    return Invariant("never", f"It never stands at {number}.", state=lambda state: state != number)


def refuted(model: Graph) -> Refuted:
    found = explore(model)
    assert isinstance(found, Refuted)
    return found


def test_every_state_is_seen_once() -> None:
    found = explore(Graph(DIAMOND, good=frozenset({4})))
    assert isinstance(found, Explored)
    assert (found.states, found.moves, found.depth) == (5, 5, 3)
    assert found.deeds == {f"goes to {number}" for number in (1, 2, 3, 4)}


def test_the_trace_is_a_shortest_one() -> None:
    detour = {0: [1, 5], 1: [2], 2: [9], 5: [9]}
    found = refuted(Graph(detour, invariants=[never(9)]))
    assert [event.news for event in found.trace] == ["it stands at 0", "it stands at 5", "it stands at 9"]


def test_a_beginning_may_be_wrong() -> None:
    assert len(refuted(Graph({}, invariants=[never(0)])).trace) == 1


def test_a_move_is_tested_even_between_states_that_are_known() -> None:
    back = {0: [1], 1: [2], 2: [-1]}
    onward: Invariant[int] = Invariant("onward", "It only goes on.", move=lambda before, after: after > before)
    found = refuted(Graph(back, good=frozenset({2}), invariants=[onward]))
    assert (found.invariant, found.trace[-1].news) == ("onward", "it stands at 1")


def test_a_dead_end_that_is_no_good_end_is_found() -> None:
    found = refuted(Graph(DIAMOND, good=frozenset({3})))
    assert (found.invariant, len(found.trace)) == (ENDS, 4)
    assert "stands still" in found.remark


def test_a_circle_of_calm_moves_is_found() -> None:
    found = refuted(Graph({0: [1], 1: [2, 3], 2: [1]}, good=frozenset({3})))
    assert (found.invariant, found.trace[-1].news) == (ENDS, "it stands at 1")
    assert "circle" in found.remark


def test_a_circle_through_a_fault_is_none() -> None:
    assert isinstance(explore(Graph({0: [1], 1: [2, 3], 2: [-1, 3]}, good=frozenset({3}))), Explored)


def test_a_fault_does_not_count_as_a_way_out() -> None:
    found = refuted(Graph({0: [1], 1: [-2]}, good=frozenset({2})))
    assert (found.invariant, found.trace[-1].news) == (ENDS, "it stands at 1")


def test_a_model_without_bounds_proves_nothing() -> None:
    endless = Graph({number: [number + 1] for number in range(200)}, good=frozenset({200}))
    with pytest.raises(TooManyStates):
        explore(endless, states_max=100)


def test_a_refutation_reads_as_a_numbered_story() -> None:
    found = refuted(Graph({0: [-1], 1: [2]}, invariants=[never(2)]))
    assert str(found).splitlines() == [
        "Broken: It never stands at 2. (never)",
        "",
        "  1           it begins",
        "                = it stands at 0",
        "  2 ! walker  goes to 1",
        "                = it stands at 1",
        "  3   walker  goes to 2",
        "                = it stands at 2",
    ]
