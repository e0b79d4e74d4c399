"""The billing service's book against the store's ledger of effects: what was charged, and what each of them says of it.

Two files of two processes, neither of which knows the other. Every charge in the book must be an effect that is done,
and the other way round; every charge must have had its approval before it was intended; and whatever was unknown for
a while (the service lost its answer, or the worker was killed while it waited) must have been resolved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise

from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.client.inbox import InterruptInfo
from perdure.core.effects import EffectState
from perdure.demo.billing import Entry, Line
from perdure.demo.promise import Promise
from perdure.demo.sidelog import Body


@dataclass(frozen=True)
class Accounts:
    """Both sides: the service's book; and the store's effects, each with its audit, and its answered questions."""

    lines: tuple[Line, ...]
    effects: tuple[EffectInfo, ...]
    approvals: tuple[InterruptInfo, ...]

    @cached_property
    def charges(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.entry is Entry.CHARGE)

    @cached_property
    def lost(self) -> frozenset[str]:
        """The keys whose answers the service says it lost."""
        return frozenset(line.key for line in self.lines if line.entry is Entry.LOST)

    @cached_property
    def approved(self) -> dict[str, datetime]:
        """The threads whose charge was approved, and when."""
        return {
            question.thread_id: question.answered_at
            for question in self.approvals
            if question.answered_at is not None and question.answer["approve"]
        }

    @cached_property
    def unknown(self) -> tuple[EffectInfo, ...]:
        """The effects whose outcome was unknown at some time."""
        return tuple(effect for effect in self.effects if was_unknown(effect.events))

    @property
    def waited(self) -> int:
        """Charges of a killed worker that were asked about."""
        return sum(effect.policy == "verify" and changed_hands(effect.events) for effect in self.unknown)

    @cached_property
    def bodies(self) -> frozenset[Body]:
        """What the effects' bodies are called in the side log."""
        return frozenset((effect.run_id, effect.super_step, effect.key) for effect in self.effects)

    @cached_property
    def questions(self) -> frozenset[tuple[str, str]]:
        """The approvals, by run and key: records that no body stands behind."""
        return frozenset((question.run_id, question.name) for question in self.approvals)

    def has(self, body: Body) -> bool:
        """Whether this is a charge or its approval, and no step."""
        run, _, key = body
        return body in self.bodies or (run, key) in self.questions

    @property
    def promises(self) -> tuple[Promise, ...]:
        return (approved(self), charged(self), resolved(self))


def was_unknown(events: tuple[EffectEventInfo, ...]) -> bool:
    """Whether a try's outcome was recorded as unknown, or another worker went on where it was only intended."""
    return any(event.state is EffectState.UNKNOWN for event in events) or changed_hands(events)


def changed_hands(events: tuple[EffectEventInfo, ...]) -> bool:
    """Whether one worker intended it, and another found out what became of that."""
    return any(one.state is EffectState.INTENDED and one.worker != other.worker for one, other in pairwise(events))


# -- the promises -------------------------------------------------------------------------------------------------


def approved(accounts: Accounts) -> Promise:
    """Each charge was approved before it was intended."""
    effects = accounts.effects
    count = sum(
        effect.thread_id in accounts.approved and accounts.approved[effect.thread_id] <= effect.events[0].at
        for effect in effects
    )
    refused = len(accounts.approvals) - len(accounts.approved)
    text = f"charges approved before they were made {count}/{len(effects)}"
    return Promise(count == len(effects), text + (f"; {refused} refused, and not made" if refused else ""))


def charged(accounts: Accounts) -> Promise:
    """What was approved is in the book, once, and the store says so too."""
    times = Counter(line.account for line in accounts.charges)
    known = {effect.idempotency_key for effect in accounts.effects if effect.state is EffectState.DONE}
    twice = sum(count > 1 for count in times.values())
    missing = len((accounts.approved.keys() | {effect.thread_id for effect in accounts.effects}) - times.keys())
    strangers = sum(line.key not in known for line in accounts.charges)
    ours = sum(effect.result["cents"] for effect in accounts.effects if effect.state is EffectState.DONE)
    theirs = sum(line.cents for line in accounts.charges)
    sums = f"both say {money(theirs)}" if ours == theirs else f"it says {money(theirs)}, the store {money(ours)}"
    text = (
        f"charges in the service's own file {len(accounts.charges)}/{len(accounts.approved)}: {twice} twice, "
        f"{missing} missing, {strangers} that the store does not know; {sums}"
    )
    whole = len(accounts.charges) == len(accounts.approved) == len(known)
    return Promise(whole and not (twice or missing or strangers) and ours == theirs, text)


def resolved(accounts: Accounts) -> Promise:
    """What was unknown is known; and each answer that the service lost was unknown."""
    unknown = accounts.unknown
    done = [effect for effect in unknown if effect.state is EffectState.DONE]
    asked = sum(effect.policy == "verify" for effect in done)
    lost = sum(effect.idempotency_key in accounts.lost for effect in unknown)
    text = f"unknown outcomes {len(unknown)}, resolved {len(done)}/{len(unknown)}"
    if unknown:
        text += (
            f" ({lost} answers lost, {len(unknown) - lost} in flight at the kill; {len(done) - asked} sent again under "
            f"the same key, {asked} asked about)"
        )
    if lost < len(accounts.lost):
        text += f"; {len(accounts.lost) - lost} answers were lost, and the store knows nothing of it"
    return Promise(len(done) == len(unknown) and lost == len(accounts.lost), text)


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
