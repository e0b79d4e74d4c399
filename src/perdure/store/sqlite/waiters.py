"""Who waits for something that has come: parked runs are sent on, running ones are told.

A wait is never changed here. Whoever writes what a wait is for asks in the same transaction who waits for it, and a
parking asks in its own whether something is there already; the write lock orders the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from perdure.store.protocol import Hint
from perdure.store.sqlite.accounts import close_ended
from perdure.store.sqlite.outbox import bill_ended
from perdure.store.sqlite.transaction import Transaction, decode, encode


def wake(tx: Transaction, runs: Collection[int]) -> None:
    """Send these runs on, those that are parked, and tell the workers of those that run."""
    if not runs:
        return
    these = encode(list(runs))
    if tx.run("wake_runs", runs=these, now=tx.now):
        tx.hints.add(Hint.WORK)
    if tx.value("are_running", runs=these):
        tx.hints.add(Hint.WAKE)


def after_end(tx: Transaction, runs: Collection[int]) -> None:
    """These runs have ended or are held: bill those that have ended and close their accounts, tell who watches them,
    wake who waits for them."""
    if not runs:
        return
    watched, billed, reserving, waiting = tx.row("followers", runs=encode(list(runs)))
    if watched:
        tx.hints.add(Hint.ENDED)
    if billed:
        bill_ended(tx, list(runs))
    if reserving:
        close_ended(tx, list(runs))
    wake(tx, decode(waiting))


def after_mail(tx: Transaction, sent: Iterable[tuple[int, str]]) -> None:
    """Messages of these pairs of thread and label have arrived."""
    if pairs := list(set(sent)):
        wake(tx, tx.array("waiting_for_mail", sent=encode(pairs)))


def after_room(tx: Transaction, threads: Collection[int]) -> None:
    """There is room again in these threads' mailboxes."""
    if threads:
        wake(tx, tx.array("waiting_for_room", threads=encode(list(threads))))
