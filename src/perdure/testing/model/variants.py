"""The worlds in which the right protocol must hold, and the wrong variants that must not.

A wrong variant breaks one rule, in the smallest world in which that shows. Two rules guard the same door from both
sides (`SPARE`): breaking either is harmless, and the variant breaks both.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

from perdure.testing.model import invariants as named
from perdure.testing.model.explorer import ENDS
from perdure.testing.model.rules import ASK, BLIND, FAIL_IT, KEYS, LOOKUP, RETRY, RIGHT, VERIFY, Rules, Setup
from perdure.testing.model.state import Budget

LOSS: Final = Budget(losses=1, glitches=0, operator=1)
GLITCH: Final = Budget(losses=0, glitches=1, operator=1)
BOTH: Final = Budget(losses=1, glitches=1, operator=1)
TWO_LOSSES: Final = Budget(losses=2, glitches=0, operator=1)
TWO_GLITCHES: Final = Budget(losses=0, glitches=2, operator=1)
THREE: Final = Budget(losses=2, glitches=1, operator=1)

ONE_STEP: Final = Setup(has_effect=False)
ONE_EFFECT: Final = Setup(has_step=False)

WORLDS: Final[dict[str, Setup]] = {
    "one step, statements apart, a loss": replace(ONE_STEP, statements_apart=True, budget=LOSS),
    "one step, statements apart, two glitches": replace(ONE_STEP, statements_apart=True, budget=TWO_GLITCHES),
    "one step, two losses": replace(ONE_STEP, budget=TWO_LOSSES, identities=3),
    "step and effect, statements apart, a loss": Setup(statements_apart=True, budget=LOSS),
    "step and effect, a loss and a glitch": Setup(budget=BOTH),
    "effect, keys, retry, two losses": replace(ONE_EFFECT, budget=TWO_LOSSES, identities=3),
    "effect, keys, retry, clocks apart, a loss": replace(ONE_EFFECT, budget=LOSS, clocks_agree=False),
    "effect, lookup, verify, a loss and a glitch": replace(ONE_EFFECT, provider=LOOKUP, on_unknown=VERIFY, budget=BOTH),
    **{
        f"effect, {provider}, {policy}, {what}": replace(
            ONE_EFFECT, provider=provider, on_unknown=policy, budget=budget
        )
        for provider, policy in (
            (KEYS, VERIFY),
            (KEYS, ASK),
            (KEYS, FAIL_IT),
            (BLIND, RETRY),
            (BLIND, ASK),
            (BLIND, FAIL_IT),
        )
        for what, budget in (("a loss", LOSS), ("two glitches", TWO_GLITCHES))
    },
}
"""Explored in every run of the tests."""

THREE_IDENTITIES: Final = Setup(identities=3)

LARGE_WORLDS: Final[dict[str, Setup]] = {
    "one step, two losses and a glitch": replace(ONE_STEP, identities=3, budget=THREE),
    "step and effect, statements apart, a loss and a glitch": replace(
        THREE_IDENTITIES, statements_apart=True, budget=BOTH
    ),
    "step and effect, statements apart, two losses": replace(
        THREE_IDENTITIES, statements_apart=True, budget=TWO_LOSSES
    ),
    **{
        f"step and effect, {provider}, {policy}, {what}": replace(
            THREE_IDENTITIES, provider=provider, on_unknown=policy, budget=budget
        )
        for provider, policy in (
            (KEYS, RETRY),
            (KEYS, VERIFY),
            (KEYS, ASK),
            (KEYS, FAIL_IT),
            (LOOKUP, VERIFY),
            (BLIND, RETRY),
            (BLIND, ASK),
            (BLIND, FAIL_IT),
        )
        for what, budget in (("a loss and a glitch", BOTH), ("two losses", TWO_LOSSES))
    },
    **{
        f"step and effect, clocks apart, {what}": replace(THREE_IDENTITIES, clocks_agree=False, budget=budget)
        for what, budget in (("a loss and a glitch", BOTH), ("two losses", TWO_LOSSES))
    },
}
"""Explored by hand: `python -m perdure.testing.model --large` takes some minutes."""

SPARE: Final = frozenset({"commit_looks_at_its_row", "take_over_raises_fence"})
"""A commit of a worker that was taken over is refused because its row is dead, and because its fence is old."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A protocol that somebody might have written instead."""

    name: str
    breaks: tuple[str, ...]
    why: str
    """What goes wrong."""
    refuted_by: str
    world: Setup

    @property
    def setup(self) -> Setup:
        """Its world, with its rules."""
        return replace(self.world, rules=broken(*self.breaks))


def broken(*rules: str) -> Rules:
    """The right rules, but for these."""
    assert {field.name for field in fields(Rules)}.issuperset(rules)
    return replace(RIGHT, **dict.fromkeys(rules, False))


VARIANTS: Final = (
    Variant(
        "commit-without-fence",
        ("commit_compares_fences",),
        "What an earlier claim of the same worker left on its way is taken for the newest claim's.",
        named.ONE_WRITER,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "fence-read-before-lock",
        ("check_follows_lock",),
        "The commit waits for the lock, and then relies on the fence that it saw before it waited.",
        named.ONE_WRITER,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "take-over-without-lock",
        ("take_over_locks",),
        "A take-over slips in between a commit's look and its write.",
        named.ONE_WRITER,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "take-over-unnoticed",
        ("commit_looks_at_its_row", "take_over_raises_fence"),
        "With neither, a worker that was taken over is told that its work is done when nothing was written.",
        named.INTENT_FIRST,
        replace(ONE_EFFECT, budget=LOSS),
    ),
    Variant(
        "take-over-in-two",
        ("take_over_is_one_transaction",),
        "Whoever takes over dies between the two: the worker is dead already, and nobody looks at its runs again.",
        named.NOT_STRANDED,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "take-over-uncounted",
        ("take_over_counts",),
        "A run that kills its workers goes on killing them.",
        named.POISON_HELD,
        replace(ONE_STEP, budget=TWO_LOSSES, identities=3),
    ),
    Variant(
        "claim-without-fence",
        ("claim_raises_fence",),
        "A worker that hands a run back and claims it again cannot tell its own earlier requests from its new ones.",
        named.ONE_WRITER,
        replace(ONE_STEP, budget=TWO_GLITCHES),
    ),
    Variant(
        "claim-by-the-dead",
        ("claim_looks_at_its_row",),
        "A claim that arrives after its worker was declared dead takes a run that nobody will take from it.",
        named.NOT_STRANDED,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "claim-without-lock",
        ("claim_holds_its_row",),
        "The worker is declared dead between the claim's look at its row and its write: as if it had not looked.",
        named.NOT_STRANDED,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "log-read-too-early",
        ("claim_reads_log_last",),
        "The claim takes the run as it is now, and the log as it was before the last owner's last commit.",
        named.NOT_AGAIN,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "forgotten-claim",
        ("unsure_gives_back",),
        "A claim whose answer was lost has taken a run for a worker that never hears of it.",
        ENDS,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "late-claim",
        ("give_back_shuts_out_claims",),
        "The worker gives back what the unanswered claim may have taken; then the claim arrives, and takes it.",
        ENDS,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "dead-comes-alive",
        ("dead_stays_dead",),
        "A worker that was taken over renews, trusts its lease again, and dispatches beside its successor.",
        named.NO_SECOND_DISPATCH,
        replace(ONE_EFFECT, budget=LOSS),
    ),
    Variant(
        "silence-is-success",
        ("unanswered_is_sent_again",),
        "The intent whose commit was not answered is not on disk when the effect is dispatched.",
        named.INTENT_FIRST,
        replace(ONE_EFFECT, budget=GLITCH),
    ),
    Variant(
        "own-work-refused",
        ("own_work_is_success",),
        "The commit had arrived; sent again it is called lost, so the worker drops a run that it still owns.",
        ENDS,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "written-twice",
        ("own_work_is_not_repeated",),
        "The commit had arrived; sent again it is written again.",
        named.LOG_STANDS,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "ended-twice",
        ("ends_compare_again",),
        "Two copies of a hand-back have both seen the old fence; the second takes the run from whoever has it now.",
        named.ONE_WRITER,
        replace(ONE_STEP, budget=BOTH),
    ),
    Variant(
        "told-too-early",
        ("told_after_commit",),
        "The client hears of an end that is still on its way to the disk.",
        named.TOLD_TRULY,
        replace(ONE_STEP, budget=LOSS),
    ),
    Variant(
        "fence-begins-anew",
        ("release_keeps_fence",),
        "A run that a person sends on counts its claims from the beginning, through numbers that were used already.",
        named.FENCE_GROWS,
        replace(ONE_STEP, budget=TWO_LOSSES, identities=3),
    ),
    Variant(
        "claim-after-the-end",
        ("terminal_is_left_alone",),
        "A claim that was sent while the run was queued arrives after its end, and begins it again.",
        named.TERMINAL_STANDS,
        replace(ONE_STEP, budget=GLITCH),
    ),
    Variant(
        "dispatch-before-intent",
        ("intent_before_dispatch",),
        "A crash right after the dispatch leaves no trace of it.",
        named.INTENT_FIRST,
        replace(ONE_EFFECT, budget=LOSS),
    ),
    Variant(
        "unguarded-ledger",
        ("ledger_compares_fences",),
        "A worker that has lost the run writes into the ledger over its successor.",
        named.ONE_WRITER,
        replace(ONE_EFFECT, budget=GLITCH),
    ),
    Variant(
        "unnumbered-ledger",
        ("ledger_is_numbered",),
        "A late copy of the intent is written over the outcome: its key and its fence are right.",
        named.LOG_STANDS,
        replace(ONE_EFFECT, budget=GLITCH),
    ),
    Variant(
        "dispatch-without-trust",
        ("dispatch_needs_trust",),
        "A worker wakes up after its take-over, between its intent and its dispatch, and dispatches.",
        named.NO_SECOND_DISPATCH,
        replace(ONE_EFFECT, budget=LOSS),
    ),
    Variant(
        "silent-retry",
        ("unknown_is_declared",),
        "An intent without an outcome is taken for one that was never dispatched.",
        named.NO_SECOND_DISPATCH,
        replace(ONE_EFFECT, provider=BLIND, on_unknown=ASK, budget=LOSS),
    ),
    Variant(
        "hasty-unknown",
        ("unknown_outwaits_lease",),
        "A worker thought dead is alive and trusts its lease: it dispatches after its successor has settled it.",
        named.NO_SECOND_DISPATCH,
        replace(ONE_EFFECT, provider=LOOKUP, on_unknown=VERIFY, budget=LOSS),
    ),
    Variant(
        "new-key",
        ("key_never_changes",),
        "The provider cannot know that it has done this already.",
        named.DONE_ONCE,
        replace(ONE_EFFECT, budget=GLITCH),
    ),
    Variant(
        "intent-clears-strikes",
        ("only_records_clear_strikes",),
        "Each worker that the effect kills has written an intent: for ever progress, and never a record.",
        named.POISON_HELD,
        replace(ONE_EFFECT, budget=TWO_LOSSES, identities=3),
    ),
)
"""Every one must be refuted, by the invariant it names."""
