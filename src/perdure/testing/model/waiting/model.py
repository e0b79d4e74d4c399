"""Waiting without a worker, as a specification that can be explored.

One run waits for several things at once, in branches: an answer, a message, a child's end, room in a mailbox, a time.
Two workers execute it, one after the other; between, it is parked. Those outside make its waits ready, one transaction
each, and wake it. What is modelled is what `store/protocol.py` says under *Waits* and *Cancellation*, as it has to be
on Postgres, statement by statement: `plans.py` is the page to read first.

Faults come from a small budget, in any combination and at any moment: crashes, deaths that are none, answers that do
not come, runs that are handed back. No hint arrives at all: whatever has to be noticed is noticed by looking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perdure.testing.model.explorer import Invariant
from perdure.testing.model.waiting import execution, outside, transactions
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.execution import Move
from perdure.testing.model.waiting.invariants import everything
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import State, Worker
from perdure.testing.model.waiting.story import news


@dataclass(frozen=True, slots=True)
class Waiting:
    """The protocol in one world."""

    setup: Setup
    watch: frozenset[str] | None = None
    """The invariants to test, by name; None: all."""

    @property
    def invariants(self) -> Sequence[Invariant[State]]:
        """What must hold."""
        return [each for each in everything(self.setup) if self.watch is None or each.name in self.watch]

    def initial(self) -> Iterable[State]:
        """A queued run that has not begun, and two idle workers."""
        assert not {s.MESSAGE, s.ROOM}.issubset(self.setup.waits), "there is one mailbox"
        yield State((Worker(), Worker()), outside.actors(self.setup), self.setup.budget)

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that may happen next."""
        if not self.setup.statements_apart and (first := _first(self.setup, state)):
            yield from first
            return
        for i, worker in enumerate(state.workers):
            if i == 1 and not state.run.fence and state.workers[0] == Worker() == worker:
                continue  # the two are alike: let the first be the one that begins
            yield from execution.moves(self.setup, state, i, worker)
        yield from transactions.moves(self.setup, state)
        yield from outside.moves(self.setup, state)

    def is_good_end(self, state: State) -> bool:
        """The run has ended, and everybody outside has done what can be done, and has been told."""
        return (
            state.run.state in s.TERMINAL
            and not state.open
            and all(actor.at == s.DONE or not outside.can_begin(state, actor) for actor in state.actors)
        )

    def describe(self, before: State | None, after: State) -> str:
        """What is new."""
        return news(before, after)


def _first(setup: Setup, state: State) -> list[Move]:
    """What may go before everything else without hiding an order of events from view.

    What others do between the sending of a transaction and its arrival they could as well have done before it was sent;
    what may come between is a fault of the sender's own.
    """
    for transaction in state.open:
        if transaction.stage or not transaction.to:
            continue
        arrives = transactions.proceed(setup, state, transaction)
        if arrives is None:
            continue
        if transaction.to in s.NAMES:
            i = s.NAMES.index(transaction.to)
            return [arrives, *execution.mishaps(state, i, state.workers[i])]
        actor = next(each for each in state.actors if each.name == transaction.to)
        return [arrives, *outside.mishaps(state, actor)]
    return []
