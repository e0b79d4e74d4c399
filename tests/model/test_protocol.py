"""The protocol is explored to the end, and every rule of it is needed."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest

from perdure.testing.model import (
    SPARE,
    VARIANTS,
    WORLDS,
    Explored,
    Ownership,
    Refuted,
    Rules,
    Setup,
    Variant,
    broken,
    explore,
)
from perdure.testing.model import __main__ as command
from perdure.testing.model import invariants as named
from perdure.testing.model.rules import ASK, BLIND, FAIL_IT, KEYS, LOOKUP, RETRY, VERIFY
from perdure.testing.model.variants import BOTH, LOSS, ONE_EFFECT, ONE_STEP

SMALL = [each for each in VARIANTS if each.world.budget.losses + each.world.budget.glitches == 1]


@cache
def explored(name: str) -> Explored | Refuted:
    return explore(Ownership(WORLDS[name]))


def breaks(setup: Setup, invariant: str) -> bool:
    """Whether the invariant, promised or not, fails in that world."""
    found = explore(Ownership(setup, watch=frozenset({invariant})))
    return isinstance(found, Refuted) and found.invariant == invariant


@pytest.mark.parametrize("name", WORLDS)
def test_the_protocol_holds_in_every_order_of_events(name: str) -> None:
    found = explored(name)
    assert isinstance(found, Explored), str(found)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_a_wrong_variant_is_refuted_by_the_invariant_it_names(variant: Variant) -> None:
    found = explore(Ownership(variant.setup))
    assert isinstance(found, Refuted)
    assert found.invariant == variant.refuted_by, str(found)


@pytest.mark.parametrize("variant", SMALL, ids=lambda each: each.name)
def test_orders_that_are_taken_as_one_hide_nothing(variant: Variant) -> None:
    found = explore(Ownership(replace(variant.setup, statements_apart=True)))
    assert isinstance(found, Refuted)


def test_every_rule_is_broken_by_a_variant() -> None:
    assert {rule for variant in VARIANTS for rule in variant.breaks} == {field.name for field in fields(Rules)}


def test_a_variant_breaks_one_rule_or_the_spare_pair() -> None:
    assert {variant.breaks for variant in VARIANTS if len(variant.breaks) > 1} == {tuple(sorted(SPARE))}


def test_every_invariant_can_fail() -> None:
    everything = {each.name for each in named.everything(Setup())}
    assert everything - {variant.refuted_by for variant in VARIANTS} == {named.NO_STALE_WRITE}


@pytest.mark.parametrize("name", ["commit-without-fence", "fence-read-before-lock", "take-over-without-lock"])
def test_where_two_could_write_an_older_claim_does(name: str) -> None:
    variant = next(each for each in VARIANTS if each.name == name)
    assert breaks(variant.setup, named.NO_STALE_WRITE)


@pytest.mark.parametrize("rule", sorted(SPARE))
@pytest.mark.parametrize(
    "world", [replace(ONE_STEP, budget=BOTH), replace(ONE_EFFECT, budget=LOSS)], ids=["step", "effect"]
)
def test_of_a_spare_pair_either_rule_will_do(rule: str, world: Setup) -> None:
    assert isinstance(explore(Ownership(replace(world, rules=broken(rule)))), Explored)


def test_only_what_is_said_about_dispatching_rests_on_clocks() -> None:
    apart = replace(ONE_EFFECT, budget=LOSS, clocks_agree=False)
    assert isinstance(explore(Ownership(apart)), Explored)
    assert breaks(apart, named.NO_SECOND_DISPATCH)


@pytest.mark.parametrize(
    ("provider", "policy", "twice"),
    [
        (KEYS, RETRY, False),
        (KEYS, VERIFY, False),
        (LOOKUP, VERIFY, False),
        (BLIND, ASK, False),
        (BLIND, FAIL_IT, False),
        (BLIND, RETRY, True),
        (LOOKUP, RETRY, True),
    ],
)
def test_a_thing_is_done_twice_only_where_a_retry_was_chosen_without_keys(
    provider: str, policy: str, twice: bool
) -> None:
    world = replace(ONE_EFFECT, provider=provider, on_unknown=policy, budget=LOSS)
    assert breaks(world, named.DONE_ONCE) is twice


@pytest.mark.parametrize(
    ("world", "deed"),
    [
        ("one step, two losses", "releases the run"),
        ("one step, two losses", "late: W1's claim: finds its worker not alive"),
        ("one step, statements apart, two glitches", "late: W1's hand back: finds its work done"),
        ("step and effect, statements apart, a loss", "hears that it was taken over"),
        ("step and effect, statements apart, a loss", "W1's record: finds its worker not alive"),
        ("step and effect, statements apart, a loss", "gets W1's call: recognises the key, and does nothing"),
        ("step and effect, statements apart, a loss", "stops W1"),
        ("effect, keys, verify, two glitches", "asks the provider, which has not done it"),
        ("effect, keys, verify, two glitches", "asks the provider, which has done it"),
        ("effect, keys, verify, two glitches", "late: W1's intent: is answered: lost"),
        ("effect, blind, ask, a loss", "says that it happened"),
        ("effect, blind, ask, a loss", "says that it did not happen"),
        ("effect, blind, fail, a loss", "fails the run"),
    ],
)
def test_what_the_model_is_about_does_happen_in_it(world: str, deed: str) -> None:
    found = explored(world)
    assert isinstance(found, Explored)
    assert deed in found.deeds


def test_the_command_tells_a_variant_as_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--show", "late-claim"]) == 0
    printed = capsys.readouterr().out
    assert "late: W1's claim: takes the run" in printed
    assert printed.rstrip().endswith("Here everything stands still, for ever.")


def test_the_command_says_what_is_not_as_it_should_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    harmless = Variant("harmless", ("take_over_raises_fence",), "Nothing.", named.ONE_WRITER, ONE_STEP)
    monkeypatch.setattr(command, "VARIANTS", (VARIANTS[0], replace(harmless, world=replace(ONE_STEP, budget=LOSS))))
    monkeypatch.setattr(command, "WORLDS", {"wrong": replace(ONE_STEP, budget=LOSS, rules=broken("take_over_locks"))})
    assert command.main([]) == 1
    printed = capsys.readouterr().out
    assert "BROKEN" in printed
    assert "NOT REFUTED" in printed
