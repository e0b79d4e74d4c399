"""What a store itself says to people, in the same words whichever store it is."""

from __future__ import annotations


def poisoned(strikes: int) -> str:
    """The detail of a run that is held as poison. (Postgres says it in `functions/owners.sql`.)"""
    return f"{strikes} workers in a row died while they executed it, without one new checkpoint."


def recorded_before(key: str, super_step: int, *, under: int, fence: int) -> str:
    """Why a checkpoint that exists under another fence is refused."""
    return (
        f"checkpoint {key!r} of super-step {super_step} was recorded under fence {under}; "
        f"fence {fence} cannot record it again"
    )
