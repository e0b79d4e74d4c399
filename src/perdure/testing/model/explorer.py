"""An explicit-state model checker: every state that any interleaving can reach, breadth first.

A model is a value with initial states, moves, invariants and a notion of a good end. States are frozen and hashable;
two equal states are one. The explorer visits each once, tests every invariant on every state and every move, and ends
in one of two ways: `Explored`, with the size of what was seen, or `Refuted`, with a shortest trace to what went wrong.
Because it is breadth first no trace is shorter; because it is exhaustive, silence means that there is none at all,
within the model's own bounds.

**Liveness.** Moves are of two kinds. A *fault* is something the world may do and need not: a crash, a lost answer. The
others are *calm*: they are what happens anyway, in some order. The property `ENDS` says that when faults stop, every
order of calm moves comes to a good end. It is checked on the graph of calm moves alone: it must have no circle, and
a state that has no calm move must be a good end. That asks for no fairness, only that something goes on happening.

The idea is that of TLC and SPIN; the means are a dictionary and a list.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

STATES_MAX: Final = 1_000_000
"""States of one exploration: a minute or two, and a gigabyte or two. A model that grows past it has lost a bound."""

ENDS: Final = "ends"
"""The name of the liveness property among the invariants."""

S = TypeVar("S", bound=Hashable)


class Label(NamedTuple):
    """What a move is called: who does what, and whether it is a fault."""

    actor: str
    what: str
    fault: bool = False


@dataclass(frozen=True, slots=True)
class Invariant(Generic[S]):
    """What must hold: in every state, on every move, or both."""

    name: str
    sentence: str
    state: Callable[[S], bool] | None = None
    move: Callable[[S, S], bool] | None = None


class Model(Protocol[S]):
    """What can be explored."""

    @property
    def invariants(self) -> Sequence[Invariant[S]]:
        """What must hold, in the order in which it is tested."""

    def initial(self) -> Iterable[S]:
        """Where it may begin."""

    def moves(self, state: S) -> Iterable[tuple[Label, S]]:
        """Everything that may happen next, one atomic thing at a time."""

    def is_good_end(self, state: S) -> bool:
        """Whether it is right that nothing more happens here."""

    def describe(self, before: S | None, after: S) -> str:
        """What is new in the state, in a few words; all of it where there is none before."""


class TooManyStates(Exception):
    """The model is larger than the bound: nothing is proved."""


@dataclass(frozen=True, slots=True)
class Explored:
    """Every reachable state was seen, and everything held."""

    states: int
    moves: int
    depth: int
    """The longest of the shortest traces: how far the farthest state is from the beginning."""
    deeds: frozenset[str]
    """What happened somewhere, by the labels: a model in which something never happens proves nothing about it."""


class Event(NamedTuple):
    """One line of a trace: what happened, and what it changed."""

    label: Label
    news: str


@dataclass(frozen=True, slots=True)
class Refuted:
    """An invariant does not hold; the trace is a shortest way to see it."""

    invariant: str
    sentence: str
    trace: tuple[Event, ...]
    states: int
    """How many were seen until then."""
    remark: str = ""
    """What is wrong at the trace's end, where the invariant's sentence does not say it all."""

    def __str__(self) -> str:
        """The trace as a numbered story."""
        width = max((len(event.label.actor) for event in self.trace), default=0)
        lines = [f"Broken: {self.sentence} ({self.invariant})", ""]
        for number, (label, news) in enumerate(self.trace, start=1):
            mark = "!" if label.fault else " "
            lines.append(f"{number:>3} {mark} {label.actor:<{width}}  {label.what}")
            lines += [f"{'':{width + 7}}   = {news}"] if news else []
        return "\n".join([*lines, *(["", self.remark] if self.remark else [])])


@dataclass(slots=True)
class _Graph(Generic[S]):
    """What has been seen: states by number, and how each was reached."""

    numbers: dict[S, int] = field(default_factory=dict)
    states: list[S] = field(default_factory=list)
    parents: list[tuple[int, Label]] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    calm: list[list[int]] = field(default_factory=list)

    def add(self, state: S, parent: int, label: Label) -> int:
        number = len(self.states)
        self.numbers[state] = number
        self.states.append(state)
        self.parents.append((parent, label))
        self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        return number


BEGINNING: Final = Label("", "it begins")


def explore(model: Model[S], *, states_max: int = STATES_MAX) -> Explored | Refuted:
    """See every reachable state, or the shortest way to a broken invariant.

    Raises `TooManyStates` where there are more than `states_max`.
    """
    with _without_collector():
        return _explore(model, states_max)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Everything seen is kept, and nothing of it points in circles: to look for garbage there took a seventh of the
    time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _explore(model: Model[S], states_max: int) -> Explored | Refuted:
    graph: _Graph[S] = _Graph()
    on_state = [each for each in model.invariants if each.state is not None]
    on_move = [each for each in model.invariants if each.move is not None]
    deeds: set[str] = set()
    moves = 0
    for state in model.initial():
        if state not in graph.numbers:
            number = graph.add(state, -1, BEGINNING)
            if (broken := _first_broken(on_state, state)) is not None:
                return _refuted(model, graph, number, broken)
    done = 0
    while done < len(graph.states):
        before = graph.states[done]
        calm: list[int] = []
        for label, after in model.moves(before):
            moves += 1
            deeds.add(label.what)
            known = graph.numbers.get(after)
            for invariant in on_move:
                assert invariant.move is not None
                if not invariant.move(before, after):
                    return _refuted(model, graph, graph.add(after, done, label), invariant)
            if known is None:
                known = graph.add(after, done, label)
                if (broken := _first_broken(on_state, after)) is not None:
                    return _refuted(model, graph, known, broken)
            if not label.fault:
                calm.append(known)
        graph.calm.append(calm)
        done += 1
        if len(graph.states) > states_max:
            raise TooManyStates(f"more than {states_max:,} states: give the model tighter bounds")
    stuck = _never_ending(model, graph)
    return stuck or Explored(len(graph.states), moves, max(graph.depths, default=0), frozenset(deeds))


def _first_broken(invariants: Sequence[Invariant[S]], state: S) -> Invariant[S] | None:
    for invariant in invariants:
        assert invariant.state is not None
        if not invariant.state(state):
            return invariant
    return None


def _never_ending(model: Model[S], graph: _Graph[S]) -> Refuted | None:
    """The shortest way to a bad dead end or to a circle, among the calm moves."""
    ends: Invariant[S] = Invariant(ENDS, "When faults stop, everything comes to a good end.")
    for number, calm in enumerate(graph.calm):
        if not calm and not model.is_good_end(graph.states[number]):
            return _refuted(model, graph, number, ends, remark="Here everything stands still, for ever.")
    circling = _circling(graph.calm)
    if not circling:
        return None
    at = min(circling)
    passed: set[int] = set()
    while at not in passed:  # every way on from here ends in a circle: follow one until it closes
        passed.add(at)
        at = next(after for after in graph.calm[at] if after in circling)
    return _refuted(model, graph, at, ends, remark="From here on it may go round in a circle, for ever.")


def _circling(calm: list[list[int]]) -> set[int]:
    """The states from which calm moves may go on for ever: what is left when dead ends are taken away, again and
    again."""
    left = [len(after) for after in calm]
    comes_from: list[list[int]] = [[] for _ in calm]
    for number, after in enumerate(calm):
        for each in after:
            comes_from[each].append(number)
    ended = [number for number, count in enumerate(left) if count == 0]
    for number in ended:  # grows while it is walked
        for each in comes_from[number]:
            left[each] -= 1
            if left[each] == 0:
                ended.append(each)
    return set(range(len(calm))).difference(ended)


def _refuted(model: Model[S], graph: _Graph[S], number: int, invariant: Invariant[S], *, remark: str = "") -> Refuted:
    trace = tuple(_trace(model, graph, number))
    return Refuted(invariant.name, invariant.sentence, trace, len(graph.states), remark)


def _trace(model: Model[S], graph: _Graph[S], number: int) -> Iterator[Event]:
    """From the beginning to that state."""
    path = [number]
    while (parent := graph.parents[path[-1]][0]) >= 0:
        path.append(parent)
    before: S | None = None
    for each in reversed(path):
        after = graph.states[each]
        yield Event(graph.parents[each][1], model.describe(before, after))
        before = after
