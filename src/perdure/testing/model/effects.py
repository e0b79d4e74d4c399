"""The effect's ledger, and the provider outside: how a thing that must not be done twice is done.

This is the design of a coming part; the code has no ledger yet. An effect's row in the ledger goes from nothing to an
*intent*, which is on disk before the effect is dispatched, and from there to its *outcome*. An intent that a later
claim finds without an outcome was perhaps dispatched and perhaps not: it is put down as *unknown*, and then the
declared policy says what follows: `retry` (a new intent under the same key), `verify` (ask the provider), `ask` (hold
the run for a person), `fail` (end it). Every write to the ledger is a commit like any other, guarded by the fence.

Two rules go beyond that. A worker dispatches only while it trusts its lease: else one that slept through its own
take-over would wake up between its intent and its dispatch, and dispatch beside its successor. And where a worker was
declared dead *before* its lease ran out, it may still trust that lease: its intents become unknown only when the lease
has run out too. Both rest on clocks that run at about the same speed, which the fence does not.

The provider is outside: a call may be on the wire when its caller dies, and arrive later.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.testing.model import rules as r
from perdure.testing.model import state as s
from perdure.testing.model.database import Move, send
from perdure.testing.model.explorer import Label
from perdure.testing.model.rules import KEYS, Setup
from perdure.testing.model.state import State, Worker, put


def inside(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """What a worker does about the effect."""
    name, rules = s.NAMES[i], setup.rules
    match worker.at:
        case s.EFFECT if rules.intent_before_dispatch:
            yield Label(name, "sends the effect's intent"), send(state, i, s.INTENT)
        case s.EFFECT | s.INTENDED:
            if worker.trust or not rules.dispatch_needs_trust:
                yield Label(name, "dispatches the effect"), _dispatch(state, i, worker)
        case s.CALLED:
            if state.left.glitches:
                spent = state._replace(left=state.left._replace(glitches=state.left.glitches - 1))
                label = Label(name, "gives up on the provider's answer", fault=True)
                yield label, put(spent, i, worker._replace(at=s.UNANSWERED))
        case s.ANSWERED:
            yield Label(name, "sends the effect's outcome"), send(state, i, s.OUTCOME)
        case s.UNANSWERED:
            yield Label(name, "sends that the outcome is unknown"), send(state, i, s.OUTCOME_UNKNOWN)
        case s.FOUND if not rules.unknown_is_declared:
            yield Label(name, "sends another intent"), send(state, i, s.INTENT)
        case s.FOUND if _can_do_no_more(setup, state):
            yield Label(name, "sends that the outcome is unknown"), send(state, i, s.OUTCOME_UNKNOWN)
        case s.UNKNOWN:
            yield from _settle(setup, state, i, worker)


def _dispatch(state: State, i: int, worker: Worker) -> State:
    """A call is on the wire."""
    provider = state.provider
    calling = provider._replace(wire=tuple(sorted((*provider.wire, i))), dispatched=provider.dispatched + 1)
    return put(state, i, worker._replace(at=s.CALLED))._replace(provider=calling)


def _can_do_no_more(setup: Setup, state: State) -> bool:
    """Whether the worker whose intent this is cannot dispatch it any more: it gave the run back itself, or its lease
    has run out."""
    author = state.workers[state.effect.worker]
    return author.row != s.DEAD or author.expired or not setup.rules.unknown_outwaits_lease


def _settle(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """What the policy says about an unknown outcome."""
    name = s.NAMES[i]
    match setup.on_unknown:
        case r.RETRY:
            yield Label(name, "sends another intent, under the same key"), send(state, i, s.INTENT)
        case r.VERIFY:
            if not _can_ask(setup, state):
                return
            if state.provider.done:
                yield Label(name, "asks the provider, which has done it"), put(state, i, worker._replace(at=s.ANSWERED))
            else:
                yield Label(name, "asks the provider, which has not done it"), send(state, i, s.NOT_DONE)
        case r.ASK:
            yield Label(name, "holds the run for a person"), send(state, i, s.HOLD)
        case _:
            yield Label(name, "fails the run"), put(state, i, worker._replace(at=s.FAIL))


def _can_ask(setup: Setup, state: State) -> bool:
    """Whether an answer can be had: a provider without keys gives one when nothing is on its way to it."""
    return setup.provider == KEYS or not state.provider.wire


def resolve(setup: Setup, state: State) -> Iterator[Move]:
    """A person has looked, and says what the outcome was."""
    if not _can_ask(setup, state):
        return
    done = state.provider.done > 0
    ledger = state.effect._replace(status=s.OUTCOME if done else s.NOT_DONE, version=state.effect.version + 1)
    yield Label("operator", f"says that it {'happened' if done else 'did not happen'}"), state._replace(effect=ledger)


def outside(setup: Setup, state: State) -> Iterator[Move]:
    """A call arrives at the provider; whoever still waits for it hears the answer."""
    provider = state.provider
    for i in sorted(set(provider.wire)):
        rest = list(provider.wire)
        rest.remove(i)
        again = provider.done > 0 and setup.provider == KEYS and setup.rules.key_never_changes
        done = provider.done if again else provider.done + 1
        after = state._replace(provider=provider._replace(wire=tuple(rest), done=done))
        worker = state.workers[i]
        if worker.at == s.CALLED and worker.request is None:
            after = put(after, i, worker._replace(at=s.ANSWERED))
        what = "recognises the key, and does nothing" if again else "does it"
        yield Label("provider", f"gets {s.NAMES[i]}'s call: {what}"), after
