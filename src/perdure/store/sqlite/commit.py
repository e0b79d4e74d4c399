"""Applying a batch of changes: guard, write each kind as a set, hint.

The transaction holds the database's one write lock from its first statement on. So what the guard sees holds until
the commit, and a worker's row needs no lock of its own. The batch is written whole first; only where the database
refuses it is it halved by run until the culprits are alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.changes import Change, CommitOutcome, OpenWait, Place, Reserve, place_of
from perdure.core.requests import Bounce
from perdure.store import reasons
from perdure.store.slices import is_aware, within_slices
from perdure.store.sqlite.batch import Batch, needs_deciding, step_of
from perdure.store.sqlite.errors import SUSPECT_ERRORS, is_refusal
from perdure.store.sqlite.transaction import Transaction, decode, encode


class Written(msgspec.Struct):
    """What became of the changes that this worker may write."""

    refused: dict[int, str] = {}
    bounced: dict[Place, Bounce] = {}
    awake: frozenset[int] = frozenset()

    def add(self, batch: Batch) -> None:
        """The same of a part that was written."""
        self.bounced |= batch.bounced
        self.awake |= batch.awake


def commit(tx: Transaction, worker: int, changes: Sequence[Change]) -> CommitOutcome:
    """Write what this worker may write of the batch."""
    changes = within_slices(changes)
    alive, noted = tx.row("guard", worker=worker, pairs=encode(list({(each.run, each.fence) for each in changes})))
    if not alive:
        return CommitOutcome(alive=False)
    lost: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()
    if found := decode(noted):
        if pairs := {(run, fence) for run, fence, held, _ in found if not held}:
            lost = frozenset(run for run, fence in pairs if _is_lost(tx, run, fence, changes))
            changes = [each for each in changes if (each.run, each.fence) not in pairs and each.run not in lost]
        if cancelled := frozenset(run for run, _, _, cancelled in found if cancelled) - lost:
            changes = [each for each in changes if each.run not in cancelled or is_aware(each)]
    written = _write(tx, worker, changes)
    return CommitOutcome(True, lost, written.refused, written.bounced, written.awake, cancelled)


def _is_lost(tx: Transaction, run: int, fence: int, changes: Sequence[Change]) -> bool:
    """Whether changes under a fence that is not held are news: a batch sent again finds its own work instead."""
    if tx.value("slice_ended", run=run, fence=fence):
        return False
    return not all(_is_done(tx, each) for each in changes if (each.run, each.fence) == (run, fence))


def _is_done(tx: Transaction, change: Change) -> bool:
    at = place_of(change)
    if at is None:
        return False
    run, super_step, key = at
    return bool(tx.value("own_checkpoint", run=run, super_step=super_step, key=key, fence=change.fence))


def _write(tx: Transaction, worker: int, changes: Sequence[Change]) -> Written:
    """Write the changes whole; where that fails, undo it and write them in parts. Those that depend on what is there
    must not find their own work, from before the batch was sent again: they are sifted first."""
    written = Written()
    if needs_deciding(changes):
        _write_parts(tx, worker, changes, written)
        return written
    try:
        batch = Batch(tx, worker, changes)
        if batch.write():
            written.add(batch)
            return written
    except SUSPECT_ERRORS as error:
        if not is_refusal(error):
            raise
    tx.undo()
    _write_parts(tx, worker, changes, written)
    return written


def _write_parts(tx: Transaction, worker: int, changes: Sequence[Change], written: Written) -> None:
    """Write what is not there yet, without the runs that are refused for what they say of effects; where a value is
    refused, halve by run until it is alone with its run's others."""
    try:
        with tx.savepoint("part"):
            batch = Batch(tx, worker, _news(tx, changes, written.refused), sifted=True)
            is_whole = bool(batch.misfits) or batch.write()
            assert is_whole, "what is there was left out"
    except SUSPECT_ERRORS as error:
        if not is_refusal(error):
            raise
        runs = sorted({each.run for each in changes})
        if len(runs) == 1:
            written.refused[runs[0]] = str(error)
            return
    else:
        if not batch.misfits:
            written.add(batch)
            return
        written.refused |= batch.misfits
        _write_parts(tx, worker, [each for each in changes if each.run not in batch.misfits], written)
        return
    lower = set(runs[: len(runs) // 2])
    _write_parts(tx, worker, [each for each in changes if each.run in lower], written)
    _write_parts(tx, worker, [each for each in changes if each.run not in lower], written)


def _news(tx: Transaction, changes: Sequence[Change], refused: dict[int, str]) -> list[Change]:
    """The changes whose checkpoints are not there yet, and the waits and reservations whose steps are not on record. A
    checkpoint that is there under another fence refuses its run. Of two with one address the first is news."""
    addresses = [place_of(each) for each in changes]
    steps = [step_of(each) if isinstance(each, OpenWait | Reserve) else None for each in changes]
    fences: dict[Place, int] = {}
    for cursor in tx.spread("recorded", [at for at in (*addresses, *steps) if at is not None]):
        fences |= {(run, super_step, key): fence for run, super_step, key, fence in decode(cursor.fetchone()[0])}
    for each, at in zip(changes, addresses, strict=True):
        if at is not None and fences.get(at, each.fence) != each.fence:
            _, super_step, key = at
            reason = reasons.recorded_before(key, super_step, under=fences[at], fence=each.fence)
            refused.setdefault(each.run, reason)
    there = zip(changes, addresses, steps, strict=True)
    return [each for each, at, step in there if each.run not in refused and at not in fences and step not in fences]
