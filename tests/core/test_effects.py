"""The states of an effect: the tables of `core/effects.py` say of each where it goes, and by whose word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.effects import INTENDABLE, RESOLVED, SETTLED, UNDOABLE, EffectState, effect_id
from perdure.core.records import parse_id

COMPENSATION = frozenset({EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED})
ATTEMPT = frozenset(EffectState) - COMPENSATION

Move = tuple[EffectState, EffectState]


def moves() -> dict[str, set[Move]]:
    """Every move, by whose word it is made."""
    return {
        "intend": {(state, EffectState.INTENDED) for state in INTENDABLE},
        "undo": {(state, EffectState.UNDOING) for state in UNDOABLE},
        "settle": {(state, to) for state, outcomes in SETTLED.items() for to in outcomes},
        "resolve": {(state, to) for state, outcomes in RESOLVED.items() for to in outcomes},
    }


def reached(first: EffectState, allowed: set[Move]) -> set[EffectState]:
    """Everywhere these moves lead from there."""
    found, size = {first}, 0
    while len(found) > size:
        size = len(found)
        found |= {to for state, to in allowed if state in found}
    return found


def all_moves() -> set[Move]:
    return set().union(*moves().values())


def test_every_state_is_reached_from_the_first() -> None:
    assert reached(EffectState.INTENDED, all_moves()) == set(EffectState)


def test_a_worker_alone_reaches_every_state() -> None:
    by = moves()
    assert reached(EffectState.INTENDED, by["intend"] | by["undo"] | by["settle"]) == set(EffectState)


def test_what_was_undone_stays_so() -> None:
    assert reached(EffectState.UNDONE, all_moves()) == {EffectState.UNDONE}


def test_from_every_other_state_something_can_be_done() -> None:
    left = {state for state, _ in all_moves()}
    assert left == set(EffectState) - {EffectState.UNDONE}


def test_only_what_was_done_is_undone_and_nothing_comes_back_from_it() -> None:
    into = {move for move in all_moves() if move[0] in ATTEMPT and move[1] in COMPENSATION}
    assert into == {(EffectState.DONE, EffectState.UNDOING)}
    for state in COMPENSATION:
        assert reached(state, all_moves()) <= COMPENSATION


def test_what_was_done_is_not_done_again() -> None:
    assert EffectState.INTENDED not in reached(EffectState.DONE, all_moves())


def test_an_outcome_comes_only_after_an_intent() -> None:
    """Whatever is settled was dispatched, or may have been: nothing else has an outcome."""
    assert set(SETTLED) == {EffectState.INTENDED, EffectState.UNKNOWN, EffectState.UNDOING}
    assert INTENDABLE.isdisjoint(UNDOABLE)


def test_an_outcome_of_the_act_is_no_outcome_of_its_undo() -> None:
    for state, outcomes in SETTLED.items():
        assert {to in COMPENSATION for to in outcomes} == {state is EffectState.UNDOING}


def test_a_person_says_only_what_nobody_knows_and_leaves_nothing_open() -> None:
    by = moves()
    assert {state for state, _ in by["resolve"]} == {EffectState.UNKNOWN, EffectState.UNDO_FAILED}
    for state, to in by["resolve"]:
        assert to not in RESOLVED
        # A resolution may be repeated: no second one follows from where it leads, without an intent between.
        assert to in SETTLED.get(state, ()) or state is EffectState.UNDO_FAILED


def test_whatever_was_read_as_unknown_can_be_settled_as_if_it_had_been_written_so() -> None:
    assert SETTLED[EffectState.INTENDED] == SETTLED[EffectState.UNKNOWN]


@given(st.lists(st.sampled_from(sorted(all_moves())), max_size=40))
def test_no_history_acts_twice_without_a_word_that_it_may(history: list[Move]) -> None:
    """Walk along what fits: between two intents the effect is unknown, or known not to have happened, or in flight."""
    state = EffectState.INTENDED
    walked = [state]
    for before, after in history:
        if before is state:
            state = after
            walked.append(state)
    last_intent = max(at for at, each in enumerate(walked) if each is EffectState.INTENDED)
    assert EffectState.DONE not in walked[:last_intent]
    assert COMPENSATION.isdisjoint(walked[: walked.index(EffectState.DONE)] if EffectState.DONE in walked else walked)


@given(st.integers(1, 2**59))
def test_an_effects_name_is_its_number(number: int) -> None:
    assert parse_id("e", effect_id(number)) == number
