"""Cancelling: what has not begun, or is held, ends at once; of all else it is noted, and its worker ends it. So does
one for what is held with effects that can be undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from perdure.core.records import Kind, Run, RunState
from perdure.store.protocol import Hint
from perdure.store.sqlite import rows
from perdure.store.sqlite.transaction import Reader, Transaction, encode
from perdure.store.sqlite.waiters import after_end
from perdure.store.sqlite.waits import STEP_MAX, end_waits


class Relative(msgspec.Struct, array_like=True):
    """A run that is to be cancelled, as the statement answers."""

    run: int
    thread: int
    super_step: int
    fence: int
    at_once: bool
    state: RunState


def cancel(tx: Transaction, run: int, reason: str, payload: bytes) -> Run | None:
    """Request the cancellation of a run and of what is below it."""
    cancel_all(tx, [run], reason, payload)
    found = tx.records("get_runs", rows.RUN, runs=encode([run]))
    return found[0] if found else None


def cancel_all(tx: Transaction, runs: Sequence[int], reason: str, payload: bytes) -> None:
    """The same of several runs."""
    family = [msgspec.convert(row, Relative, strict=False) for row in tx.array("family", runs=encode(list(runs)))]
    ended = [each for each in family if each.at_once]
    asked = [each for each in family if not each.at_once]
    if asked:
        tx.run("request_cancel", runs=encode([each.run for each in asked]), reason=reason, payload=payload, now=tx.now)
        _tell(tx, {each.state for each in asked})
    if ended:
        _end(tx, ended, reason, payload)


def _tell(tx: Transaction, states: set[RunState]) -> None:
    """Somebody is to go on with runs that were in these states."""
    if RunState.RUNNING in states:
        tx.hints.add(Hint.WAKE)
    if states - {RunState.RUNNING}:
        tx.hints.add(Hint.WORK)


def _end(tx: Transaction, ended: Sequence[Relative], reason: str, payload: bytes) -> None:
    """End runs that no worker has to be asked for."""
    runs = [each.run for each in ended]
    these = encode(runs)
    tx.write("append_checkpoints", [_end_row(each, payload, tx.now) for each in ended])
    tx.run("cancel_at_once", runs=these, reason=reason, now=tx.now)
    tx.run("roll_back", runs=these)
    end_waits(tx, [(run, STEP_MAX) for run in runs])
    gone = Counter(each.thread for each in ended)
    tx.run("leave_threads", gone=encode(list(gone.items())))
    if tx.run("promote_heads", threads=encode(list(gone))):
        tx.hints.add(Hint.WORK)
    after_end(tx, runs)


def _end_row(each: Relative, payload: bytes, now: int) -> tuple[object, ...]:
    """The end, recorded by nobody's claim: worker 0."""
    at = (each.run, each.super_step + 1, "", int(Kind.ENDED), 0, each.fence, 0, 0, 0, True)
    return (*at, payload, None, now, now)


def cancellations(reader: Reader, worker: int) -> dict[int, str]:
    """The runs in a worker's hands that are to be cancelled, and why; row by row, for there are few."""
    return dict(reader.rows("cancellations", worker=worker))
