"""Those outside: who answers, sends, takes, cancels; the child; the clock; and whoever takes over from a worker.

Each has one thing to do, at any moment at which it can be done at all, and does it again where the answer was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.testing.model.explorer import Label
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.commits import TIME_HAS_COME
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import Actor, State, Transaction, add, put_actor

Move = tuple[Label, State]

ANN: Final = "Ann"
BOB: Final = "Bob"
"""Two who answer, and not the same."""
SENDER: Final = "sender"
SECOND_SENDER: Final = "second sender"
TAKER: Final = "taker"
"""Receives a message from the mailbox that the run wants to send to."""
CANCELLER: Final = "canceller"
CHILD: Final = "child"
HOLDER: Final = "holder"
"""What holds the child: its worker, or a take-over."""
OPERATOR: Final = "operator"
"""Sends the held child on."""

KINDS: Final = {
    ANN: s.GIVE_ANSWER,
    BOB: s.GIVE_ANSWER,
    SENDER: s.SEND,
    SECOND_SENDER: s.SEND,
    TAKER: s.TAKE,
    CANCELLER: s.CANCEL,
    CHILD: s.CHILD_ENDS,
    HOLDER: s.CHILD_HELD,
    OPERATOR: s.CHILD_RELEASED,
}

_REPEATS: Final = frozenset({s.GIVE_ANSWER, s.SEND, s.CANCEL})
"""What a client sends again when the answer was lost."""


def actors(setup: Setup) -> tuple[Actor, ...]:
    """Who is there."""
    return tuple(Actor(name, KINDS[name]) for name in setup.actors)


def moves(setup: Setup, state: State) -> Iterator[Move]:
    """What those outside do."""
    for actor in state.actors:
        if actor.at in (s.NEW, s.DUE) and can_begin(state, actor):
            yield _begins(state, actor)
        yield from mishaps(state, actor)
    yield from _clock(setup, state)
    yield from _keepers(state)
    if state.left.glitches and state.hint and state.run.fence and not setup.rules.idle_workers_poll:
        spent = state._replace(left=state.left._replace(glitches=state.left.glitches - 1), hint=False)
        yield Label("network", "loses the hint", fault=True), spent


def can_begin(state: State, actor: Actor) -> bool:
    """Whether what it does can be done at all."""
    match actor.kind:
        case s.GIVE_ANSWER:
            return state.question.state != s.NONE
        case s.CHILD_ENDS | s.CHILD_HELD:
            return state.child.state == s.ACTIVE
        case s.CHILD_RELEASED:
            return state.child.state == s.HELD
        case _:
            return True


def _begins(state: State, actor: Actor) -> Move:
    words = {s.GIVE_ANSWER: f"{actor.name}'s", s.SEND: s.MESSAGES[actor.name == SECOND_SENDER]}
    what = (words[actor.kind],) if actor.kind in words else ()
    if actor.kind == s.GIVE_ANSWER and s.ANSWER in state.due:
        what = (*what, TIME_HAS_COME)
    transaction = Transaction(actor.kind, actor.name, actor.name, what=what, again=actor.at == s.DUE)
    sent = put_actor(add(state, transaction), actor._replace(at=s.PENDING))
    return Label(actor.name, f"begins the {actor.kind}{' again' if transaction.again else ''}"), sent


def mishaps(state: State, actor: Actor) -> Iterator[Move]:
    """The answer does not come; what was sent may still arrive."""
    if actor.at != s.PENDING or actor.kind not in _REPEATS or not state.left.glitches:
        return
    left = state.left._replace(glitches=state.left.glitches - 1)
    late = tuple(sorted(each._replace(to="") if each.to == actor.name else each for each in state.open))
    lost = put_actor(state._replace(left=left, open=late), actor._replace(at=s.DUE))
    yield Label(actor.name, "loses the connection and the answer", fault=True), lost


def _clock(setup: Setup, state: State) -> Iterator[Move]:
    """The time of a wait comes."""
    for branch in setup.timed:
        if branch in state.waits and branch not in state.due:
            yield (
                Label("clock", f"the time of the {branch} comes"),
                state._replace(due=tuple(sorted((*state.due, branch)))),
            )


def _keepers(state: State) -> Iterator[Move]:
    """Somebody takes over from a worker that has crashed, or that is thought to have."""
    for i, worker in enumerate(state.workers):
        name = s.NAMES[i]
        others = [other for j, other in enumerate(state.workers) if j != i]
        under_way = any(each.kind == s.TAKE_OVER for each in state.open)
        if worker.row != s.ALIVE or under_way or not all(each.at != s.GONE for each in others):
            continue
        transaction = Transaction(s.TAKE_OVER, "keeper", "", what=(name,))
        if worker.at == s.GONE:
            if state.run.owner == i or any(each.by == name for each in state.open):
                yield Label("keeper", f"begins to take over from {name}"), add(state, transaction)
        elif state.left.losses and state.run.owner == i:
            spent = state._replace(left=state.left._replace(losses=state.left.losses - 1))
            label = Label("keeper", f"begins to take over from {name}, which it thinks dead", fault=True)
            yield label, add(spent, transaction)
