"""What a store itself says to people, in the same words whichever store it is."""

from __future__ import annotations

from typing import Final

OVER: Final = "this transaction is over; use it only in the function that it was given to, and await what it does"
"""Why a transaction that has ended does nothing."""

ENDED_BY_ITSELF: Final = (
    "the store itself begins and ends a transaction, together with its step's record; leave out BEGIN, COMMIT and "
    "ROLLBACK, and what implies them (SAVEPOINT and ROLLBACK TO undo a part)"
)
"""Why a transaction's own end is not taken."""


def poisoned(strikes: int) -> str:
    """The detail of a run that is held as poison. (Postgres says it in `functions/owners.sql`.)"""
    return f"{strikes} workers in a row died while they executed it, without one new checkpoint."


def recorded_before(key: str, super_step: int, *, under: int, fence: int) -> str:
    """Why a checkpoint that exists under another fence is refused."""
    return (
        f"checkpoint {key!r} of super-step {super_step} was recorded under fence {under}; "
        f"fence {fence} cannot record it again"
    )


def no_such_effect(what: str) -> str:
    """Why a change of an effect that is not in the ledger, or whose number is another's, is refused."""
    return f"effect {what!r} is not in the ledger of its run"


def does_not_fit(key: str, state: str, *, attempt: int, asked: str) -> str:
    """Why a change that an effect's state does not allow is refused."""
    return f"effect {key!r} is {state!r} at attempt {attempt}; it cannot become {asked!r} now"
