"""The protocol's rules, each a sentence that can be broken, and the world they are tried in.

`RIGHT` keeps them all. A wrong variant breaks one (or two, where either alone would do), and the model must refute it:
so each rule is shown to be needed, and each invariant to be able to fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perdure.testing.model.state import Budget


@dataclass(frozen=True, slots=True)
class Rules:
    """What workers and the store do. Every rule is true."""

    # Ownership: in the stores and the runtime today.
    commit_compares_fences: bool = True
    """A commit writes only where the run still carries the fence that its worker holds."""
    commit_looks_at_its_row: bool = True
    """A commit writes only while its worker's row is alive."""
    check_follows_lock: bool = True
    """The fence is read in a later snapshot than the one that waited for the lock on the worker's row."""
    take_over_locks: bool = True
    """A take-over holds the dead worker's row exclusively before it touches the runs."""
    take_over_raises_fence: bool = True
    """A take-over adds one to the fence of each run it re-queues."""
    take_over_is_one_transaction: bool = True
    """The worker is marked dead and its runs are re-queued in one transaction."""
    take_over_counts: bool = True
    """A take-over gives a strike to a run whose dead claim recorded nothing."""
    claim_raises_fence: bool = True
    """A claim adds one to the fence."""
    claim_looks_at_its_row: bool = True
    """A claim takes runs only for a worker whose row is alive."""
    claim_holds_its_row: bool = True
    """A claim holds its worker's row in share mode until it has committed."""
    claim_reads_log_last: bool = True
    """A claim reads the log in a later snapshot than the one that found the run."""
    unsure_gives_back: bool = True
    """A worker whose claim was not answered, or whose execution broke off, gives back what it does not execute."""
    give_back_shuts_out_claims: bool = True
    """A claim that was sent before its worker gave back, and arrives after it, takes nothing: its ticket is too low."""
    dead_stays_dead: bool = True
    """A renewal extends the lease of an alive row only."""
    unanswered_is_sent_again: bool = True
    """A commit that was not answered is sent again before anything else."""
    own_work_is_success: bool = True
    """A commit that finds its own work done (same key, same fence) succeeds."""
    own_work_is_not_repeated: bool = True
    """A commit that finds its own work done writes nothing."""
    ends_compare_again: bool = True
    """A commit that ends a slice compares the run's row once more, under the run's own lock. (In the code a commit that
    is sent again waits until its first copy is not under way any more, which comes to the same.)"""
    told_after_commit: bool = True
    """A client hears of an end when the end is on disk."""
    release_keeps_fence: bool = True
    """A run that a person sends on keeps its fence."""
    terminal_is_left_alone: bool = True
    """A claim takes queued runs only."""

    # Effects: the design; the ledger is a coming part.
    intent_before_dispatch: bool = True
    """An effect is dispatched when its intent is on disk, and not before."""
    ledger_compares_fences: bool = True
    """A write to the ledger is guarded like every commit."""
    ledger_is_numbered: bool = True
    """A write to the ledger knows which one it follows, so that a late copy of an earlier one is recognised."""
    dispatch_needs_trust: bool = True
    """A worker dispatches only while it trusts its lease."""
    unknown_is_declared: bool = True
    """An intent without an outcome is put down as `unknown`, and only then acted upon."""
    unknown_outwaits_lease: bool = True
    """Where a worker was declared dead before its lease ran out, its intents become `unknown` only when it has."""
    key_never_changes: bool = True
    """Every try of an effect gives the provider the same key."""
    only_records_clear_strikes: bool = True
    """A step's record or an effect's outcome clears the strikes; an intent does not."""


RIGHT: Final = Rules()

KEYS: Final = "keys"
"""A provider that honours idempotency keys."""
LOOKUP: Final = "lookup"
"""A provider without keys that can be asked, and whose answer is final: what it denies will not happen any more."""
BLIND: Final = "blind"
"""A provider that offers neither."""

RETRY: Final = "retry"
VERIFY: Final = "verify"
ASK: Final = "ask"
FAIL_IT: Final = "fail"

BUDGET: Final = Budget(losses=2, glitches=1, operator=1)


@dataclass(frozen=True, slots=True)
class Setup:
    """One world."""

    rules: Rules = RIGHT
    provider: str = KEYS
    on_unknown: str = RETRY
    budget: Budget = BUDGET
    clocks_agree: bool = True
    """Whether a worker's trust ends before its lease does, as it will where clocks run at about the same speed. Nothing
    about who may *write* depends on it."""
    has_step: bool = True
    """Whether the run has its first step still before it."""
    has_effect: bool = True
    """Whether the run has a second step, an effect."""
    statements_apart: bool = False
    """Whether every statement of a transaction is a step of its own, and anything may come between any two. Otherwise
    orders of events that no one could tell apart are taken as one, which spares nine states of ten."""
    identities: int = 2
    """Two workers; a third one is for whoever comes after one of them, and needed where both may be lost."""
    strikes_max: int = 2
    """Deaths in a row, without anything new, that hold the run (5 in real life)."""
