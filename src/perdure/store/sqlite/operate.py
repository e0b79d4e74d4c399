"""What a person does to a run: send it on, watch it."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.records import Run, RunState
from perdure.store.protocol import Hint
from perdure.store.sqlite import rows
from perdure.store.sqlite.transaction import Transaction, encode


def release(tx: Transaction, run: int) -> Run | None:
    """Send a held run on."""
    found = _get(tx, run)
    if found is None or found.state is not RunState.HELD:
        return found
    return _requeue(tx, found, ready=found.ready, again=False)


def retry(tx: Transaction, run: int, drop_keys: Sequence[str], *, undo: bool) -> Run | None:
    """Send a failed or cancelled run on, in its old place in its thread's order; with `undo`, only to undo."""
    found = _get(tx, run)
    if found is None or found.state not in (RunState.FAILED, RunState.CANCELLED):
        return found
    head = tx.row("head_of_thread", thread=found.thread)
    goes_first = head is None or _gives_way(head, found)
    if not _may_go_on(tx, found, goes_first=goes_first, undo=undo):
        return found
    if undo:
        tx.run("begin_undo_by_hand", run=run)
        tx.run("begin_undo_again", run=run)
    for key in drop_keys:
        tx.run("forget_attempts", run=run, key=key)
        tx.run("forget_failure", run=run, key=key)
    tx.run("delete_end", run=run)
    if head is not None and goes_first:
        tx.run("unready", run=head[0])
    tx.run("deepen_thread", thread=found.thread, head=run if goes_first else head[0])
    return _requeue(tx, found, ready=goes_first, again=True, undo=undo)


def _may_go_on(tx: Transaction, run: Run, *, goes_first: bool, undo: bool) -> bool:
    """Whether an ended run has something left to undo; or, without `undo`, whether its code may run on: nothing that
    it has done was undone, and it would not undo the state of later runs."""
    if undo:
        return bool(tx.value("has_effects_to_undo", run=run.id))
    return not run.undoing and not tx.value("would_undo", run=run.id, goes_first=goes_first)


def watch(tx: Transaction, runs: Sequence[int]) -> None:
    """Ask for a hint when one of these ends or is held."""
    tx.run("watch", runs=encode(runs))


def _gives_way(head: tuple[int, int, bool], run: Run) -> bool:
    """Whether a thread's head lets an older run go first. One that somebody has begun, or that waits for a person,
    keeps its turn."""
    _, ordinal, untouched = head
    return bool(untouched) and run.ordinal < ordinal


def _requeue(tx: Transaction, run: Run, *, ready: bool, again: bool, undo: bool = False) -> Run | None:
    tx.run("forget_unfinished_tries", run=run.id)
    tx.run("requeue_by_hand", run=run.id, ready=ready, again=again, undo=undo, now=tx.now)
    if ready:
        tx.hints.add(Hint.WORK)
    return _get(tx, run.id)


def _get(tx: Transaction, run: int) -> Run | None:
    found = tx.records("get_runs", rows.RUN, runs=encode([run]))
    return found[0] if found else None
