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
    return _requeue(tx, found, ready=found.ready)


def retry(tx: Transaction, run: int, drop_keys: Sequence[str]) -> Run | None:
    """Send a failed or cancelled run on, in its old place in its thread's order."""
    found = _get(tx, run)
    if found is None or found.state not in (RunState.FAILED, RunState.CANCELLED):
        return found
    for key in drop_keys:
        tx.run("forget_attempts", run=run, key=key)
        tx.run("forget_failure", run=run, key=key)
    tx.run("delete_end", run=run)
    return _requeue(tx, found, ready=_rejoin_thread(tx, found))


def watch(tx: Transaction, runs: Sequence[int]) -> None:
    """Ask for a hint when one of these ends or is held."""
    tx.run("watch", runs=encode(runs))


def _rejoin_thread(tx: Transaction, run: Run) -> bool:
    """Put the run back among its thread's unfinished ones; whether it is the head. A head that somebody has begun, or
    that waits for a person, keeps its turn."""
    head = tx.row("head_of_thread", thread=run.thread)
    if head is None:
        tx.run("deepen_thread", thread=run.thread, head=run.id)
        return True
    first, ordinal, untouched = head
    if ordinal < run.ordinal or not untouched:
        tx.run("deepen_thread", thread=run.thread, head=first)
        return False
    tx.run("unready", run=first)
    tx.run("deepen_thread", thread=run.thread, head=run.id)
    return True


def _requeue(tx: Transaction, run: Run, *, ready: bool) -> Run | None:
    tx.run("forget_unfinished_tries", run=run.id)
    tx.run("requeue_by_hand", run=run.id, ready=ready, now=tx.now)
    if ready:
        tx.hints.add(Hint.WORK)
    return _get(tx, run.id)


def _get(tx: Transaction, run: int) -> Run | None:
    found = tx.records("get_runs", rows.RUN, runs=encode([run]))
    return found[0] if found else None
