"""SQLite, broken in one place at a time: a word in a statement, mostly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from perdure.store.sqlite import line
from perdure.testing.simulation.orders import Theme
from tests.simulation.breaking import Mutation, statement


@contextmanager
def _acknowledged_and_undone() -> Iterator[None]:
    """Every fortieth operation."""
    count = itertools.count(1)
    original = line.WriteRounds._in_savepoint

    def in_savepoint(rounds: Any, tx: Any, operation: Any) -> Any:
        def undone(tx: Any) -> Any:
            answer = operation(tx)
            if next(count) % 40 == 0:
                tx.undo()
            return answer

        return original(rounds, tx, undone)

    with patch.object(line.WriteRounds, "_in_savepoint", in_savepoint):
        yield


OWNER_AND_FENCE = """or r.worker is not :worker
       or r.fence <> p.fence"""

OF_THE_LIVING = """:lease_us
where id = :worker and state = 'alive'"""
OF_ANYBODY = """:lease_us, state = 'alive'
where id = :worker"""

STATEMENTS = (
    ("A commit is taken under any fence", "owner", "guard", OWNER_AND_FENCE, ""),
    ("A commit of a worker that is dead is taken", "not alive", "guard", "and state = 'alive'", ""),
    ("A claim does not raise the fence", "new fence", "claim_runs", "fence + 1", "fence"),
    ("A claim may come too late", "last give-back", "may_claim", "and ticket <= :ticket", "and :ticket >= 0"),
    ("A claim takes what is pinned elsewhere", "pinned", "claimable", "deployment is null or", "true or"),
    ("A claim comes without the records", "its log has", "claimed_records", "c.kind = 0", "c.kind = 3"),
    ("A take-over is not counted", "recoveries", "recover_runs", "recoveries + 1", "recoveries"),
    ("A death is a strike though something was recorded", "strikes", "recover_runs", "then 0", "then strikes + 1"),
    ("A run that kills its workers is never held", "held", "poisoned", "strikes >=", "strikes >= 100 *"),
    ("A give-back does not raise the fence", "new fence", "return_runs", "fence + 1", "fence"),
    ("A renewal revives a dead worker", "alive again", "renew", OF_THE_LIVING, OF_ANYBODY),
    ("A thread's next run is not made ready", "ready", "promote_heads", "set ready = 1", "set ready = 0"),
    (
        "The newest state is not pointed to",
        "snapshot",
        "move_snapshots",
        "threads.snapshot_step < s.super_step",
        "false",
    ),
    ("Tries that were cut short are kept", "cut short", "forget_unfinished_tries", "error is null", "false"),
    ("A run is parked though what it waits for has come", "still waits", "waits", "i.state <> 'open'", "false"),
    (
        "A parked run has no deadline",
        "what it waits for comes at",
        "park_runs",
        "ifnull(deadline_at, :never)",
        ":never",
    ),
    ("An answer wakes nobody", "still waits for answer", "waiting_for_answer", "w.kind = 1", "w.kind = 9"),
    ("A message wakes nobody", "still waits for message", "waiting_for_mail", "w.kind = 2", "w.kind = 9"),
    ("A super-step's end leaves its waits", "and waits for", "close_all_waits", "w.super_step <", "0 >"),
    (
        "A message that was received stays",
        "still in its mailbox",
        "receive_messages",
        "payload = null, received_at =",
        "sent_at =",
    ),
    ("A cancellation does not go down the tree", "was to be cancelled", "family", "on r.parent = tree.id", "on false"),
    (
        "A cancellation wakes nobody",
        "asked to end",
        "request_cancel",
        "state = case when state in ('waiting', 'held') then 'queued'",
        "state = case when state = 'held' then 'queued'",
    ),
)

HANDING = (
    ("A delivery is claimed before its time", "claimed .* due are", "claimable_deliveries", ":now", ":now + 9000000"),
    (
        "A lane's next is not made ready",
        "ready False, not True",
        "promote_deliveries",
        "set ready = 1",
        "set ready = 0",
    ),
    ("A worker that is gone keeps its deliveries", "DELIVERING", "return_deliveries", "= :worker", "= -:worker"),
    ("A cancelled run has no bill", "has 0 bills", "bills_due", "'failed', 'cancelled'", "'failed'"),
    ("A try of a delivery is not counted", "attempts", "take_deliveries", "attempts + 1", "attempts"),
)

SPENDING = (
    ("Dollars are not spent", "are spent and", "move_budgets", "= m.usd_spent", "= budgets.usd_spent"),
    ("What was reserved is not released", "reserved", "release_reservations", "v.key = m.key", "false"),
    ("Setting a budget does not count", "is at revision", "set_budget", "budgets.rev + 1", "budgets.rev"),
    ("Setting a budget wakes nobody", "which has come", "asking_about_budget", "w.kind = 1", "w.kind = 9"),
)


def _about(theme: Theme, statements: tuple[tuple[str, str, str, str, str], ...]) -> Iterator[Mutation]:
    for name, kind, of, old, new in statements:
        yield Mutation(name, kind, statement(of, old, new), store="sqlite", theme=theme)


SQLITE = (
    *(Mutation(name, kind, statement(of, old, new), store="sqlite") for name, kind, of, old, new in STATEMENTS),
    *_about(Theme.OUTBOX, HANDING),
    *_about(Theme.BUDGETS, SPENDING),
    Mutation("An operation is acknowledged and undone", "is not|not there", _acknowledged_and_undone, store="sqlite"),
)
