"""Names for parametrized tests that are the same in every process."""

from __future__ import annotations


def plainly(value: object) -> str | None:
    """The repr of a plain value; None (pytest numbers it) for what may show an address or the order of a set."""
    return ascii(value)[:60] if isinstance(value, int | float | str | bytes | type(None)) else None
