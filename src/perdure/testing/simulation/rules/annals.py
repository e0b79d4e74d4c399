"""What the witness remembers of the writes before: what one look at the rows does not show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from perdure.core.changes import Change
from perdure.core.deliveries import Billing
from perdure.core.effects import EffectState
from perdure.core.records import Message, Run

Keys = dict[str, tuple[int, bytes]]
"""What start keys stand for: a run, and the digest of what was asked."""

Pointer = tuple[int | None, int | None]
"""Where a thread's newest state is: a run and a super-step."""


At = tuple[int, str, int, int, int]
"""A meter in its run: super-step, key, attempt, fence and number."""


@dataclass(slots=True)
class Annals:
    """What has been."""

    written: set[Change] = field(default_factory=set)
    """What commits have written, each as it was given."""
    keys: Keys = field(default_factory=dict)
    tickets: dict[int, int] = field(default_factory=dict)
    """Each worker's last give-back."""
    bases: dict[int, Pointer] = field(default_factory=dict)
    """Where a thread's newest state was before this run moved it for the first time."""
    bounced: set[tuple[int, int, int]] = field(default_factory=set)
    """Run, super-step and number of records that were not written though their run was in order."""
    ends: dict[int, list[Run]] = field(default_factory=dict)
    """A run's rows whenever it had ended or was held."""
    asked_to_end: set[int] = field(default_factory=set)
    """Runs whose cancellation was requested at some time."""
    sent: dict[int, Message] = field(default_factory=dict)
    """Messages by id, as they arrived last."""
    revived: set[int] = field(default_factory=set)
    """Messages that were dead letters for a while."""
    received: dict[int, str] = field(default_factory=dict)
    """Messages by id, and who received them."""
    boundaries: list[tuple[int, int]] = field(default_factory=list)
    """Run and super-step of every boundary and every successful end, in the order of their commits; super-step 0 where
    a run's states were taken back."""
    taken_back: list[int] = field(default_factory=list)
    """Runs whose states were taken back by the last write."""
    too_late: set[int] = field(default_factory=set)
    """Runs whose code had ended otherwise when their cancellation won."""
    in_flight: dict[tuple[int, int], Counter[str]] = field(default_factory=dict)
    """By run and fence: the steps whose bodies run."""
    forks: set[int] = field(default_factory=set)
    """Runs that began as forks."""
    forked_with: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    """What was on record in these from their beginning."""

    intended: set[tuple[int, int, EffectState, int]] = field(default_factory=set)
    """Effect, fence, state and number of every try of an effect, or of its undo, that was put on disk ahead."""
    in_vain: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By run and fence: how often it was not parked, since something that it waits for has come."""
    billing: dict[int, Billing] = field(default_factory=dict)
    """Where a run's bill goes, and its key."""
    lanes: dict[tuple[str, str], int] = field(default_factory=dict)
    """By sink and partition: the last place in the lane that was given away."""
    handed: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    """Delivery, attempt and worker: how often that try was given to it."""
    metered: dict[tuple[int, int, int, str], dict[int, list[tuple[str, float]]]] = field(default_factory=dict)
    """By run, fence, super-step and key, and by try: what bodies have used of which nothing was on record yet."""
    of_effects: set[tuple[int, int, int, str]] = field(default_factory=set)
    """Which of them are effects."""

    def run_ended(self, run: Run) -> None:
        """A run is terminal or held."""
        self.ends.setdefault(run.id, []).append(run)
