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

NOT_THE_ONE: Final = (
    f"this is not the transaction that was begun, or RESET ALL was said in it, which hides that it is: "
    f"{ENDED_BY_ITSELF}, and RESET one setting by its name"
)
"""The same, where nobody has seen how that came."""

READ_ONLY: Final = (
    "this transaction was made READ ONLY in its function, and the record of its step could not be written; leave that "
    "out, or read in a plain step, over a connection of your own"
)
"""Why a transaction that only reads is not taken."""

LEFT: Final = (
    "a statement was broken off, for nobody waited for it any more, and all that the transaction had written is "
    "undone; let the error end the function (`timeout=` bounds the whole try), and do not go on"
)
"""Why a transaction does nothing after a statement of it was cancelled."""


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
