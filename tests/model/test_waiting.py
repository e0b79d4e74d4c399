"""The protocol of waiting is explored to the end, and every rule of it is needed."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

from perdure.testing.model import Explored, Refuted, explore
from perdure.testing.model import __main__ as command
from perdure.testing.model.waiting import VARIANTS, WORLDS, Rules, Setup, Variant, Waiting, plans
from perdure.testing.model.waiting import invariants as named
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.state import Budget
from perdure.testing.model.waiting.variants import ANSWER_AND_MAIL, HELD_CHILD

SMALL = [each for each in VARIANTS if each.world.budget == Budget()]
BY_NAME = {each.name: each for each in VARIANTS}


@cache
def explored(name: str) -> Explored | Refuted:
    return explore(Waiting(WORLDS[name]))


def breaks(setup: Setup, invariant: str) -> bool:
    """Whether that invariant fails in that world, whatever others do."""
    found = explore(Waiting(setup, watch=frozenset({invariant})))
    return isinstance(found, Refuted) and found.invariant == invariant


@pytest.mark.parametrize("name", WORLDS)
def test_no_order_of_events_loses_a_wake_up(name: str) -> None:
    found = explored(name)
    assert isinstance(found, Explored), str(found)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_a_wrong_variant_is_refuted_by_the_invariant_it_names(variant: Variant) -> None:
    found = explore(Waiting(variant.setup))
    assert isinstance(found, Refuted)
    assert found.invariant == variant.refuted_by, str(found)


@pytest.mark.parametrize("variant", SMALL, ids=lambda each: each.name)
def test_orders_that_are_taken_as_one_hide_nothing(variant: Variant) -> None:
    found = explore(Waiting(replace(variant.setup, statements_apart=True)))
    assert isinstance(found, Refuted)
    assert found.invariant == variant.refuted_by, str(found)


def test_every_rule_is_broken_by_a_variant_of_its_own() -> None:
    assert sorted(variant.breaks for variant in VARIANTS) == sorted((field.name,) for field in fields(Rules))


@pytest.mark.parametrize(
    ("invariant", "variant"),
    [(named.ONE_END, "park-of-an-old-claim"), (named.TOLD_TRULY, "second-answer-wins")],
)
def test_an_invariant_that_refutes_none_first_can_fail(invariant: str, variant: str) -> None:
    assert breaks(BY_NAME[variant].setup, invariant)


def test_no_invariant_is_left_out() -> None:
    everything = {each.name for each in named.everything(next(iter(WORLDS.values())))}
    assert everything - {each.refuted_by for each in VARIANTS} == {named.ONE_END, named.TOLD_TRULY}


@pytest.mark.parametrize("kind", [s.OPEN_WAITS, s.PARK, s.CLOSE, s.START, s.POST, s.END, s.HAND_BACK])
@pytest.mark.parametrize("child_row_first", [False, True])
def test_locks_come_in_one_order_and_looks_after_them(kind: str, child_row_first: bool) -> None:
    runs = [plans.CHILD, plans.RUN] if child_row_first else [plans.RUN, plans.CHILD]
    order = [plans.SHARE, *runs, plans.BOX, plans.JUDGE, plans.LOOK, plans.WRITE]
    stages = plans.plan(Rules(), kind, (s.CHILD, "m1"), child_row_first=child_row_first)
    assert [stage for stage in order if stage in stages] == list(stages)


@pytest.mark.parametrize(
    ("world", "deed"),
    [
        ("an answer, statements apart, a loss", "W1's parking: awake"),
        ("an answer, statements apart, a loss", "Ann's answer: answered, and wakes the run"),
        ("an answer, statements apart, a loss", "W2's claim: passes over the run's row, which is locked"),
        ("an answer, statements apart, a loss", "late: W1's parking: done"),
        ("an answer, statements apart, a loss", "has unwound"),
        ("an answer, a glitch", "late: W1's parking: is answered: lost"),
        ("an answer or its time, a loss", "W1's closing: bounced"),
        ("an answer or its time, a loss", "Ann's answer: not answered"),
        ("two answers and a time, statements apart", "Bob's answer: not answered"),
        ("a message, a glitch", "sender's message, sent again: known already"),
        ("a child, a loss", "child's last commit: ended, and wakes the run"),
        ("a child that is held", "holder's hold: held, and wakes the run"),
        ("a child that is held", "finds that the child has gone again"),
        ("room, a glitch", "W1's post: bounced"),
        ("an answer and a cancellation, a loss", "W1's parking: its cancellation was requested"),
        ("an answer and a cancellation, a loss", "W1's end: its cancellation was requested"),
        ("an answer and a cancellation, a loss", "canceller's request: requested, and wakes the run"),
        ("an answer and a cancellation, a loss", "canceller's request: cancelled"),
        (
            "a message and a child",
            "sender's message: ends in a deadlock with W1's parking, and is repeated",
        ),
    ],
)
def test_what_the_model_is_about_does_happen_in_it(world: str, deed: str) -> None:
    found = explored(world)
    assert isinstance(found, Explored)
    assert deed in found.deeds


def test_a_wake_up_may_be_in_vain() -> None:
    found = explore(Waiting(ANSWER_AND_MAIL))
    assert isinstance(found, Explored)
    assert "sender's message: sent, and wakes the run in vain" in found.deeds


def test_a_deadlock_that_nobody_ends_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.model.waiting.transactions._deadlocks", lambda *_: ())
    found = explore(Waiting(HELD_CHILD))
    assert isinstance(found, Refuted)
    assert "stands still" in found.remark


def test_the_command_tells_a_variant_of_waiting_as_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--show", "parked-late"]) == 0
    printed = capsys.readouterr().out
    assert "W1's parking, sent again: awake" in printed
    assert "late: W1's parking: done\n" in printed
    assert printed.rstrip().endswith("= the run is waiting, fence 1")
