"""The ledger at the end: what it says, and what the provider has done, are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from perdure.core.codec import codec_for
from perdure.core.effects import Effect, EffectState
from perdure.core.records import RunState
from perdure.core.states import TERMINAL
from perdure.testing.simulation.provider import Provider
from perdure.testing.simulation.rules.effects import COMPENSATION
from perdure.testing.simulation.rules.look import Look
from perdure.testing.simulation.witness import Witness

DID_NOT: Final = frozenset({EffectState.ABSENT, EffectState.FAILED})


def settle_ledger(witness: Witness, provider: Provider) -> None:
    """Everything has ended: say what does not fit."""
    for row in witness.look.effects.values():
        for wrong in (*_of_work(row, provider), *_of_undo(row, provider), *_of_rest(witness, row)):
            witness.blame(f"effect e{row.id} ({row.key!r} of run r{row.run}, {row.state}): {wrong}")


def _of_work(row: Effect, provider: Provider) -> Iterator[str]:
    """Whether it happened, how often, and with what result."""
    works, once = provider.works(row.idempotency_key), provider.honest or row.policy != "retry"
    if works > 1 and once:
        yield f"was done {works} times, with policy {row.policy}, {'' if provider.honest else 'no '}honouring of keys"
    if row.state in DID_NOT and works and once:
        yield "has happened"
    if row.state is EffectState.DONE or row.state in COMPENSATION:
        result: Any = None if row.outcome is None else codec_for(Any).decode(row.outcome)
        account = provider.accounts.get(row.idempotency_key)
        receipts = [] if account is None else [msgspec.to_builtins(each) for each in account.works]
        if result not in receipts:
            yield f"its result is {result}, and the provider has given {receipts}"


def _of_undo(row: Effect, provider: Provider) -> Iterator[str]:
    """Whether it was undone, and how often."""
    key = f"{row.idempotency_key}-undo"
    undone, by_hand = provider.works(key), key in provider.accounts and provider.accounts[key].by_hand
    if undone > 1 and provider.honest:
        yield f"was undone {undone} times"
    if undone and row.state not in COMPENSATION:
        yield "was undone, and the ledger does not say so"
    if row.state is EffectState.UNDONE and not (undone or by_hand):
        yield "was not undone"


def _of_rest(witness: Witness, row: Effect) -> Iterator[str]:
    """Whether nothing is left over of it."""
    if row.state in (EffectState.INTENDED, EffectState.UNDOING):
        yield f"is left so, and its run is {witness.look.runs[row.run].state}"


def left_over(look: Look) -> list[Effect]:
    """What ended runs have left that can be undone: what somebody has found out after their ends, say."""
    bad = {run.id for run in look.runs.values() if run.state in TERMINAL and run.state is not RunState.COMPLETED}
    return [row for row in look.effects.values() if row.run in bad and row.undoable and row.state is EffectState.DONE]
