"""A line of the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """A sentence of the report, and whether it holds."""

    holds: bool
    text: str
