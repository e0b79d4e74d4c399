"""Workers' rows: registering, renewing, taking over, retiring. Also the counter that ids come from.

The write lock is the lock on every row, so a take-over needs no more than to look and to write.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.records import HeldReason, TakenOver, WorkerState
from perdure.core.requests import NewWorker
from perdure.store import reasons
from perdure.store.protocol import Hint
from perdure.store.sqlite import outbox
from perdure.store.sqlite.transaction import Transaction, encode
from perdure.store.sqlite.waiters import after_end


def reserve_ids(tx: Transaction, count: int) -> int:
    """Reserve consecutive ids; the first."""
    tx.run("reserve_ids", count=count)
    return int(tx.value("next_id")) - count


def register(tx: Transaction, worker: NewWorker) -> None:
    """Insert the worker's row."""
    values = {"id": worker.id, "name": worker.name, "host": worker.host, "pid": worker.pid}
    tx.run("register", **values, deployment=worker.deployment, lease_us=worker.lease_us, now=tx.now)


def renew(tx: Transaction, worker: int, lease_us: int) -> bool:
    """Extend the lease of a living worker."""
    return tx.run("renew", worker=worker, lease_us=lease_us, now=tx.now) == 1


def set_session(tx: Transaction, worker: int) -> bool:
    """Note that the worker's death can be seen; False if it is not alive."""
    return tx.run("set_session", worker=worker) == 1


def set_idle(tx: Transaction, worker: int, idle: bool) -> None:
    """Note whether the worker waits for work."""
    tx.run("set_idle", worker=worker, idle=idle)


def take_over(tx: Transaction, suspects: Sequence[int], recoveries_max: int) -> list[TakenOver]:
    """Declare dead every overdue or suspected worker, and re-queue or hold its runs."""
    overdue = tx.array("overdue", suspects=encode(suspects), now=tx.now)
    return [_take_over(tx, worker, recoveries_max) for worker in overdue]


def _take_over(tx: Transaction, worker: int, recoveries_max: int) -> TakenOver:
    tx.run("end_worker", worker=worker, state=WorkerState.DEAD, now=tx.now)
    outbox.give_back(tx, worker, struck=True)
    runs = tx.array("held_by", worker=worker)
    if not runs:
        return TakenOver(worker, (), ())
    tx.run("recover_runs", worker=worker, now=tx.now)
    poisoned = tx.array("poisoned", runs=encode(runs), recoveries_max=recoveries_max)
    for run, strikes in poisoned:
        tx.run("hold_run", run=run, reason=HeldReason.POISON, detail=reasons.poisoned(strikes))
    held = [run for run, _ in poisoned]
    after_end(tx, held)
    requeued = tuple(run for run in runs if run not in set(held))
    if requeued:
        tx.hints.add(Hint.WORK)
    return TakenOver(worker, requeued, tuple(held))


def retire(tx: Transaction, worker: int) -> int:
    """End the worker's row and give its runs back; how many."""
    if not tx.run("end_worker", worker=worker, state=WorkerState.STOPPED, now=tx.now):
        return 0
    outbox.give_back(tx, worker)
    return _return(tx, worker, keep=())


def give_back(tx: Transaction, worker: int, keep: Sequence[int], ticket: int) -> int:
    """Give back what a living worker holds beyond what it keeps; how many. Nothing where this comes too late."""
    return _return(tx, worker, keep) if tx.run("set_ticket", worker=worker, ticket=ticket) else 0


def _return(tx: Transaction, worker: int, keep: Sequence[int]) -> int:
    returned = tx.run("return_runs", worker=worker, keep=encode(list(keep)))
    if returned:
        tx.hints.add(Hint.WORK)
    return returned
